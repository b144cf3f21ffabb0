# SPDX-License-Identifier: Apache-2.0
"""`--text FILE...` and `--data PLACE...`: text of one's own, raw or prepared, for the commands that read some."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.config import ConfigError

_KINDS = ".txt, .jsonl, .parquet, .arrow or .array_record files, globs or URLs, .gz and .zst too"


def add_text(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the argument; `what` says what is done with the text."""
    parser.add_argument("--text", nargs="+", default=[], metavar="FILE", help=f"{what}: {_KINDS}")


def names_a_file(text: str) -> bool:
    """Whether an argument names files, or a place, and is no override."""
    return "=" not in text or re.match(r"\w+://", text) is not None or Path(text).exists()


def add_data_places(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the argument; `what` says what is done with the data."""
    text = f"what `dovetail data prepare` has written, {what}"
    parser.add_argument("--data", nargs="+", default=[], metavar="PLACE", help=text)


class Own(NamedTuple):
    """What a command is to read."""

    text: tuple[str, ...]  # Files or globs.
    data: tuple[str, ...]  # Places of prepared data.


def own_and_overrides(args: argparse.Namespace) -> tuple[Own, list[str]]:
    """Returns what is to be read, and the overrides: those that stand after it are taken for some of it by argparse."""
    text, data = ([each for each in given if names_a_file(each)] for given in (args.text, args.data))
    if text and data:
        raise ConfigError("--text and --data: give one of them.")
    more = [each for each in (*args.text, *args.data) if not names_a_file(each)]
    return Own(tuple(text), tuple(data)), [*args.overrides, *more]


def check_data(places: Sequence[str]) -> None:
    """Raises if there is no prepared data at a place."""
    from dovetail.data import tokenizer_at

    for place in places:
        tokenizer_at(place, "--data")
