# SPDX-License-Identifier: Apache-2.0
"""What a step has beside its arrays: where the input was, and the files of the model."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.config import ConfigError

from ._step import FILES

PREFIX = f"{FILES}/"


def json_text(data_state: Any) -> str:
    """Returns where the input is, as JSON; a ConfigError if it would not come back as it is."""
    try:
        text = json.dumps(data_state, allow_nan=False)
        changed = json.loads(text) != data_state
    except (TypeError, ValueError) as e:
        raise ConfigError(f"data_state is not JSON data: {e}.") from e
    if changed:
        raise ConfigError("data_state would not come back from JSON as it is: use lists, not tuples, and string keys.")
    return text


def named_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the files of a model by their names in a step."""
    check_names(files)
    for name, data in files.items():
        if not isinstance(data, bytes):
            raise ConfigError(f"files: expected bytes as the content of {name!r}, found {type(data).__name__}.")
    return {PREFIX + name: data for name, data in files.items()}


def check_names(names: Iterable[str]) -> None:
    """Raises if a name is not that of a file in a directory: it would lead elsewhere."""
    for name in names:
        if not name or "/" in name or "\0" in name or name in (".", ".."):
            raise ConfigError(f"files: expected plain file names, found {name!r}.")
