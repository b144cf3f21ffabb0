# SPDX-License-Identifier: Apache-2.0
"""Names of published models, `hf:DIRECTORY` and `hf:ORG/NAME`, and of new directories: what their names alone tell."""

import os
import re
from pathlib import Path

from dovetail.config import ConfigError

PREFIX = "hf:"
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def is_published_name(name: str) -> bool:
    """Whether the name of a recipe is that of a published model."""
    return name.startswith(PREFIX)


def check_published(name: str) -> None:
    """Raises if a name cannot be that of a published model. Nothing is downloaded."""
    place = name.removeprefix(PREFIX)
    if not place:
        raise ConfigError(f"{name}: names no directory. Name one, or a repository as in hf:ORG/NAME.")
    path = Path(os.path.expanduser(place))  # That of a user who is not here stays as it is.
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"{name}: the directory has no config.json. Name one in the format of Hugging Face.")
    elif not _REPOSITORY.fullmatch(place):
        raise ConfigError(f"{name}: there is no directory {place!r}. Name one, or a repository as in hf:ORG/NAME.")


def check_target(directory: str, source: str = "") -> None:
    """Raises if `--to` is not a directory that can be made: before anything is read, which may take long.

    Args:
        source: what is read; what is written must not be inside of it.
    """
    path, where = Path(directory), f"--to: {directory!r}"
    if not directory:
        raise ConfigError("--to: names no directory.")
    if os.path.lexists(path) and (path.is_symlink() or not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"--to: there is something in {directory!r} already. Name a directory that is new.")
    named = source.removeprefix(PREFIX)
    place = Path(os.path.expanduser(named))
    if named and place.is_dir() and path.resolve().is_relative_to(place.resolve()):
        raise ConfigError(f"{where} is inside of {str(place)!r}, which is read. Name a directory elsewhere.")
    parent = next(each for each in path.absolute().parents if os.path.lexists(each))
    if not parent.is_dir():
        raise ConfigError(f"{where} cannot be made: {str(parent)!r} is not a directory.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{where} cannot be made: {str(parent)!r} may not be written to.")
