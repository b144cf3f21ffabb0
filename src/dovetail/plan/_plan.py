# SPDX-License-Identifier: Apache-2.0
"""Which of several pools of chips to train on, and how: time, cost and energy of a whole run, by prediction."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from dovetail.config import ConfigError
from dovetail.hardware import Hardware
from dovetail.progress import phase
from dovetail.train import Trainer, largest

from ._fast import spread_of
from ._on_hardware import on_hardware, policies_for
from ._plan_picture import plan_picture
from ._pools import Pool
from ._search import Found, divides, is_tie, most_different, near_the_best, place_of, search, simplest

By = Literal["time", "cost", "energy"]

_NEAR = 0.10  # Of the best: who is looked at more closely.
_FINALISTS = 12  # Of each hardware.
_DAY = 86_400.0


class Wanted(NamedTuple):
    """What is asked of a run."""

    units: float  # Of the input, as tokens: all that is trained on.
    by: By = "time"
    deadline: float | None = None  # Seconds.


class Row(NamedTuple):
    """A way to train on one of the pools; seconds are of a step."""

    pool: Pool
    hardware: Hardware
    cfg: Trainer.Config
    base: Trainer.Config  # What the mesh rules make.
    seconds: float
    interval: tuple[float, float]
    parts: Mapping[str, float]
    gib: float  # Of a chip, as estimated.
    limit_gib: float | None  # Of a chip, that a program can have.
    by_rules: bool  # Whether it is what the mesh rules choose.
    features: tuple[float, ...]  # What it is told from others by.
    goodput: float
    days: float  # For all that is trained on.
    cost: float | None  # US dollars.
    energy: float | None  # MWh.
    fits: bool = True  # By the estimate, or by the compiler where one was asked.
    compiled_gib: float | None = None
    compiled_seconds: float | None = None
    problem: str = ""  # Why it could not be compiled.
    overrides: tuple[str, ...] = ()  # What else it changes in the recipe.

    def value(self, by: By) -> float:
        """Returns what it is ranked by; infinite where that is not known."""
        found = {"time": self.days, "cost": self.cost, "energy": self.energy}[by]
        return math.inf if found is None else found


class Plan(NamedTuple):
    """Ways to train, the best first."""

    unit: str
    units: int  # Of a step.
    wanted: Wanted
    rows: list[Row]
    skipped: Mapping[str, str]  # Why some hardware has none, by its name.
    counted: int  # Candidates that fit, of all hardware.
    assumptions: list[str]

    def _repr_svg_(self) -> str:
        """What a notebook shows."""
        return plan_picture("", self).svg


def plan(
    cfg: Trainer.Config,
    pools: Sequence[Pool],
    wanted: Wanted,
    fixed: Mapping[str, Any] = {},
    *,
    changes: Any = None,
) -> Plan:
    """Returns the best ways to train a recipe on pools of chips, by prediction alone.

    Args:
        cfg: of a trainer, for no hardware yet.
        pools: where it may run.
        wanted: what it is ranked by.
        fixed: what may not be changed, by path, as in `{"remat": "full", "mesh.tensor": 8}`.
        changes: is applied to what the mesh rules make of the config, as overrides of a user are.
    """
    _check_known(pools, wanted.by)
    spec = largest(cfg.input.batch_specs())
    rows, skipped, counted = list[Row](), dict[str, str](), 0
    everywhere = [(pool, hardware) for pool in pools for hardware in pool.amounts()]
    with phase("planning", len(everywhere), unit="clusters") as tried:
        for pool, hardware in everywhere:
            try:
                with phase(f"asking the mesh rules for {hardware.name}"):
                    base = on_hardware(cfg, hardware.name)
                    base = changes(base) if changes else base
                found = search(base, hardware, fixed, policies=policies_for(base, hardware))
                counted += len(found.seconds)
                rows += [_of(found, pool, at, spec.num_units, wanted) for at in _finalists(found)]
                if not len(found.seconds):
                    skipped[hardware.name] = "nothing that divides the model and its batch fits in memory"
            except ConfigError as e:
                skipped[hardware.name] = str(e)
            tried.advance()
    if not rows:
        reasons = "".join(f"\n  {name}: {_first_line(why)}" for name, why in skipped.items())
        raise ConfigError(f"there is no plan: on none of the hardware does it fit.{reasons}")
    notes = [note for pool in pools for note in pool.assumptions()]
    return Plan(spec.unit, spec.num_units, wanted, ranked(rows, wanted), skipped, counted, notes)


def ranked(rows: Sequence[Row], wanted: Wanted) -> list[Row]:
    """Returns rows in order: what fits, what is done in time, then by what is asked for. What is late, by time."""

    def key(row: Row) -> tuple[bool, bool, float]:
        late = is_late(row, wanted)
        return not row.fits, late, row.days if late else row.value(wanted.by)

    return sorted(rows, key=key)


def retimed(found: Plan, rows: Sequence[Row]) -> Plan:
    """Returns a plan with other rows, in order of their times by compiled programs, where there are some.

    Rows that were not compiled take longer than predicted by as much as those of the same chip did, at the median.
    """
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row.compiled_seconds:
            ratios.setdefault(row.hardware.chip.name, []).append(row.compiled_seconds / row.seconds)
    slower = {chip: float(np.median(each)) for chip, each in ratios.items()}
    timed = [
        _row(
            row,
            found.units,
            found.wanted,
            row.compiled_seconds or row.seconds * slower.get(row.hardware.chip.name, 1.0),
        )
        for row in rows
    ]
    return found._replace(rows=ranked(timed, found.wanted))


def is_late(row: Row, wanted: Wanted) -> bool:
    """Whether it takes longer than is asked for."""
    return wanted.deadline is not None and row.days * _DAY > wanted.deadline


def tied(row: Row, best: Row, by: By) -> bool:
    """Whether a row is too close to the best to say which is better."""
    values = row.value(by), best.value(by)
    return all(0 < value < math.inf for value in values) and is_tie(*values)


def to_verify(found: Plan, count: int) -> list[int]:
    """Returns the best row, of those within a tenth of it the ones that differ most, and what the mesh rules choose."""
    best = found.rows[0].value(found.wanted.by)
    near = [
        i
        for i, row in enumerate(found.rows)
        if row.fits and not is_late(row, found.wanted) and row.value(found.wanted.by) <= best * (1 + _NEAR)
    ] or [0]
    names = sorted({found.rows[i].hardware.name for i in near})
    points = [(*found.rows[i].features, 4.0 * names.index(found.rows[i].hardware.name)) for i in near]
    chosen = [near[i] for i in most_different(np.array(points), count)]
    rules = [i for i, row in enumerate(found.rows) if row.by_rules and row.hardware == found.rows[0].hardware]
    return list(dict.fromkeys([*chosen, *(rules if count > 1 else [])]))


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Returns Spearman's correlation of two orders; None of fewer than three pairs, or where all are equal.

    >>> rank_correlation([(1.0, 10.0), (2.0, 30.0), (3.0, 20.0)])
    0.5
    """
    if len(pairs) < 3:
        return None
    ranks = np.stack([_ranks(np.array(column)) for column in zip(*pairs, strict=True)])
    if np.any(np.ptp(ranks, axis=1) == 0):
        return None
    return float(np.round(np.corrcoef(ranks)[0, 1], 12))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns the place of each in order; equal ones share the middle of theirs."""
    return np.array([np.sum(values < value) + (np.sum(values == value) - 1) / 2 for value in values])


def _check_known(pools: Sequence[Pool], by: By) -> None:
    if by == "cost":
        for pool in pools:
            if pool.chip_hour is None:
                raise ConfigError(
                    f"{pool.name}: there is no price of {pool.hardware} in the hardware catalogue, and --by cost needs "
                    "one.\n  Add price = ... (US dollars a chip-hour) and price_date = ... to the pool in --pools FILE."
                )
    if by == "energy" and all(pool.chip_watts is None for pool in pools):
        named = ", ".join(sorted({pool.hardware for pool in pools}))
        raise ConfigError(f"--by energy: the power of {named} is not published.\n  Use --by time or --by cost.")


def _finalists(found: Found) -> list[int]:
    """Returns those that are shown: near the best and each different, the simplest, and what the mesh rules choose."""
    wanted = [*near_the_best(found, _FINALISTS), simplest(found), place_of(found, found.base)]
    return [at for at in dict.fromkeys(wanted) if at is not None and divides(found.config(at))]


def _of(found: Found, pool: Pool, at: int, units: int, wanted: Wanted) -> Row:
    cfg, hardware, seconds = found.config(at), found.hardware, float(found.seconds[at])
    limit = hardware.chip.hbm_bytes
    row = Row(
        pool=pool,
        hardware=hardware,
        cfg=cfg,
        base=found.base,
        seconds=seconds,
        interval=(seconds / spread_of(found.work), seconds * spread_of(found.work)),
        parts=found.parts(at),
        gib=found.gib(at),
        limit_gib=None if limit is None else limit / 2**30,
        by_rules=place_of(found, found.base) == at,
        features=found.features(at),
        goodput=1.0,
        days=0.0,
        cost=None,
        energy=None,
    )
    return _row(row, units, wanted, seconds)


def _row(row: Row, units: int, wanted: Wanted, seconds: float) -> Row:
    """Returns a row with all that follows from the time of a step."""
    pool, chips = row.pool, row.hardware.num_chips
    share = pool.goodput(chips).share
    days = wanted.units / units * seconds / _DAY / share if share else math.inf
    chip_hours = 24 * days * chips
    return row._replace(
        goodput=share,
        days=days,
        cost=None if pool.chip_hour is None else pool.chip_hour * chip_hours,
        energy=None if pool.chip_watts is None else pool.chip_watts * chip_hours / 1e6,
    )


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
