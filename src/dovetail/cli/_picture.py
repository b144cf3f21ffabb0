# SPDX-License-Identifier: Apache-2.0
"""`--picture FILE`: what a command says, also as a picture."""

import argparse
import sys
from collections.abc import Callable

from dovetail.pictures import Picture, check_picture_file


def add_picture(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the argument; `what` is in the picture."""
    parser.add_argument("--picture", metavar="FILE", help=f"also draw {what}: a .svg or .png")


def check_picture(args: argparse.Namespace) -> None:
    """Raises, before anything takes time, if the picture that is asked for could not be written."""
    if args.picture is not None:
        check_picture_file(args.picture)


def save_picture(args: argparse.Namespace, drawn: Callable[[], Picture]) -> None:
    """Draws and writes the picture, if one is asked for; says where."""
    if args.picture is not None:
        print(f"drawn: {drawn().save(args.picture)}", file=sys.stderr)
