# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of predictions to measured steps, and says how well those of groups that were left out are met.

What is left after the formulas is no independent noise: rows of one system, one release, one model on one chip, one
setting are off together. So constants are fitted by generalised least squares under priors, with these correlations;
and the same correlations say what is known of a step from others that are like it, which is how a prediction is
calibrated (kriging).
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._constants import Picked, Place, priors
from ._cost import Machine, Run, stacked, step_parts
from ._measured import Rebuilt

_STEP = 1e-3  # For derivatives.
_ROUNDS = 4  # Of Gauss and Newton, and of down-weighting rows that are far off.
_FAR = 0.35  # From here on, in logarithms, a row counts less.
_LOOSE = 0.15  # What is added to the noise of such a row.


class Spreads(NamedTuple):
    """Standard deviations, in logarithms, of what rows that are alike share."""

    system: float = 0.12
    kind: float = 0.05  # Of a system's models of one kind, at about the same time.
    model_on_chip: float = 0.10
    cell: float = 0.15  # Model, chip, precision and system, at about the same time,
    setting: float = 0.20  # and the mesh and batch as well.
    source: float = 0.02
    noise: float = 0.03
    years: float = 0.5  # In which releases become other software.


class Labels(NamedTuple):
    """What is known of each row, by which some are alike."""

    system: np.ndarray
    kind: np.ndarray
    model_on_chip: np.ndarray
    cell: np.ndarray
    setting: np.ndarray
    source: np.ndarray
    year: np.ndarray


class Table:
    """Measured steps, as arrays."""

    def __init__(self, steps: Sequence[Rebuilt], spreads: Spreads | None = None) -> None:
        self.steps = list(steps)
        self.work = stacked([step.work for step in steps])
        runs, machines = [step.run for step in steps], [step.machine for step in steps]
        sizes = {axis: np.array([run.sizes[axis] for run in runs]) for axis in runs[0].sizes}
        self.run = Run(sizes, *(np.array([getattr(run, name) for run in runs]) for name in Run._fields[1:]))
        self.machine = Machine(*(np.array([getattr(each, name) for each in machines]) for name in Machine._fields))
        self.seconds = np.array([step.measured.seconds for step in steps])
        of = [step.measured for step in steps]
        self.constants = Picked([Place(each.hardware.chip, each.watts, each.year) for each in of])
        self.labels = _labels(self.steps)
        self.covariance = covariance(self.labels, spreads or Spreads())

    def errors(self, logs: np.ndarray | None = None) -> np.ndarray:
        """Returns the logarithm of predicted over measured time, for the constants as they are, or others."""
        k = self.constants(priors()["value"] if logs is None else logs)
        parts = step_parts(self.work, self.run, self.machine, k)
        return np.log(sum(parts.values()) / self.seconds)

    def linearised(self, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the errors and their derivatives."""
        found = self.errors(logs)
        changed = [self.errors(logs + _STEP * unit) for unit in np.eye(len(logs))]
        return found, np.stack([(each - found) / _STEP for each in changed], 1)

    @functools.cached_property
    def fit(self) -> np.ndarray:
        """The logarithms of the constants that fit best."""
        logs, rows = priors()["mean"], np.ones(len(self.steps), bool)
        for _ in range(_ROUNDS):
            step, _ = self.solve(rows, logs, *self.linearised(logs))
            logs = logs + np.clip(step, -0.5, 0.5)
        return logs

    @functools.cached_property
    def _at_fit(self) -> tuple[np.ndarray, np.ndarray]:
        return self.linearised(self.fit)

    def solve(
        self, rows: np.ndarray, logs: np.ndarray, errors: np.ndarray, slopes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the change of the constants that fits these rows best, and the covariance of their errors."""
        prior = priors()
        covariance, weights = self.covariance[np.ix_(rows, rows)], np.ones(int(rows.sum()))
        own, change = covariance, np.zeros(len(logs))
        for _ in range(_ROUNDS):
            own = covariance + np.diag((1 / weights - 1) * _LOOSE**2)
            factor = np.linalg.cholesky(own)
            scaled, left = np.linalg.solve(factor, slopes[rows]), np.linalg.solve(factor, errors[rows])
            precision = scaled.T @ scaled + np.diag(prior["spread"] ** -2)
            change = np.linalg.solve(precision, -scaled.T @ left - (logs - prior["mean"]) / prior["spread"] ** 2)
            rest = np.abs(errors + slopes @ change)[rows]
            weights = np.maximum(1.0, rest / _FAR) ** -2
        return change, own

    def left_out(self, groups: np.ndarray, *, calibrated: bool = False) -> np.ndarray:
        """Returns the error of each row, for constants that were fitted without its group.

        The derivatives are those at the fit to all rows. `calibrated`: corrected by what rows of other groups that are
        like it were off.
        """
        logs, (errors, slopes) = self.fit, self._at_fit
        found = np.zeros(len(errors))
        for group in np.unique(groups):
            rows = groups != group
            if not rows.any():
                found[~rows] = errors[~rows]
                continue
            change, own = self.solve(rows, logs, errors, slopes)
            rest = errors + slopes @ change
            if calibrated:
                rest = rest - self.covariance[:, rows] @ np.linalg.solve(own, rest[rows])
            found[~rows] = rest[~rows]
        return found


def _labels(steps: Sequence[Rebuilt]) -> Labels:
    of = [step.measured for step in steps]
    chips = [each.hardware.chip.name for each in of]
    both = [f"{each.model.lower()}|{chip}" for each, chip in zip(of, chips, strict=True)]
    cells = [f"{each.system}|{name}|{each.precision}" for each, name in zip(of, both, strict=True)]
    layouts = [
        f"{sorted(step.run.sizes.items())}|{step.run.microbatches}|{step.run.rows}|{step.run.rounds}" for step in steps
    ]
    return Labels(
        system=np.array([each.system for each in of]),
        kind=np.array([f"{each.system}|{step.kind}" for each, step in zip(of, steps, strict=True)]),
        model_on_chip=np.array(both),
        cell=np.array(cells),
        setting=np.array([f"{cell}|{layout}" for cell, layout in zip(cells, layouts, strict=True)]),
        source=np.array([each.source for each in of]),
        year=np.array([each.year for each in of]),
    )


def covariance(labels: Labels, spreads: Spreads) -> np.ndarray:
    """Returns how the errors of rows go together, by what they share."""

    def same(name: str) -> np.ndarray:
        column = getattr(labels, name)
        return getattr(spreads, name) ** 2 * (column[:, None] == column[None, :])

    near = np.exp(-np.abs(labels.year[:, None] - labels.year[None, :]) / spreads.years)
    lasting = same("system") + same("model_on_chip") + same("source")
    passing = same("kind") + same("cell") + same("setting")
    return lasting + near * passing + spreads.noise**2 * np.eye(len(labels.year))
