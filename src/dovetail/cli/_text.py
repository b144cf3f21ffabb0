# SPDX-License-Identifier: Apache-2.0
"""`--text FILE...`: text of one's own, for the commands that read some."""

import argparse
import re
from pathlib import Path

_KINDS = ".txt, .jsonl, .parquet, .arrow or .array_record files, globs or URLs, .gz and .zst too"


def add_text(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the argument; `what` says what is done with the text."""
    parser.add_argument("--text", nargs="+", default=[], metavar="FILE", help=f"{what}: {_KINDS}")


def text_and_overrides(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Returns the files and the overrides: those that stand after the files are taken for files by argparse."""
    files = [text for text in args.text if names_a_file(text)]
    return files, [*args.overrides, *(text for text in args.text if text not in files)]


def names_a_file(text: str) -> bool:
    """Whether an argument names files, and is no override."""
    return "=" not in text or re.match(r"\w+://", text) is not None or Path(text).exists()
