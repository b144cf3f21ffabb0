# SPDX-License-Identifier: Apache-2.0
"""The fastest ways to run a recipe on some hardware, of all that fit: thousands are predicted in one go."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dovetail.hardware import Hardware
from dovetail.module import specs
from dovetail.parallel import BatchShape, fits
from dovetail.progress import phase
from dovetail.train import Trainer, batch_shape

from ._candidates import NAMES, Candidates, candidates
from ._cost import step_parts
from ._fast import Chips, seconds_of
from ._predict import run_of
from ._work import Work, work_of

TIE = 0.03  # Predictions that differ by less do not say which is faster.
_NEAR = 0.10  # Of the best: who is looked at more closely.


class Found(NamedTuple):
    """The candidates of a search, the fastest first."""

    base: Trainer.Config  # What the mesh rules made.
    hardware: Hardware
    chips: Chips
    work: Work
    candidates: Candidates
    seconds: np.ndarray

    def config(self, at: int) -> Trainer.Config:
        """Returns the config of a trainer that runs so."""
        return self.candidates.config(at, self.base, self.hardware)

    def parts(self, at: int) -> dict[str, float]:
        """Returns the seconds of each part of a step."""
        one = self.candidates.where(np.array([at]))
        found = step_parts(self.work, one.run(self.base.input.batch_size), self.chips.machine, self.chips.constants)
        return {name: float(value) for name, value in ((k, np.ravel(v)[0]) for k, v in found.items()) if value > 0}

    def seconds_of(self, cfg: Trainer.Config) -> float:
        """Returns the prediction for a config of the same model, which need not be a candidate."""
        parts = step_parts(self.work, run_of(cfg), self.chips.machine, self.chips.constants)
        return float(sum(parts.values()))

    def features(self, at: int) -> tuple[float, ...]:
        """Returns what tells a candidate from others, as numbers."""
        return tuple(_features(self.candidates.where(np.array([at])))[0].tolist())

    def gib(self, at: int) -> float:
        """Returns the estimate of the memory of a chip."""
        return float(self.candidates.bytes[at]) * self.hardware.chip.devices / 2**30


def search(base: Trainer.Config, hardware: Hardware, fixed: Mapping[str, Any] = {}, **options: Any) -> Found:
    """Returns all candidates that fit, the fastest first; `base` is what the mesh rules made.

    `fixed` and `options` are those of `candidates`. What is predicted to be equal is in the order of simplicity: few
    axes, few microbatches, nothing on the host.
    """
    chips, work = Chips(hardware), work_of(base)
    found = candidates(base, hardware, fixed, **options)
    with phase(f"predicting {len(found.bytes):,} ways to run on {hardware.name}"):
        seconds = seconds_of(work, found.run(base.input.batch_size), chips)
    keys = [found.bytes, found.rounds, *_simplicity(found), np.round(seconds, 9)]  # The last counts first.
    order = np.lexsort(np.stack(keys))
    return Found(base, hardware, chips, work, found.where(order), seconds[order])


def is_tie(a: float, b: float) -> bool:
    """Whether two times are too close to say which is shorter.

    >>> is_tie(1.0, 1.02), is_tie(1.02, 1.0), is_tie(1.0, 1.04)
    (True, True, False)
    """
    return max(a, b) / min(a, b) < 1 + TIE


def near_the_best(found: Found, count: int) -> list[int]:
    """Returns the best, and of those within a tenth of it the ones that differ most from those before them."""
    near = np.flatnonzero(found.seconds <= found.seconds[0] * (1 + _NEAR)) if len(found.seconds) else np.zeros(0, int)
    return [int(near[i]) for i in most_different(_features(found.candidates.where(near)), count)]


def simplest(found: Found) -> int | None:
    """Returns the one with the fewest axes, then microbatches, of those that are as fast as the best; None of none."""
    if not len(found.seconds):
        return None
    tied = found.candidates.where(np.flatnonzero(found.seconds < found.seconds[0] * (1 + TIE)))
    return int(np.lexsort(np.stack(_simplicity(tied)))[0])


def _simplicity(found: Candidates) -> list[np.ndarray]:
    """Returns what makes a way to run less simple, what counts most last: offloading, microbatches, axes."""
    axes = np.stack([size > 1 for size in found.sizes.values()]).sum(0)
    return [found.offloaded, found.microbatches * found.staged, axes]


def most_different(points: np.ndarray, count: int) -> list[int]:
    """Returns the first point, then each time the one that is farthest from those chosen; the first of equals.

    >>> most_different(np.array([[0.0], [1.0], [5.0], [2.0]]), 3)
    [0, 2, 3]
    """
    chosen = [0] if len(points) else []
    distance = np.abs(points - points[:1]).sum(-1)
    while len(chosen) < min(count, len(points)) and distance.max() > 0:
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.abs(points - points[chosen[-1]]).sum(-1))
    return chosen


def _features(found: Candidates) -> np.ndarray:
    """Returns what makes candidates different: logarithms of sizes, and what is kept."""
    sizes = [np.log2(size) for size in found.sizes.values()]
    counts = [np.log2(found.microbatches * found.staged), np.log2(found.rounds), 2.0 * found.remat]
    return np.stack([*sizes, *counts], -1)


def divides(cfg: Trainer.Config) -> bool:
    """Whether the mesh of a config divides its model and batch, by the check that a run makes."""
    batch: BatchShape = batch_shape(cfg.input.batch_specs(), cfg.num_microbatches)
    return fits(cfg.mesh, specs(cfg.model.build(path="model")), batch)


def place_of(found: Found, cfg: Trainer.Config) -> int | None:
    """Returns where a config is among the candidates; None if it is not."""
    mine = found.candidates
    same = np.ones(len(found.seconds), bool)
    for axis, size in cfg.mesh.sizes.items():
        same &= mine.sizes[axis] == size
    same &= (mine.microbatches == cfg.num_microbatches) & (mine.staged == cfg.mesh.num_microbatches)
    same &= (mine.rounds == cfg.mesh.rounds) & (mine.remat == NAMES.index(cfg.remat or "save_all"))
    places: Sequence[int] = np.flatnonzero(same).tolist()
    return places[0] if places else None
