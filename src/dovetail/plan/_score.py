# SPDX-License-Identifier: Apache-2.0
"""How far predictions are from measured steps, as they are and as they would be without a part of the measurements."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dovetail.config import ConfigError
from dovetail.progress import phase

from ._constants import interval_of
from ._fit import Table
from ._measured import Measured, Rebuilt, rebuilt

_APART = 1.1  # Steps that differ by less are not compared.
_ENOUGH = 20  # Rows, below which nothing is left out: there is too little to fit.


class Error(NamedTuple):
    """Of several rows: the median and the 90th percentile of |predicted / measured - 1|, and how many there are."""

    median: float
    p90: float
    rows: int


class Score(NamedTuple):
    """Predictions beside measurements."""

    rebuilt: int
    rows: list[dict[str, Any]]  # In the order of the table; those that could not be rebuilt have a `reason`.
    median_error: float
    p90_error: float
    coverage: float  # The share of rows in their interval.
    ordered: float  # Of pairs of one source and model that differ by more than 10 %, those in the right order.
    by: Mapping[str, Mapping[str, Error]]  # By chip, kind of model, precision, system and source.
    left_out: Mapping[str, Mapping[str, Error]]  # By what was left out of the fit, and kind of model.
    left_out_coverage: float | None


def score(rows: Sequence[Mapping[str, str]], rebuild: Callable[[Mapping[str, str]], Measured]) -> Score:
    """Returns how well the rows of a table are predicted.

    Args:
        rebuild: makes a measured step of a row, or raises a ConfigError that says why it cannot.
    """
    found: list[dict[str, Any]] = []
    steps: list[Rebuilt] = []
    with phase("predicting", len(rows), unit="steps") as predicted:
        for number, row in enumerate(rows, start=1):
            entry: dict[str, Any] = {"row": number, **{name: row.get(name, "") for name in ("system", "model", "hw")}}
            found.append(entry)
            try:
                steps.append(rebuilt(rebuild(row)))
                entry["step"] = len(steps) - 1
            except ConfigError as e:
                entry["reason"] = str(e).splitlines()[0]
            predicted.advance()
    if not steps:
        raise ConfigError("no row of the table can be rebuilt; the first says: " + found[0].get("reason", "nothing"))
    table = Table(steps)
    errors = table.errors()
    spreads = np.array([interval_of(_kind(step)) for step in steps])
    for entry in found:
        if "step" in entry:
            place = entry.pop("step")
            _fill(entry, steps[place], float(errors[place]))
    dense = np.array([not step.is_sparse for step in steps])
    with phase("leaving parts out of the fit"):
        left_out, coverage = _left_out(table, dense) if len(steps) >= _ENOUGH else ({}, None)
    every = _error(errors)
    return Score(
        rebuilt=len(steps),
        rows=found,
        median_error=every.median,
        p90_error=every.p90,
        coverage=float(np.mean(np.abs(errors) <= np.log(spreads))),
        ordered=_ordered(table, errors),
        by=_by(steps, errors),
        left_out=left_out,
        left_out_coverage=coverage,
    )


def _kind(step: Rebuilt) -> str:
    return "assumed" if step.assumed_mesh else "sparse" if step.is_sparse else "dense"


def _fill(entry: dict[str, Any], step: Rebuilt, error: float) -> None:
    predicted, spread = step.measured.seconds * float(np.exp(error)), interval_of(_kind(step))
    entry |= {
        "hardware": step.measured.hardware.name,
        "kind": step.kind,
        "precision": step.measured.precision,
        "source": step.measured.source,
        "measured_seconds": step.measured.seconds,
        "predicted_seconds": predicted,
        "error": float(np.exp(error) - 1),
        "interval": (predicted / spread, predicted * spread),
        "assumptions": step.assumptions,
    }


def _error(logs: np.ndarray) -> Error:
    off = np.abs(np.exp(logs) - 1)
    return Error(float(np.median(off)), float(np.quantile(off, 0.9)), len(off))


def _by(steps: Sequence[Rebuilt], errors: np.ndarray) -> dict[str, dict[str, Error]]:
    columns = {
        "chip": [step.measured.hardware.chip.name for step in steps],
        "kind": [step.kind for step in steps],
        "precision": [step.measured.precision for step in steps],
        "system": [step.measured.system for step in steps],
        "source": [step.measured.source for step in steps],
    }
    found: dict[str, dict[str, Error]] = {}
    for name, column in columns.items():
        values = np.array(column)
        found[name] = {str(value): _error(errors[values == value]) for value in np.unique(values)}
    return found


def _left_out(table: Table, dense: np.ndarray) -> tuple[dict[str, dict[str, Error]], float]:
    """Returns errors by what was left out of the fit, and how many rows lie in intervals from the other systems."""
    labels = table.labels
    ways = {
        "system": table.left_out(labels.system),
        "model and chip": table.left_out(labels.model_on_chip),
        "source": table.left_out(labels.source),
        "source, calibrated by the others": table.left_out(labels.source, calibrated=True),
    }
    kinds = {"all": np.ones(len(dense), bool), "dense": dense, "sparse": ~dense}
    found = {
        way: {kind: _error(errors[rows]) for kind, rows in kinds.items() if rows.any()} for way, errors in ways.items()
    }
    errors, inside = np.abs(ways["system"]), 0
    kind = np.array([_kind(step) for step in table.steps])
    for i in range(len(errors)):
        others = (labels.system != labels.system[i]) & (kind == kind[i])
        inside += errors[i] <= (
            np.quantile(errors[others], 0.8) if others.sum() >= 10 else np.log(interval_of(kind[i]))
        )
    return found, inside / len(errors)


def intervals(table: Table) -> dict[str, float]:
    """Returns the factors within which 8 of 10 rows lie, by kind, if their system was left out of the fit."""
    errors = np.abs(table.left_out(table.labels.system))
    kind = np.array([_kind(step) for step in table.steps])
    return {str(each): float(np.exp(np.quantile(errors[kind == each], 0.8))) for each in np.unique(kind)}


def _ordered(table: Table, errors: np.ndarray) -> float:
    """Returns the share of pairs of one source and model whose order is right, by time for a row of each chip."""
    steps, labels = table.steps, table.labels
    work = np.array([float(step.run.rows * step.measured.tokens / step.run.devices) for step in steps])
    measured = np.log(table.seconds / work)
    predicted = measured + errors
    groups = np.array([f"{source}|{step.measured.model}" for source, step in zip(labels.source, steps, strict=True)])
    right = pairs = 0
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        one, two = np.triu_indices(len(rows), 1)
        apart = measured[rows[one]] - measured[rows[two]]
        far = np.abs(apart) > np.log(_APART)
        pairs += int(far.sum())
        right += int((apart * (predicted[rows[one]] - predicted[rows[two]]) > 0)[far].sum())
    return right / pairs if pairs else float("nan")
