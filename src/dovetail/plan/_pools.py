# SPDX-License-Identifier: Apache-2.0
"""Pools: chips that can be had, at what price, and how often they are taken away. A file of TOML names them."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from dovetail.config import REQUIRED, ConfigBase, ConfigError, did_you_mean
from dovetail.hardware import CHIPS, Chip, Hardware, hardware

from ._goodput import FAILURES, Goodput, goodput

_HALVED = 7  # How many parts of a pool are tried, each half of the one before.
_PUE = 1.4  # Of what chips take, what a data centre does: hosts, network, cooling.


class Pool(ConfigBase):
    """Chips of one kind. What is not given is that of the hardware catalogue, or of published runs."""

    name: str = REQUIRED
    hardware: str = REQUIRED  # The chip: `tpu-v5p`.
    count: int = REQUIRED  # Chips.
    price: float | None = None  # US dollars an hour for each of them.
    price_date: str | None = None  # When that was the price: prices change.
    kind: Literal["reserved", "on-demand", "spot"] = "on-demand"
    interruptions: float | None = None  # For each chip and hour. None: as published; spot has to say.
    checkpoint_seconds: float = 5.0  # That steps wait for a checkpoint.
    recovery_seconds: float = 300.0  # From a stop until steps are made again.
    exactly: str | None = None  # The name of all of it, where no part is to be used.

    @property
    def chip(self) -> Chip:
        """What it is made of."""
        return CHIPS[self.hardware]

    @property
    def chip_hour(self) -> float | None:
        """US dollars an hour for a chip; None where no price is known."""
        return self.chip.price if self.price is None else self.price

    @property
    def chip_watts(self) -> float | None:
        """What a chip takes, with its share of the data centre; None where it is not published."""
        return None if self.chip.watts is None else _PUE * self.chip.watts

    def goodput(self, chips: int) -> Goodput:
        """Returns what part of the time a run on so many of them gets ahead."""
        rate = FAILURES if self.interruptions is None else self.interruptions
        return goodput(chips, rate, self.checkpoint_seconds, self.recovery_seconds)

    def assumptions(self) -> list[str]:
        """Returns what is not said of it, and taken for granted."""
        found = []
        if self.price is None and self.chip.price is not None:
            found.append(f"{self.name}: {self.chip.price} US dollars a chip-hour, on demand, of the hardware catalogue")
        elif self.price is not None and self.price_date is None:
            found.append(f"{self.name}: its price has no date")
        if self.interruptions is None:
            found.append(f"{self.name}: {FAILURES:.1e} stops a chip-hour, as published of 16,384 H100")
        if self.chip.watts is None:
            found.append(f"{self.name}: the power of {self.chip.vendor} is not published")
        return found

    def check(self) -> None:
        """Raises if a value makes no sense."""
        if self.hardware not in CHIPS:
            hint = did_you_mean(self.hardware, CHIPS)
            raise ConfigError(f"there is no chip {self.hardware!r}.{hint} There are: {', '.join(CHIPS)}.")
        if self.count < 1:
            raise ConfigError(f"count is {self.count}, expected at least 1.")
        for field in ("price", "interruptions", "checkpoint_seconds", "recovery_seconds"):
            value = getattr(self, field)
            if value is not None and not 0 <= value < float("inf"):
                raise ConfigError(f"{field} is {value}, expected a number of at least 0.")
        if self.kind == "spot" and self.interruptions is None:
            raise ConfigError(
                "it is spot, and nothing says how often chips are taken away.\n"
                "  Add interruptions = ... for each chip and hour, as in 1e-4."
            )

    def amounts(self) -> list[Hardware]:
        """Returns all of it and smaller parts, the largest first: each half of the one before, and powers of two."""
        if self.exactly is not None:
            return [hardware(self.exactly)]
        counts = {n >> halved for n in (self.count, 1 << self.count.bit_length() - 1) for halved in range(_HALVED)}
        found = {most.name: most for n in sorted(counts - {0}, reverse=True) if (most := _most(self.chip, n))}
        if not found:
            raise ConfigError(f"{self.hardware} does not come in {self.count} chips or fewer.")
        return list(found.values())


def read_pools(path: str) -> list[Pool]:
    """Returns the pools of a file, each a table of TOML with its name."""
    try:
        tables = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as e:
        raise ConfigError(f"--pools {path}: it cannot be read: {e.strerror}.") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"--pools {path}: it is not TOML: {e}.") from e
    if not tables:
        raise ConfigError(f"--pools {path}: there is no pool in it.\n  {_EXAMPLE}")
    return [_pool(path, name, table) for name, table in tables.items()]


_EXAMPLE = 'Write, for example: [mine], then hardware = "tpu-v5p", count = 512, price = 4.2, price_date = "2026-03".'


def _pool(path: str, name: str, table: Any) -> Pool:
    try:
        if not isinstance(table, dict):
            raise ConfigError(f"it is {table!r}, expected a table.\n  {_EXAMPLE}")
        missing = [field for field in ("hardware", "count") if field not in table]
        if missing:
            raise ConfigError(f"{' and '.join(missing)} is missing.\n  {_EXAMPLE}")
        fields: dict[str, Any] = {key: str(value) if key == "price_date" else value for key, value in table.items()}
        for key, value in fields.items():  # TOML has whole numbers where a price happens to be one.
            fields[key] = float(value) if key in _FLOATS and type(value) is int else value
        pool = Pool(name=name, **fields)
        pool.check()
    except (ConfigError, TypeError) as e:
        raise ConfigError(f"--pools {path}: [{name}]: {e}") from e
    return pool


_FLOATS = ("price", "interruptions", "checkpoint_seconds", "recovery_seconds")


def pools_on(names: Sequence[str]) -> list[Pool]:
    """Returns a pool for each name of hardware, to be used as a whole."""
    found = []
    for name in names:
        hw = hardware(name)
        found.append(Pool(name=name, hardware=hw.chip.name, count=hw.num_chips, exactly=name))
    return found


def _most(chip: Chip, chips: int) -> Hardware | None:
    """Returns the most of a chip that can be had as one run, up to so many; at least three quarters of them."""
    step = chip.domain if chip.domain and chips > chip.domain else 1
    for some in range(chips - chips % step, chips * 3 // 4, -step):
        for slices in range(1, 65 if chip.torus is not None else 2):
            if some % slices == 0:
                name = f"{chip.name}-{some // slices * chip.unit}" + (f"x{slices}" if slices > 1 else "")
                try:
                    return hardware(name)
                except ConfigError:
                    continue
    return None
