# SPDX-License-Identifier: Apache-2.0
"""`dovetail predict ... --calibrate RUNS`: runs of one's own, as what a prediction is corrected by."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.config import ConfigError
from dovetail.hardware import Chip, hardware
from dovetail.progress import METRICS, json_lines

from ._resolve import resolve

if TYPE_CHECKING:
    from dovetail.plan import Observed


def observed(directories: Sequence[str], chip: Chip) -> "list[Observed]":
    """Returns runs, which were made on such chips, with the time of their steps."""
    from dovetail.plan import Observed
    from dovetail.train import size_of

    found: list[Observed] = []
    for directory in directories:
        cfg = resolve(directory, devices=False, weights=False).cfg
        size = size_of(cfg)
        rates = list(_rates(Path(directory), f"{size.unit}s_per_second"))
        if not rates:
            raise ConfigError(
                f"{directory}: {METRICS} has no line with {size.unit}s_per_second, so it is not known how long steps "
                "took.\n  Give the directory of a run that has made some steps."
            )
        chips, rest = divmod(cfg.mesh.num_devices, chip.devices)
        if rest:
            raise ConfigError(
                f"{directory}: its mesh has {cfg.mesh.num_devices} devices; {chip.name} has {chip.devices}."
            )
        on = hardware(f"{chip.name}-{chips * chip.unit}")
        found.append(Observed(directory, cfg, on, size.units / statistics.median(rates)))
    return found


def _rates(directory: Path, name: str) -> Iterator[float]:
    if not (directory / METRICS).is_file():
        raise ConfigError(f"{directory}: there is no {METRICS} in it.\n  Give the directory of a run.")
    for record in json_lines(directory / METRICS):
        rate = record.get(name)
        if isinstance(rate, int | float) and rate > 0:
            yield float(rate)
