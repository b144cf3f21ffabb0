# SPDX-License-Identifier: Apache-2.0
"""The command line: parse, resolve, print, run. JAX is imported by the commands that need it, not before."""

import argparse
import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import TextIO

from dovetail.config import ConfigError, MissingFieldsError
from dovetail.hardware import host_settings, kept_programs, restart_with
from dovetail.progress import Line, program, quiet, showing

from ._code import load_code
from ._interrupt import ends_at_once
from ._parser import parser
from ._table import printable

# Commands that compute: they start again with faster settings of the host, where there are any.
_COMPUTES = ("train", "eval", "generate", "serve", "import", "export", "bench")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns 0, or 2 with one message for what the user can fix.

    As a program, without `argv`, it also says on standard error what it is doing, if that takes a while.
    """
    args = parsed(argv)
    alone = argv is not None or "JAX_COORDINATOR_ADDRESS" not in os.environ
    is_silent = getattr(args, "quiet", False)
    shown = showing(silent=is_silent) if argv is None else quiet() if is_silent else contextlib.nullcontext()
    if argv is None and args.command == "train":
        program(args.recipe)
    if argv is None and args.command in _COMPUTES:
        restart_with(host_settings(os.environ))
        if args.command != "bench":  # What is measured there is compiled there.
            _keep_programs()
    for library in ("absl", "tensorboardX"):  # Orbax logs each error many times; what counts reaches the user below.
        logging.getLogger(library).setLevel(logging.CRITICAL)
    try:
        with shown as line, _as_program(line) if argv is None else contextlib.nullcontext():
            for name in getattr(args, "code", []):
                load_code(name)
            code = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # As in `dovetail show ... | head`: nobody reads on.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:  # Of one of several processes, which has saved what it could.
        if alone:
            raise
        return _ended(128 + signal.SIGINT, alone)
    except Exception as e:
        if isinstance(e, _fixable()):
            print(f"dovetail {args.command}: {_said(e)}", file=sys.stderr)
            return _ended(_code_of(e), alone)
        if alone:
            raise
        traceback.print_exc()
        return _ended(1, alone)


def _code_of(error: Exception) -> int:
    """Returns the exit code for an error that a user can do something about."""
    from dovetail.launch import BAD_HOST, FAILED, MISTAKE

    if "dovetail.train" not in sys.modules:
        return MISTAKE
    import jax

    from dovetail.train import HardwareError

    if not isinstance(error, HardwareError):
        return MISTAKE
    return BAD_HOST if error.process == jax.process_index() else FAILED


def _ended(code: int, alone: bool) -> int:
    """Returns the exit code of a command that failed; one of several processes ends here, at once.

    The others may wait for it, and it would wait for them where JAX ends: they learn of it when it is gone.
    """
    if not alone:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _keep_programs() -> None:
    """Has JAX keep compiled programs, and says so if it cannot. Once it is imported, it is too late."""
    if "jax" in sys.modules:
        return
    kept = kept_programs(os.environ)
    os.environ.update(kept.variables)
    if kept.problem:
        print(f"dovetail: {kept.problem}", file=sys.stderr)


@contextlib.contextmanager
def _as_program(line: Line | None) -> Iterator[None]:
    """Prints what dovetail logs (damage, a save that failed) as it is, however other libraries have set up logging.

    Ctrl-C ends the program, without a trace.
    """
    log, handler = logging.getLogger("dovetail"), _Handler(line)
    log.addHandler(handler)
    log.propagate = False
    try:
        with ends_at_once(line.end if line is not None and line.is_live else None):
            yield
    finally:
        log.removeHandler(handler)
        log.propagate = True


class _Handler(logging.StreamHandler[TextIO]):
    """Writes what is logged to standard error, where no line of progress stands meanwhile."""

    def __init__(self, line: Line | None) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.nullcontext() if self._line is None else self._line.away():
            super().emit(record)


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the arguments; overrides may stand after an option, where argparse does not look for them."""
    commands = parser()
    args, rest = commands.parse_known_args(argv)
    if any(text.startswith("-") for text in rest) or (rest and not hasattr(args, "overrides")):
        commands.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.overrides = [*args.overrides, *rest]
    return args


def _said(e: Exception) -> str:
    """Returns the message of an error as one says it on a command line."""
    missing = isinstance(e, MissingFieldsError)
    return printable(f"{e.what}\n  Add them, as in {e.first}=..." if missing else str(e))


_ERRORS = (
    ("data", "DataError"),
    ("pictures", "PictureError"),
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
