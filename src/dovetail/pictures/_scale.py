# SPDX-License-Identifier: Apache-2.0
"""Scales: from values to places along an axis, and the round numbers that stand there."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ._text import number

LARGEST = 1e30  # What is larger has diverged, and would press all else into a line.


class Scale(NamedTuple):
    """Values from `low` to `high`, on pixels from `start` to `end`; logarithmic or not."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Returns where a value is; what is outside is at the nearer end."""
        low, high = (_log(each) for each in (self.low, self.high)) if self.log else (self.low, self.high)
        share = ((_log(value) if self.log else value) - low) / (high - low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Returns round numbers in the range, about so many."""
        return _log_ticks(self.low, self.high, count) if self.log else _ticks(self.low, self.high, count)

    def labels(self, count: int = 5) -> list[tuple[float, str]]:
        """Returns ticks with what is written there: as many digits as tell them apart."""
        ticks = self.ticks(count)
        gap = min((b - a for a, b in itertools.pairwise(ticks)), default=1.0)
        if not self.log and ticks and 1e-6 < gap < 1 and max(map(abs, ticks)) < 1e4:
            digits = max(0, -math.floor(math.log10(gap) + 1e-9))
            return [(tick, f"{tick:.{digits}f}") for tick in ticks]
        return [(tick, number(tick)) for tick in ticks]


def scale_of(values: Iterable[float], start: float, end: float, *, log: bool = False, margin: float = 0.04) -> Scale:
    """Returns a scale on which all these values have a place; others have none."""
    usable = [each for each in values if math.isfinite(each) and abs(each) < LARGEST and (each > 0 or not log)]
    low, high = (min(usable), max(usable)) if usable else (1.0, 10.0) if log else (0.0, 1.0)
    if log:
        room = max((high / low) ** margin, 1.02) if high / low < 1e300 else 10.0
        return Scale(low / room, high * room, start, end, log=True)
    room = max((high - low) * margin, abs(high) * 0.05 if high == low else 0.0)
    room = room if room > 1 / LARGEST else 0.5
    return Scale(low - room, high + room, start, end)


def _ticks(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.7)
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [each * step for each in numbers]


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    """Returns powers of ten; over fewer than two of them, also what lies between, or plain ticks."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first >= 2:
        every = max(1, round((last - first + 1) / max(count, 1)))
        return [10.0**power for power in range(first, last + 1, every)]
    between = [each * 10.0**power for power in range(first - 1, last + 1) for each in (1, 2, 5)]
    inside = [each for each in between if low <= each <= high]
    return inside if len(inside) >= 3 else [each for each in _ticks(low, high, count) if each > 0]


def _log(value: float) -> float:
    return math.log10(value) if value > 0 else -math.inf


def finite(values: Sequence[float]) -> Iterator[int]:
    """Yields where values are that have a place on a scale."""
    return (i for i, value in enumerate(values) if math.isfinite(value) and abs(value) < LARGEST)
