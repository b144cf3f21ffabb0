# SPDX-License-Identifier: Apache-2.0
"""The constants of predictions, from `fitted.toml`: what chips reach of what their data sheets say."""

import importlib.resources
import tomllib
from collections.abc import Mapping
from typing import NamedTuple

from ._catalogue import Chip


class Fitted(NamedTuple):
    """A constant, for a family of chips, a vendor, or any."""

    name: str
    group: str
    value: float
    prior: float
    spread: float  # Of the logarithm of the prior; 0: it is not fitted.


def _read() -> dict[tuple[str, str], Fitted]:
    text = importlib.resources.files("dovetail.hardware").joinpath("fitted.toml").read_text("utf-8")
    return {
        (name, group): Fitted(name, group, float(entry["value"]), float(entry["prior"]), float(entry.get("spread", 0)))
        for name, groups in tomllib.loads(text).items()
        for group, entry in groups.items()
    }


FITTED: Mapping[tuple[str, str], Fitted] = _read()


def groups_of(chip: Chip) -> tuple[str, ...]:
    """Returns the groups that a chip belongs to, the narrowest first."""
    return chip.name, chip.family or chip.name, "gpu" if chip.torus is None else "tpu", "any"


def fitted(name: str, chip: Chip) -> Fitted:
    """Returns a constant of a chip: that of its narrowest group.

    >>> from dovetail.hardware import CHIPS
    >>> fitted("half_size", CHIPS["gpu-h200"]).group
    'gpu'
    """
    return next(FITTED[name, group] for group in groups_of(chip) if (name, group) in FITTED)
