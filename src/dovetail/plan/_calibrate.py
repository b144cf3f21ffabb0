# SPDX-License-Identifier: Apache-2.0
"""Corrects a prediction by runs of one's own: what they took, beside what was predicted of them.

Runs on one cluster are off together, and those that are alike even more; `_fit` says by how much. So a run of the same
model on as many chips counts nearly in full, one of another model a little.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dovetail.hardware import Hardware
from dovetail.train import Trainer

from ._constants import YEAR
from ._fit import Labels, Spreads, covariance
from ._predict import Prediction, predict


class Observed(NamedTuple):
    """A run that was made, and the seconds of its steps."""

    name: str
    cfg: Trainer.Config
    hardware: Hardware
    seconds: float


class Compared(NamedTuple):
    """A run beside its prediction."""

    name: str
    hardware: str
    measured_seconds: float
    predicted_seconds: float


class Calibration(NamedTuple):
    """What runs say of a prediction."""

    factor: float  # By which the prediction was multiplied.
    narrowed: float  # The exponent of the factor of the interval: 1 without any run, less with each that is alike.
    runs: list[Compared]


def calibrated(
    found: Prediction, cfg: Trainer.Config, hardware: Hardware, runs: Sequence[Observed]
) -> tuple[Prediction, Calibration]:
    """Returns the prediction as these runs correct it, and how."""
    compared = [
        Compared(run.name, run.hardware.name, run.seconds, predict(run.cfg, run.hardware).step_seconds) for run in runs
    ]
    off = np.log([each.measured_seconds / each.predicted_seconds for each in compared])
    shared = covariance(
        _labels([cfg, *(run.cfg for run in runs)], [hardware, *(run.hardware for run in runs)]), Spreads()
    )
    weights = np.linalg.solve(shared[1:, 1:], shared[1:, 0])
    factor = float(np.exp(weights @ off))
    narrowed = float(np.sqrt(max(0.0, 1 - weights @ shared[1:, 0] / shared[0, 0])))
    spread = (found.interval[1] / found.step_seconds) ** narrowed
    slowed = found.slowed(factor)
    corrected = slowed._replace(
        interval=(slowed.step_seconds / spread, slowed.step_seconds * spread),
        assumptions=[*found.assumptions, _said(factor, compared)],
    )
    return corrected, Calibration(factor, narrowed, compared)


def _said(factor: float, runs: Sequence[Compared]) -> str:
    each = ", ".join(
        f"{run.name} took {run.measured_seconds:.3g} s, predicted were {run.predicted_seconds:.3g} s" for run in runs
    )
    return f"all times are multiplied by {factor:.3g}, after {len(runs)} of your runs: {each}"


def _labels(cfgs: Sequence[Trainer.Config], on: Sequence[Hardware]) -> Labels:
    known: list[object] = []

    def number(value: object) -> int:
        """Returns the same number for what is equal."""
        if value not in known:
            known.append(value)
        return known.index(value)

    models = [number(cfg.model) for cfg in cfgs]
    cells = [
        (model, hardware.chip.name, cfg.compute_dtype) for model, hardware, cfg in zip(models, on, cfgs, strict=True)
    ]
    settings = [
        (cell, cfg.mesh, cfg.num_microbatches, cfg.remat, cfg.input.batch_size)
        for cell, cfg in zip(cells, cfgs, strict=True)
    ]
    same = np.zeros(len(cfgs), int)
    return Labels(
        system=same,
        kind=same,
        model_on_chip=np.array([number(cell[:2]) for cell in cells]),
        cell=np.array([number(cell) for cell in cells]),
        setting=np.array([number(setting) for setting in settings]),
        source=same,
        year=np.full(len(cfgs), YEAR),
    )
