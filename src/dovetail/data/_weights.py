# SPDX-License-Identifier: Apache-2.0
"""Weights of the parts of a mixture, which may change over steps or rows: a curriculum, an annealing."""

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dovetail.config import REQUIRED, ConfigBase, ConfigError

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: its multiples spread most evenly.


class WeightSchedule(ConfigBase):
    """A weight that changes: known at some points, constant before the first of them and after the last."""

    points: tuple[tuple[int, float], ...] = REQUIRED  # As in ((0, 0.9), (1000, 0.5)): how many steps are done, and it.
    shape: Literal["linear", "constant"] = "linear"  # Between two points; constant: as at the earlier one.
    unit: Literal["step", "row"] = "step"

    def at(self, count: int) -> float:
        """Returns the weight after so many steps or rows."""
        index = bisect.bisect_right(self.points, (count, math.inf))
        if index == 0:
            return self.points[0][1]
        (start, before), following = self.points[index - 1], self.points[index : index + 1]
        if self.shape == "constant" or not following:
            return before
        ((stop, after),) = following
        return before + (after - before) * (count - start) / (stop - start)


Weight = float | WeightSchedule


class Weights:
    """The weights of a mixture at any row, from which the part of the row is chosen.

    Args:
        rows_per_step: counted over all streams.
    """

    def __init__(self, weights: Mapping[str, Weight], rows_per_step: int, place: str) -> None:
        self._weights, self._rows_per_step = weights, rows_per_step
        self._cuts: dict[tuple[Any, ...], list[int]] = {}
        self.by_step = any(isinstance(w, WeightSchedule) and w.unit == "step" for w in weights.values())
        self.is_constant = not any(isinstance(weight, WeightSchedule) for weight in weights.values())
        for name, weight in weights.items():
            _check(weight, f"{place}.{name}")
        self._check_sums(place)
        self._names = list(weights)
        self._constant = self.at(0) if self.is_constant else None
        self._usual = bounds_of(list(self._constant.values())) if self._constant is not None else None

    def _check_sums(self, place: str) -> None:
        """Raises if all weights are 0 at a time; between two points that is so only if it is so at both."""
        schedules = [weight for weight in self._weights.values() if isinstance(weight, WeightSchedule)]
        for unit in ("step", "row"):
            for count in sorted({point for each in schedules if each.unit == unit for point, _ in each.points}):
                row = count if unit == "row" else count * self._rows_per_step
                if not math.fsum(self.at(row).values()):
                    raise ConfigError(f"{place}: all are 0 after {count} {unit}s. Give one of the parts a weight then.")

    def at(self, row: int, since: Sequence[int] = (0, 0)) -> dict[str, float]:
        """Returns the weights for a row; `since` are a row, and how many steps were done before it."""
        first, steps = since
        done = {"row": row, "step": steps + (row - first) // self._rows_per_step}
        return {
            name: weight.at(done[weight.unit]) if isinstance(weight, WeightSchedule) else weight
            for name, weight in self._weights.items()
        }

    def choose(self, row: int, offset: int, ended: Sequence[str], since: Sequence[int]) -> str:
        """Returns the part that a row is drawn from, of those that have not ended."""
        if self._usual is not None and not ended:
            return self._names[choose(row, self._usual, offset)]
        names = [name for name in self._names if name not in ended]
        found = self.at(row, since) if self._constant is None else self._constant
        key = tuple(found[name] for name in names)
        if key not in self._cuts:
            if len(self._cuts) > 1000:  # Weights that change with each row.
                self._cuts.clear()
            self._cuts[key] = bounds_of(key if any(key) else [1.0] * len(key))
        return names[choose(row, self._cuts[key], offset)]

    def shares(self, row: int, ended: Sequence[str], since: Sequence[int]) -> dict[str, float]:
        """Returns the shares of the parts that have not ended, which sum up to 1; the same for all if none has one."""
        found = self.at(row, since) if self._constant is None else self._constant
        left = {name: weight for name, weight in found.items() if name not in ended}
        total = math.fsum(left.values())
        return {name: weight / total if total else 1 / len(left) for name, weight in left.items()}

    def fingerprint(self) -> dict[str, Any]:
        """Returns what the choice depends on, as JSON has it."""
        found = {
            name: [w.unit, w.shape, [list(point) for point in w.points]] if isinstance(w, WeightSchedule) else w
            for name, w in self._weights.items()
        }
        return {"weights": found, **({"rows_per_step": self._rows_per_step} if self.by_step else {})}


def _check(weight: Weight, place: str) -> None:
    if not isinstance(weight, WeightSchedule):
        if not 0 < weight < math.inf:
            raise ConfigError(f"{place}: is {weight}. Use a number above 0, or leave the part out.")
        return
    counts, values = [count for count, _ in weight.points], [value for _, value in weight.points]
    if not counts or counts[0] < 0 or any(a >= b for a, b in itertools.pairwise(counts)):
        raise ConfigError(f"{place}.points: is {weight.points}. Use points from 0 on, each after the one before.")
    if not all(0 <= value < math.inf for value in values) or not any(values):
        raise ConfigError(f"{place}.points: is {weight.points}. Use weights from 0 on, not all of them 0.")


def bounds_of(weights: Sequence[float]) -> list[int]:
    """Returns the numbers that cut the range up to 2**64 in proportion to `weights`."""
    total = math.fsum(weights)
    return [int(share / total * 2**64) for share in itertools.accumulate(weights)][:-1]


def choose(number: int, bounds: Sequence[int], offset: int) -> int:
    """Returns the part from which the row of this number, counted over all streams, is drawn."""
    return bisect.bisect_right(bounds, (offset + number * _GOLDEN) % 2**64)
