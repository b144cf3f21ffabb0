# SPDX-License-Identifier: Apache-2.0
"""Traces: jobs that arrived, and rates that were measured, each a CSV file with fixed columns."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dovetail.config import ConfigError, did_you_mean

from ._demand import Demand
from ._pools import Pool
from ._simulate import Arrival

JOB_COLUMNS = ("trace", "kind", "gpus", "steps", "arrival_s")
RATE_COLUMNS = ("gpu", "kind", "gpus", "steps_per_s")

# Steps a second, by kind, then by pool and chips.
Rates = Mapping[str, Mapping[tuple[str, int], float]]


def read_rates(path: str, pools: Sequence[Pool]) -> Rates:
    """Returns the rates of kinds of jobs; `gpu` is the name of a pool, or of its hardware."""
    found: dict[str, dict[tuple[str, int], float]] = {}
    named: dict[str, list[str]] = {}
    for pool in pools:
        for name in {pool.name, pool.hardware or pool.name}:
            named.setdefault(name, []).append(pool.name)
    for where, row in _rows(path, "--rates", RATE_COLUMNS):
        if row["gpu"] not in named:
            raise ConfigError(
                f"{where}: gpu is {row['gpu']!r}, which is no pool.{did_you_mean(row['gpu'], named)} There are: "
                f"{', '.join(named)}.\n  Name it as in POOLS; where there are none of it now, add it with count = 0."
            )
        kind = _text(where, row, "kind")
        chips, rate = _whole(where, row, "gpus"), _number(where, row, "steps_per_s", above=0.0)
        for pool in named[row["gpu"]]:
            if (pool, chips) in found.setdefault(kind, {}):
                raise ConfigError(f"{where}: {row['gpu']}, {kind}, {chips} is there twice.\n  Remove one of the rows.")
            found[kind][pool, chips] = rate
    return found


def read_trace(path: str, rates: Rates, pools: Sequence[Pool], names: Sequence[str] = ()) -> dict[str, list[Arrival]]:
    """Returns the jobs of each trace in a file, or of those that are named.

    Jobs have no names there: they are called by trace and number, in the order of arrival, kind, chips and steps, so
    that the order of rows does not matter.
    """
    rows: dict[str, list[tuple[float, str, int, float, str]]] = {}
    for where, row in _rows(path, "JOBS", JOB_COLUMNS):
        arrival, steps = _number(where, row, "arrival_s"), _number(where, row, "steps", above=0.0)
        kind, chips = _text(where, row, "kind"), _whole(where, row, "gpus")
        rows.setdefault(_text(where, row, "trace"), []).append((arrival, kind, chips, steps, where))
    for name in names:
        if name not in rows:
            hint = did_you_mean(name, rows)
            raise ConfigError(f"--simulate: JOBS {path} has no trace {name!r}.{hint} It has: {', '.join(rows)}.")
    found: dict[str, list[Arrival]] = {}
    where_is = {pool.name: pool for pool in pools}
    for name in names or rows:
        for number, (arrival, kind, chips, steps, where) in enumerate(sorted(rows[name]), 1):
            mine = {at: rate for at, rate in _of_kind(where, rates, kind).items() if at[1] == chips}
            mine = {at: rate for at, rate in mine.items() if _holds(where_is[at[0]], chips)}
            if not mine:
                raise ConfigError(
                    f"{where}: {kind!r} on {chips} can run nowhere: no pool with room for it has a rate of it.\n"
                    "  Add a row for it to the file of --rates, or chips to POOLS."
                )
            found.setdefault(name, []).append(Arrival(Demand(f"{name}/{number:04}", mine, steps), arrival, kind))
    return found


def _holds(pool: Pool, chips: int) -> bool:
    return pool.occupies(chips) <= pool.blocks * pool.block and (not pool.shapes or chips in pool.shapes)


def _of_kind(where: str, rates: Rates, kind: str) -> Mapping[tuple[str, int], float]:
    if kind not in rates:
        raise ConfigError(f"{where}: --rates has no row of kind {kind!r}.{did_you_mean(kind, rates)}")
    return rates[kind]


def _rows(path: str, what: str, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the rows of a CSV file, each with what to call it in errors."""
    try:
        text = Path(path).read_text("utf-8-sig")
    except OSError as e:
        raise ConfigError(f"{what} {path}: it cannot be read: {e.strerror}.") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{what} {path}: it is not text: {e}.") from e
    reader = csv.reader(io.StringIO(text, newline=""))
    head = next(reader, [])
    if sorted(head) != sorted(columns):
        missing, unknown = [c for c in columns if c not in head], [c for c in head if c not in columns]
        said = [f"{', '.join(missing)} is missing"] * bool(missing) + [f"unknown: {', '.join(unknown)}"] * bool(unknown)
        raise ConfigError(
            f"{what} {path}, line 1: the columns are {', '.join(head) or 'not there'}: "
            f"{'; '.join(said) or 'one is there twice'}.\n"
            f"  The columns are {','.join(columns)}."
        )
    empty = True
    for row in reader:
        where = f"{what} {path}, line {reader.line_num}"
        if not row:
            continue
        if len(row) != len(head):
            raise ConfigError(f"{where}: {len(row)} values, expected {len(head)}: {','.join(columns)}.")
        empty = False
        yield where, dict(zip(head, row, strict=True))
    if empty:
        raise ConfigError(f"{what} {path}: there is no row below the first line.")


def _text(where: str, row: Mapping[str, str], column: str) -> str:
    if not row[column].strip():
        raise ConfigError(f"{where}: {column} is empty, expected a name.")
    return row[column].strip()


def _number(where: str, row: Mapping[str, str], column: str, above: float | None = None) -> float:
    wanted = "a number of at least 0" if above is None else f"a number above {above:g}"
    try:
        value = float(row[column])
    except ValueError as e:
        raise ConfigError(f"{where}: {column} is {row[column]!r}, expected {wanted}.") from e
    if not math.isfinite(value) or value < 0 or (above is not None and value <= above):
        raise ConfigError(f"{where}: {column} is {row[column]!r}, expected {wanted}.")
    return value


def _whole(where: str, row: Mapping[str, str], column: str) -> int:
    if not row[column].strip().isdecimal() or int(row[column]) < 1:
        raise ConfigError(f"{where}: {column} is {row[column]!r}, expected a whole number of at least 1.")
    return int(row[column])
