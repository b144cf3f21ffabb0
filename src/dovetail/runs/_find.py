# SPDX-License-Identifier: Apache-2.0
"""Finds runs by what a user names: their directories, or one with directories of runs."""

import os
from collections.abc import Sequence
from pathlib import Path

from dovetail.config import ConfigError
from dovetail.progress import METRICS


def find_runs(names: Sequence[str | Path]) -> dict[str, Path]:
    """Returns the directories of runs, by what tells them apart: their paths without what these share."""
    found: list[Path] = []
    for name in names:
        directory = Path(name)
        inside = sorted(file.parent for file in directory.glob(f"*/{METRICS}"))
        if (directory / METRICS).is_file():
            found.append(directory)
        elif inside:
            found += inside
        else:
            what = f"there is no {METRICS} in it" if directory.is_dir() else "there is no such directory"
            raise ConfigError(f"{name}: {what}. Give the directory of a run, or one with directories of runs.")
    whole = [os.path.abspath(each) for each in dict.fromkeys(found)]
    shared = os.path.commonpath([os.path.dirname(each) for each in whole]) if whole else ""
    return {os.path.relpath(each, shared): Path(each) for each in whole}
