# SPDX-License-Identifier: Apache-2.0
"""The time of many runs by arithmetic, with the constants of a chip."""

from collections.abc import Mapping

import numpy as np

from dovetail.hardware import Hardware

from ._constants import constants_of, interval_of
from ._cost import Constants, Machine, Run, step_parts
from ._measured import machine_of
from ._predict import check_predictable
from ._work import Numbers, Work

_CHUNK = 2048  # Runs whose arrays stay in a cache of the processor.


def spread_of(work: Work) -> float:
    """Returns the factor around a prediction in which 8 of 10 published steps lay."""
    return interval_of("sparse" if work.sparse or work.kernels.recurrent.any() else "dense")


class Chips:
    """Some hardware, as all predictions for it need it."""

    machine: Machine
    constants: Constants

    def __init__(self, hardware: Hardware) -> None:
        check_predictable(hardware)
        self.hardware = hardware
        self.machine = machine_of(hardware, devices=hardware.chip.devices)
        self.constants = constants_of(hardware.chip)

    def changed(self, *, machine: Mapping[str, Numbers] = {}, constants: Mapping[str, Numbers] = {}) -> "Chips":
        """Returns such hardware with some figures changed."""
        other = Chips(self.hardware)
        other.machine, other.constants = self.machine._replace(**machine), self.constants._replace(**constants)
        return other


def seconds_of(work: Work, run: Run, chips: Chips) -> np.ndarray:
    """Returns the seconds of a step for arrays of runs, as many at a time as are fast."""
    found = []
    for start in range(0, len(run.microbatches), _CHUNK):
        here = slice(start, start + _CHUNK)
        sizes = {axis: size[here] for axis, size in run.sizes.items()}
        fields = {name: getattr(run, name)[here] for name in ("microbatches", "rounds", "remat", "offloaded")}
        some = run._replace(sizes=sizes, **fields)
        found.append(sum(step_parts(work, some, chips.machine, chips.constants).values()))
    return np.concatenate(found) if found else np.zeros(0)
