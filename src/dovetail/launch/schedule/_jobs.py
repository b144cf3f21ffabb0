# SPDX-License-Identifier: Apache-2.0
"""Jobs and teams from a file of TOML, pools from another: all that is wrong is said before anything is done."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dovetail.config import REQUIRED, ConfigBase, ConfigError, did_you_mean, fields_of

from ._pools import Pool, Team

POOLS_EXAMPLE = 'Write, for example: [v5p], then hardware = "tpu-v5p", count = 512, block = 4.'
JOBS_EXAMPLE = 'Write, for example: [jobs.first], then recipe = "tiny-lm", chips = [64, 128], team = "a".'


class JobSpec(ConfigBase):
    """A job: what it asks for, and how it stands."""

    name: str = REQUIRED
    chips: Sequence[int] = REQUIRED  # How many it can run on: one number, or several if it is elastic.
    pools: Sequence[str] = ()  # Where it may run; empty: anywhere.
    recipe: str = ""  # What it trains: its rates are predicted.
    overrides: Sequence[str] = ()  # Of the recipe.
    kind: str = ""  # What its rates are called in the file of `--rates`.
    rates: Mapping[str, Mapping[str, float]] = {}  # Measured: steps a second that are kept, by pool and chips.
    steps: float | None = None  # That are left. None: those of the recipe.
    team: str = ""
    priority: float = 1.0  # A job of priority 2 counts twice.
    deadline_seconds: float | None = None  # From now.
    gang: str = ""  # Jobs of one gang run together, or not at all.
    spares: int = 0  # Chips beside those that it computes with, for those that fail.
    running: Mapping[str, Any] = {}  # `{pool = "v5p", chips = 64}`, if it has chips now.
    waited_seconds: float = 0.0  # Without chips, in all.
    ran_seconds: float = 0.0  # With chips, in all.
    arrival_seconds: float = 0.0  # For `--simulate`.
    directory: str = ""  # Of its run, for `--execute`. Empty: runs/NAME.
    code: Sequence[str] = ()  # Files of the user's that the recipe needs, for `--execute`.

    @property
    def at(self) -> tuple[str, int] | None:
        """The pool and the chips that it has now."""
        return (self.running["pool"], self.running["chips"]) if self.running else None

    def check(self, pools: Mapping[str, Pool], teams: Mapping[str, Team]) -> None:
        """Raises if a value makes no sense."""
        if not self.chips or min(self.chips) < 1:
            raise ConfigError(f"chips is {list(self.chips)}, expected numbers of at least 1, as in [64, 128].")
        for field, least in _LEAST.items():
            value = getattr(self, field)
            if value is not None and not least <= value < float("inf"):
                raise ConfigError(f"{field} is {value}, expected a number of at least {least}.")
        for field, value in (("priority", self.priority), ("steps", self.steps)):
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{field} is {value}, expected a number above 0.")
        if self.steps is None and not self.recipe:
            raise ConfigError("steps is missing, and no recipe says how many there are.\n  Add steps = ...")
        if self.team and self.team not in teams:
            raise ConfigError(
                f"team: there is no team {self.team!r}.{did_you_mean(self.team, teams)}\n  Add [teams.{self.team}]."
            )
        if self.running and (
            set(self.running) != {"pool", "chips"}
            or type(self.running["chips"]) is not int
            or self.running["chips"] < 1
        ):
            raise ConfigError(f'running is {dict(self.running)}, expected as in {{ pool = "v5p", chips = 64 }}.')
        named = {"pools": self.pools, "rates": self.rates, "running": [self.running["pool"]] if self.running else []}
        for field, names in named.items():
            for name in names:
                if name not in pools:
                    known = f"There are: {', '.join(pools)}."
                    raise ConfigError(f"{field}: there is no pool {name!r}.{did_you_mean(str(name), pools)} {known}")
        for pool, by_chips in self.rates.items():
            for chips, rate in by_chips.items():
                if not chips.isdecimal() or int(chips) < 1 or not 0 < rate < float("inf"):
                    raise ConfigError(
                        f"rates.{pool} has {chips} = {rate}, expected a number of chips and the steps a second above 0 "
                        "that were measured there, as in 64 = 1.5."
                    )
        if not self.fitting(pools):
            raise ConfigError(self._nowhere(pools))

    def fitting(self, pools: Mapping[str, Pool]) -> list[tuple[str, int]]:
        """Returns the pools and the numbers of chips that there are."""
        return [
            (name, chips)
            for name, pool in pools.items()
            for chips in sorted(set(self.chips))
            if (not self.pools or name in self.pools)
            and pool.occupies(chips + self.spares) <= pool.blocks * pool.block
            and (not pool.shapes or chips in pool.shapes)
        ]

    def _nowhere(self, pools: Mapping[str, Pool]) -> str:
        wanted = f"{' or '.join(map(str, self.chips))} chips" + (f" and {self.spares} spares" if self.spares else "")
        there = [
            f"{name}: {pool.blocks * pool.block} chips for jobs, in blocks of {pool.block}"
            + (f", shapes {', '.join(map(str, pool.shapes))}" if pool.shapes else "")
            for name, pool in pools.items()
            if not self.pools or name in self.pools
        ]
        return f"chips: {wanted} can be had in no pool.\n  There is: {'; '.join(there)}. Use what one of them has."


_LEAST = {"spares": 0, "waited_seconds": 0.0, "ran_seconds": 0.0, "deadline_seconds": 0.0, "arrival_seconds": 0.0}


class Asked(NamedTuple):
    """What is in the file of jobs."""

    jobs: tuple[JobSpec, ...]
    teams: tuple[Team, ...]


def read_pools(path: str) -> tuple[Pool, ...]:
    """Returns the pools of a file, each a table of TOML with its name."""
    tables = _toml(path, "POOLS")
    if not tables:
        raise ConfigError(f"POOLS {path}: there is no pool in it.\n  {POOLS_EXAMPLE}")
    pools = []
    for name, table in tables.items():
        pool = _made(Pool, f"POOLS {path}: [{name}]", name, table, ("count",), POOLS_EXAMPLE)
        _checked(f"POOLS {path}: [{name}]", pool.check)
        pools.append(pool)
    return tuple(pools)


def read_jobs(path: str, pools: Sequence[Pool]) -> Asked:
    """Returns the jobs and teams of a file."""
    tables = _toml(path, "JOBS")
    if unknown := tables.keys() - {"jobs", "teams"}:
        raise ConfigError(f"JOBS {path}: [{min(unknown)}]: expected [jobs.NAME] or [teams.NAME].\n  {JOBS_EXAMPLE}")
    if not isinstance(tables.get("jobs"), dict) or not tables["jobs"]:
        raise ConfigError(f"JOBS {path}: there is no job in it.\n  {JOBS_EXAMPLE}")
    where = {pool.name: pool for pool in pools}
    teams = {
        name: _made(Team, f"JOBS {path}: [teams.{name}]", name, table, (), JOBS_EXAMPLE)
        for name, table in tables.get("teams", {}).items()
    }
    for name, team in teams.items():
        _checked(f"JOBS {path}: [teams.{name}]", lambda team=team: team.check(where, teams))
    jobs = []
    for name, table in tables["jobs"].items():
        place = f"JOBS {path}: [jobs.{name}]"
        job = _made(JobSpec, place, name, table, ("chips",), JOBS_EXAMPLE)
        _checked(place, lambda job=job: job.check(where, teams))
        jobs.append(job)
    return Asked(tuple(jobs), tuple(teams.values()))


def _toml(path: str, what: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as e:
        raise ConfigError(f"{what} {path}: it cannot be read: {e.strerror}.") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{what} {path}: it is not TOML: {e}.") from e


Made = TypeVar("Made", Pool, Team, JobSpec)


def _made(cls: type[Made], where: str, name: str, table: Any, needed: Sequence[str], example: str) -> Made:
    """Returns a config from a table of TOML."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: it is {table!r}, expected a table.\n  {example}")
    if missing := [field for field in needed if field not in table]:
        raise ConfigError(f"{where}: {' and '.join(missing)} is missing.\n  {example}")
    floats = {field for field, hint in fields_of(cls).items() if "float" in str(hint) and "Mapping" not in str(hint)}
    fields = dict(table)
    for key, value in fields.items():  # TOML has whole numbers where a number happens to be one.
        if key in floats and type(value) is int:
            fields[key] = float(value)
        elif key == "price_date":
            fields[key] = str(value)
        elif key == "chips" and type(value) is int:
            fields[key] = (value,)
        elif key == "rates" and isinstance(value, dict):
            fields[key] = {pool: _floats(rates) for pool, rates in value.items()}
    try:
        return cls(name=name, **fields)
    except (ConfigError, TypeError) as e:
        raise ConfigError(f"{where}: {e}") from e


def _floats(table: Any) -> Any:
    if not isinstance(table, dict):
        return table
    return {key: float(value) if type(value) is int else value for key, value in table.items()}


def _checked(where: str, check: Callable[[], None]) -> None:
    try:
        check()
    except ConfigError as e:
        raise ConfigError(f"{where}: {e}") from e
