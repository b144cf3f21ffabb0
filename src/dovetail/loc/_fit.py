# SPDX-License-Identifier: Apache-2.0
"""How lines grow: the fit of `lines = c * N^a * M^b`, with intervals."""

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

import numpy as np

_A = TypeVar("_A")
_B = TypeVar("_B")
_ROUNDING = 9  # Digits: a power of 1e-16 is one of 0.


class Interval(NamedTuple):
    """An estimate, and the middle 95 % of what other draws give."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Growth(NamedTuple):
    """How lines grow with models and variants."""

    factor: Interval  # c
    models: Interval  # a
    variants: Interval  # b
    points: tuple[tuple[int, int, float], ...]  # N, M, and the mean of the lines over all draws.


def growth(
    models: Sequence[_A],
    variants: Sequence[_B],
    lines: Callable[[Sequence[_A], Sequence[_B]], int],
    *,
    draws: int,
    seed: int = 0,
) -> Growth:
    """Fits the lines for 1, 2, 4, ... models and variants, of which each draw takes other ones.

    Each draw is fitted by least squares of logarithms; the estimate is that of all draws together. Where the lines are
    the same for every choice, the intervals have no width: there is nothing to estimate.
    """
    random, fits, points = Random(seed), list[list[float]](), dict[tuple[int, int], list[int]]()
    for _ in range(draws):
        drawn, kinds = random.sample(models, len(models)), random.sample(variants, len(variants))
        found = {(n, m): lines(drawn[:n], kinds[:m]) for n in _powers(len(models)) for m in _powers(len(variants))}
        fits.append(_fit([(n, m, count) for (n, m), count in found.items()]))
        for place, count in found.items():
            points.setdefault(place, []).append(count)
    whole = _fit([(n, m, count) for (n, m), counts in points.items() for count in counts])
    means = tuple((n, m, sum(counts) / len(counts)) for (n, m), counts in points.items())
    lows, highs = np.percentile(np.array(fits), [2.5, 97.5], axis=0)
    factor, a, b = map(_interval, whole, lows, highs)
    return Growth(factor, a, b, means)


def _fit(points: Sequence[tuple[int, int, int]]) -> list[float]:
    """Returns c, a and b."""
    known = np.array([[1.0, math.log(n), math.log(m)] for n, m, _ in points])
    solution = np.linalg.lstsq(known, np.log([count for _, _, count in points]), rcond=None)[0]
    return [math.exp(solution[0]), *solution[1:]]


def _interval(value: float, low: float, high: float) -> Interval:
    return Interval(*(round(float(number), _ROUNDING) + 0.0 for number in (value, low, high)))


def _powers(limit: int) -> list[int]:
    return [2**i for i in range(limit.bit_length()) if 2**i <= limit]
