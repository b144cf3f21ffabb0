# SPDX-License-Identifier: Apache-2.0
"""Which steps stay: the newest, every so many, the best by a metric; and never one less than a good one.

What is known of steps besides their files is in a record beside them: their values of the metric, and which of them are
damaged. So a run that goes on knows it too.
"""

import logging
import math
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from dovetail.config import REQUIRED, ConfigBase, ConfigError
from dovetail.storage import reason

from ._errors import CheckpointError, CorruptionError
from ._files import seal, unseal
from ._store import Store

_log = logging.getLogger(__name__)


class KeepBest(ConfigBase):
    """Steps that stay because a model was good there."""

    metric: str = REQUIRED  # As an evaluator reports it: `eval/loss`.
    count: int = 1  # The best this many steps are kept.
    mode: Literal["min", "max"] = "min"  # What is better: less or more.


def check_keep(where: str, keep: int | None, keep_every: int | None, best: KeepBest | None) -> None:
    """Raises a ConfigError for numbers that make no sense."""
    counts = {"keep": keep, "keep_every": keep_every, "keep_best.count": best.count if best else None}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"{where}.{name}: expected a number of 1 or more, or None; found {count}.")


class Keeper:
    """What the first process knows of the steps of a store, and what it deletes. Any thread may call."""

    def __init__(self, store: Store, keep: int | None, keep_every: int | None, best: KeepBest | None) -> None:
        self._store, self._keep, self._keep_every, self._best = store, keep, keep_every, best
        self._scores: dict[int, float] = {}
        self._damaged: set[int] = set()
        self._unknown: set[int] = set()  # Steps whose values are lost: none of them is deleted.
        self._is_read, self._written = False, b""
        self._lock = threading.Lock()

    def report(self, step: int, value: float) -> None:
        """Notes the value of the metric after a step, which need not be saved (yet)."""
        if self._best is None:
            return
        with self._lock:
            self._read()
            self._scores[step] = value
            self._write()

    def found_damaged(self, steps: Iterable[int]) -> None:
        """Notes that steps are damaged; it is written down with the next save: readers write nothing."""
        with self._lock:
            self._damaged |= set(steps)

    def discard_expired(self, saved: int) -> None:
        """Deletes steps that nothing keeps, after a new one is finished; as long as that can be read."""
        with self._lock:
            self._read()
            self._damaged.discard(saved)
            self._unknown.discard(saved)
            steps = self._store.steps()
            try:
                self._store.check(saved, self._store.manifest(saved))
            except CorruptionError as e:
                _log.warning("%s\n  It was just written: no older step is deleted.", e)
                self._damaged.add(saved)
            good = [step for step in steps if step not in self._damaged]
            best = best_of(good, self._scores, self._best)
            for step in expired(good, keep=self._keep, keep_every=self._keep_every, best={*best, *self._unknown}):
                try:
                    self._store.discard(step)
                except CheckpointError as e:  # The new step is safe, and what is left of the old one does no harm.
                    _log.warning("%s", e)
            there = {*self._store.steps(), saved}
            self._scores = {step: value for step, value in self._scores.items() if step in there or step > saved}
            self._damaged &= there
            self._unknown &= there
            self._write()

    def _read(self) -> None:
        if self._is_read:
            return
        self._is_read = True
        try:
            data = self._store.read_record()
            if data is None:
                return
            record = unseal(data)
            self._damaged |= set(map(int, record["damaged"]))
            self._unknown |= set(map(int, record["unknown"]))
            metric = self._best.metric if self._best else ""
            self._scores |= {int(step): float(value) for step, value in record["metrics"].get(metric, {}).items()}
        except (OSError, CheckpointError, ValueError, KeyError, TypeError, AttributeError) as e:
            if self._best is not None:
                self._unknown = set(self._store.steps())
                _log.warning(
                    "checkpoint %s: what is known of its steps cannot be read: %s\n"
                    "  Which of them are the best is lost: all that are there now are kept.",
                    self._store.where,
                    reason(e),
                )

    def _write(self) -> None:
        scores = {str(step): value for step, value in sorted(self._scores.items()) if math.isfinite(value)}
        content: dict[str, Any] = {"damaged": sorted(self._damaged), "unknown": sorted(self._unknown), "metrics": {}}
        if self._best is not None:
            content["metrics"][self._best.metric] = scores
        data = seal(content)
        if data == self._written or (not self._written and not (scores or self._damaged or self._unknown)):
            return
        try:
            self._store.write_record(data)
            self._written = data
        except (OSError, CheckpointError) as e:
            _log.warning("checkpoint %s: the values of steps are not written: %s", self._store.where, reason(e))


def best_of(steps: Iterable[int], scores: Mapping[int, float], best: KeepBest | None) -> list[int]:
    """Returns the steps with the best values, the best one first; of equal ones, the newer.

    >>> best_of([10, 20, 30], {10: 1.0, 20: 0.5, 25: 0.1, 30: 0.5}, KeepBest(metric="eval/loss", count=2))
    [30, 20]
    """
    if best is None:
        return []
    sign = 1 if best.mode == "min" else -1
    known = [step for step in steps if math.isfinite(scores.get(step, math.nan))]
    return sorted(known, key=lambda step: (sign * scores[step], -step))[: best.count]


def expired(steps: Iterable[int], *, keep: int | None, keep_every: int | None, best: Collection[int] = ()) -> list[int]:
    """Returns the steps to delete: all but the newest `keep`, the multiples of `keep_every`, and `best`.

    >>> expired([10, 20, 30, 40, 50], keep=2, keep_every=20)
    [10, 30]
    """
    old = sorted(steps)[: -keep if keep else 0]
    return [step for step in old if step not in best and not (keep_every and step % keep_every == 0)]
