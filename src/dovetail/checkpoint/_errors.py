# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a checkpoint that is not a mistake in a config, and how lists are shown in messages."""

import os
import re
from collections.abc import Sequence

_OS_ERROR = re.compile(r"os_error_code='(\d+)'")  # As TensorStore ends its messages.


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message says which, why, and what is left."""


class CorruptionError(CheckpointError):
    """What is on disk is not what was saved: a file is missing, cut short, unreadable or changed."""


class ElsewhereError(CheckpointError):
    """A save is given up because another process has failed; that one knows why."""

    def __init__(self) -> None:
        super().__init__("another process failed; see its log")


def damaged(name: str, problems: Sequence[str]) -> CorruptionError:
    """Returns the error that says what is wrong with a step."""
    return CorruptionError(f"checkpoint {name} is damaged:{bullets(problems)}")


def bullets(lines: Sequence[str], shown: int = 10) -> str:
    """Returns lines to append to a message, each indented, the first `shown` of them.

    >>> bullets(["a", "b", "c"], shown=2)
    '\\n  a\\n  b\\n  ... and 1 more.'
    """
    more = [f"... and {len(lines) - shown} more."] if len(lines) > shown else []
    return "".join(f"\n  {line}" for line in [*lines[:shown], *more])


def reason(error: BaseException) -> str:
    """Returns why something failed, in one line; what the operating system said, if it was asked."""
    if isinstance(error, CheckpointError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}."
    if code := _OS_ERROR.search(str(error)):
        return f"{os.strerror(int(code[1]))}."
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
