# SPDX-License-Identifier: Apache-2.0
"""What a run is, for observers: its config as paths and plain values, and facts about where it runs."""

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

import dovetail
from dovetail.config import ConfigBase, to_text
from dovetail.progress import recipe

from ._observer import Cell

if TYPE_CHECKING:
    from ._size import Size
    from ._trainer import Trainer


def settings_of(cfg: ConfigBase) -> dict[str, Any]:
    """Returns a config as paths and values: numbers and truth values as they are, all else as `to_text` has it."""
    found: dict[str, Any] = {}
    for line in to_text(cfg).splitlines():
        path, _, text = line.partition(" = ")
        found |= {} if path == "(root)" else {path: _plain(text)}
    return found


def _plain(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def facts_of(cfg: "Trainer.Config", size: "Size") -> Mapping[str, Cell]:
    """Returns what is known of a run besides its config."""
    devices = jax.devices()
    return {
        "recipe": recipe(),
        "parameters": size.parameters,
        f"{size.unit}s_per_step": size.units,
        "mesh": cfg.mesh.text(),
        "devices": len(devices),
        "device": getattr(devices[0], "device_kind", str(devices[0])),
        "processes": jax.process_count(),
        "host": platform.node(),
        "dovetail": dovetail.__version__,
        "jax": jax.__version__,
    }
