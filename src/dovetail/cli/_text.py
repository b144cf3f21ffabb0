# SPDX-License-Identifier: Apache-2.0
"""`--text FILE...`: text of one's own, for the commands that read some."""

import argparse
from pathlib import Path

_KINDS = ".txt, .jsonl or .parquet files or globs, .gz and .zst too"


def add_text(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the argument; `what` says what is done with the text."""
    parser.add_argument("--text", nargs="+", default=[], metavar="FILE", help=f"{what}: {_KINDS}")


def text_and_overrides(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Returns the files and the overrides: those that stand after the files are taken for files by argparse."""
    files = [text for text in args.text if "=" not in text or Path(text).exists()]
    return files, [*args.overrides, *(text for text in args.text if text not in files)]
