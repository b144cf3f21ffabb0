# SPDX-License-Identifier: Apache-2.0
"""Where the checkpoints of a run are: in its directory, or elsewhere, and then its directory says where."""

from pathlib import Path

_UNDER = "checkpoints"
_ELSEWHERE = "checkpoints.url"  # In the directory of a run: one line, the URL.


def is_url(place: str) -> bool:
    """Whether a place is in a store of objects, not in a file system."""
    return "://" in place


def checkpoints_of(run: str) -> str:
    """Returns where the checkpoints of a run are, which is named by its directory or by the URL of its checkpoints."""
    if is_url(run):
        return run
    try:
        with (Path(run).expanduser() / _ELSEWHERE).open(encoding="utf-8") as file:
            place = file.readline(4096).strip()
    except (OSError, UnicodeDecodeError):
        place = ""
    return place if is_url(place) else str(Path(run) / _UNDER)


def note_place(run: Path, place: str) -> None:
    """Notes in the directory of a run that its checkpoints are elsewhere."""
    if is_url(place):
        (run / _ELSEWHERE).write_text(f"{place}\n", encoding="utf-8")
