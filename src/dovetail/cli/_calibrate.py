# SPDX-License-Identifier: Apache-2.0
"""`dovetail predict ... --calibrate RUNS`: runs of one's own, as what a prediction is corrected by."""

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config import ConfigError
from dovetail.hardware import Chip, hardware

from ._resolve import resolve

if TYPE_CHECKING:
    from dovetail.plan import Observed

_METRICS = "metrics.jsonl"


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
                f"{directory}: {_METRICS} has no line with {size.unit}s_per_second, so it is not known how long steps "
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
    try:
        lines = (directory / _METRICS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{directory}: {_METRICS} cannot be read: {e}\n  Give the directory of a run.") from e
    for line in lines:
        try:
            record: Any = json.loads(line)
        except ValueError:  # The last line of a run that was killed.
            continue
        rate = record.get(name) if isinstance(record, dict) else None
        if isinstance(rate, int | float) and rate > 0:
            yield float(rate)
