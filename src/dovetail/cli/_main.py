# SPDX-License-Identifier: Apache-2.0
"""The command line: parse, resolve, print, run. JAX is imported by the commands that need it, not before."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from dovetail.config import ConfigError
from dovetail.launch import host_settings, restart_with

from ._parser import parser

# Commands that compute: they start again with faster settings of the host, where there are any.
_COMPUTES = ("train", "eval", "generate", "bench")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns 0, or 2 with one message for what the user can fix."""
    args = _parsed(argv)
    if argv is None and args.command in _COMPUTES:
        restart_with(host_settings(os.environ))
    for library in ("absl", "tensorboardX"):  # Orbax logs each error many times; what counts reaches the user below.
        logging.getLogger(library).setLevel(logging.CRITICAL)
    try:
        code = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # As in `dovetail show ... | head`: nobody reads on.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as e:
        if not isinstance(e, _fixable()):
            raise
        print(f"dovetail {args.command}: {e}", file=sys.stderr)
        return 2


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the arguments; overrides may stand after an option, where argparse does not look for them."""
    commands = parser()
    args, rest = commands.parse_known_args(argv)
    if any(text.startswith("-") for text in rest) or (rest and not hasattr(args, "overrides")):
        commands.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.overrides = [*args.overrides, *rest]
    return args


_ERRORS = (
    ("data", "DataError"),
    ("checkpoint", "CheckpointError"),
    ("train", "TrainingError"),
    ("aot", "CompileError"),
)


def _fixable() -> tuple[type[Exception], ...]:
    """Returns the errors that a user can do something about, of the parts that have been imported."""
    found: list[type[Exception]] = [ConfigError]
    for module, name in _ERRORS:
        if f"dovetail.{module}" in sys.modules:
            found.append(getattr(sys.modules[f"dovetail.{module}"], name))
    return tuple(found)
