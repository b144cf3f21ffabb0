# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a checkpoint that is not a mistake in a config, and how lists are shown in messages."""

from collections.abc import Sequence

from dovetail.storage import StorageError


class CheckpointError(StorageError):
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
