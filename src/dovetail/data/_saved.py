# SPDX-License-Identifier: Apache-2.0
"""Directories that `save_to_disk` of Hugging Face `datasets` has written: which files of Arrow they consist of."""

import json
from collections.abc import Callable
from typing import Any

from dovetail.config import ConfigError

from ._errors import DataError

_SPLITS, _STATE = "dataset_dict.json", "state.json"


def saved_files(directory: str, read: Callable[[str], bytes | None], where: str) -> list[str] | None:
    """Returns the paths of the files of a data set, in order; None if the directory is none. `read` gives a file of it.

    What has several splits is an error that lists them: the path of one says which.
    """
    directory = directory.rstrip("/")
    if (splits := read(_SPLITS)) is not None:
        names = _parsed(f"{directory}/{_SPLITS}", splits, "splits")
        if len(names) != 1:
            some = ", ".join(repr(f"{directory}/{name}") for name in names)
            raise ConfigError(f"{where}: {directory!r} has {len(names)} splits. Name one of them: {some or 'none'}.")
        found = saved_files(f"{directory}/{names[0]}", lambda name: read(f"{names[0]}/{name}"), where)
        if found is None:
            raise DataError(f"{directory}/{names[0]}: has no {_STATE}: the data set is not complete. Save it again.")
        return found
    if (state := read(_STATE)) is None:
        return None
    files = _parsed(f"{directory}/{_STATE}", state, "_data_files")
    if json.loads(state).get("_indices_files"):
        raise ConfigError(
            f"{where}: {directory!r} selects rows of its files by indices, as older versions of datasets wrote it.\n"
            "  Load it and save it again with a newer one: load_from_disk(...).save_to_disk(...)."
        )
    if not files:
        raise DataError(f"{directory}: the data set has no files. Leave it out of {where}.")
    return [f"{directory}/{each['filename']}" for each in files]


def _parsed(path: str, data: bytes, name: str) -> list[Any]:
    try:
        found = json.loads(data)[name]
        if name == "_data_files":
            [each["filename"] for each in found]
        return list(found)
    except (ValueError, KeyError, TypeError) as e:
        raise DataError(
            f"{path}: is not as save_to_disk writes it: {e!r}. Save the data set again, or name its .arrow files."
        ) from e
