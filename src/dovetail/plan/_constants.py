# SPDX-License-Identifier: Apache-2.0
"""The constants of predictions for chips, one by one or for a table of steps at once."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dovetail.hardware import CHIPS, FITTED, Chip, Fitted, fitted

from ._cost import Constants

YEAR = 2026.0  # Of software whose date is not known.
_NAMES = (*Constants._fields, "power", "yearly")
_FALLING = ("moved", "sparse_seconds")  # What gets faster with the software of GPUs.
FREE: tuple[Fitted, ...] = tuple(each for each in FITTED.values() if each.spread)  # What a fit may change.


class Place(NamedTuple):
    """What constants depend on."""

    chip: Chip
    watts: float | None = None  # None: as much as the chip is made for.
    year: float = YEAR


def constants_of(chip: Chip) -> Constants:
    """Returns the constants of a chip."""
    found = constants_for([Place(chip)])
    return Constants(*(float(field[0]) for field in found))


def is_known(chip: Chip) -> bool:
    """Whether published steps on such chips are known."""
    return fitted("reached", chip).spread > 0


def constants_for(places: Sequence[Place], logs: np.ndarray | None = None) -> Constants:
    """Returns the constants of several steps, one number each; `logs` are other logarithms of `FREE`."""
    return Picked(places)(priors()["value"] if logs is None else logs)


class Picked:
    """For each step which value of each constant counts, so that many values can be tried."""

    def __init__(self, places: Sequence[Place]) -> None:
        every = list(FITTED)
        self._values = np.log([max(each.value, 1e-30) for each in FITTED.values()])
        self._free = np.array([every.index((each.name, each.group)) for each in FREE])
        chips = {place.chip.name: place.chip for place in places}
        found = {
            (name, chip): every.index((known.name, known.group))
            for name in _NAMES
            for chip, known in ((chip, fitted(name, of)) for chip, of in chips.items())
        }
        self._index = {name: np.array([found[name, place.chip.name] for place in places]) for name in _NAMES}
        self._power = np.log([_power(place) for place in places])
        self._years = np.array([(place.year - YEAR) * (place.chip.torus is None) for place in places])

    def __call__(self, logs: np.ndarray) -> Constants:
        """Returns the constants, if the free ones have these logarithms."""
        values = self._values.copy()
        values[self._free] = logs
        column = {name: np.exp(values[index]) for name, index in self._index.items()}
        column["reached"] = column["reached"] * np.exp(self._power * column["power"])
        for name in _FALLING:
            column[name] = column[name] * np.exp(-column["yearly"] * self._years)
        return Constants(**{name: column[name] for name in Constants._fields})


def _power(place: Place) -> float:
    """Returns the watts for each FLOP/s, as a multiple of those of the first chip of the family."""
    chip = place.chip
    watts = place.watts or chip.watts
    first = next((other for other in CHIPS.values() if other.family == chip.family and other.watts), None)
    if not (watts and chip.family and first and first.watts):
        return 1.0
    return (watts / chip.peak["bfloat16"]) / (first.watts / first.peak["bfloat16"])


def interval_of(kind: str) -> float:
    """Returns the factor by which 8 of 10 predictions were off at most: of `dense`, `sparse` or `assumed` ones."""
    return FITTED["interval", kind].value


def priors() -> Mapping[str, np.ndarray]:
    """Returns the logarithms of the priors of `FREE`, and their standard deviations."""
    return {
        "mean": np.log([each.prior for each in FREE]),
        "spread": np.array([each.spread for each in FREE]),
        "value": np.log([each.value for each in FREE]),
    }
