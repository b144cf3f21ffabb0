# SPDX-License-Identifier: Apache-2.0
"""`Mixture`: rows drawn from several data sets in given proportions."""

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from dovetail.config import REQUIRED, ConfigError, did_you_mean

from ._change import Carried, Old
from ._dataset import Dataset
from ._errors import child_path, place_of
from ._order import derive_seed
from ._packing import Row, State
from ._skipped import Skipped

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: its multiples spread most evenly.


class Mixture(Dataset):
    """Draws each row from one of its parts, so weights are proportions of rows, and of tokens where rows are full.

    The choice is spread evenly, not by chance: after n rows, the count of each part is within a few of its share. The
    parts are endless, each at its own pace; one that is small beside its weight is repeated more often.
    """

    class Config(Dataset.Config):
        parts: dict[str, Dataset.Config] = REQUIRED
        weights: dict[str, float] = REQUIRED  # For each part, more than 0; they need not sum to 1.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self._check_weights()
        self._parts: dict[str, Dataset] = {}
        for name, part in cfg.parts.items():
            path = child_path(self, "parts", name)
            part = part.set(seq_len=cfg.seq_len, seed=derive_seed(cfg.seed, name))
            self._parts[name] = part.build(path=path, tokenizer=self._tokenizer)
            if not self._parts[name].is_endless:
                raise ConfigError(f"{path}: ends, and a mixture draws from its parts without end. Set epochs=None.")
        self._bounds = bounds_of([cfg.weights[name] for name in cfg.parts])
        self._offset = derive_seed(cfg.seed, "mixture")

    def _check_weights(self) -> None:
        parts, weights, place = self.cfg.parts, self.cfg.weights, place_of(self, "weights")
        if not parts:
            raise ConfigError(f"{place_of(self, 'parts')}: is empty.")
        if missing := [name for name in parts if name not in weights]:
            raise ConfigError(f"{place}: no weight for {', '.join(map(repr, missing))}.")
        if unknown := [name for name in weights if name not in parts]:
            raise ConfigError(f"{place}: there is no part {unknown[0]!r}.{did_you_mean(unknown[0], parts)}")
        for name, weight in weights.items():
            if not 0 < weight < math.inf:
                raise ConfigError(f"{place}.{name}: is {weight}. Use a number above 0, or leave the part out.")

    @property
    def is_endless(self) -> bool:
        return True

    def fingerprint(self) -> dict[str, Any]:
        parts = {name: part.fingerprint() for name, part in self._parts.items()}
        return {"seed": self.cfg.seed, "weights": dict(self.cfg.weights), "parts": parts}

    def carry(self, states: Sequence[State | None], old: Old, num_streams: int) -> Carried:
        if "parts" not in old.about:
            return super().carry(states, old, num_streams)
        was, now, notes = old.about["parts"], self.fingerprint(), list[str]()
        parts: dict[str, Sequence[State | None]] = {}
        for name, part in self._parts.items():
            parts[name] = [None] * num_streams
            if name in was:
                found = part.carry(_of_part(name, states), old._replace(about=was[name]), num_streams)
                parts[name], notes = found.states, [*notes, *(f"{name}: {note}" for note in found.notes)]
            else:
                notes.append(f"{name}: begins here, at its start")
        notes += [f"{name}: ends here, its share goes to the others" for name in was if name not in self._parts]
        if old.about["weights"] != now["weights"]:
            notes.append("weights: those of now hold for the rows that follow")
        row = min(stream + (state["row"] if state else 0) * len(states) for stream, state in enumerate(states))
        return Carried(
            [
                {"row": -(-(row - s) // num_streams), "parts": {name: each[s] for name, each in parts.items()}}
                for s in range(num_streams)
            ],
            notes,
        )

    def figures(self, states: Sequence[State | None]) -> dict[str, float]:
        found = {name: part.figures(_of_part(name, states)) for name, part in self._parts.items()}
        return {f"{name}/{figure}": value for name, each in found.items() for figure, value in each.items()}

    def skipped(self, states: Sequence[State | None]) -> list[Skipped]:
        found = {name: part.skipped(_of_part(name, states)) for name, part in self._parts.items()}
        return [
            each._replace(source=f"{name}/{each.source}" if each.source else name)
            for name, skipped in found.items()
            for each in skipped
        ]

    def check(self, states: Sequence[State | None]) -> None:
        for name, part in self._parts.items():
            part.check(_of_part(name, states))

    def rows(self, stream: int, num_streams: int, state: State | None) -> Iterator[tuple[Row, State]]:
        names = list(self._parts)
        given = state["row"] if state else 0
        states: dict[str, State | None] = state["parts"] if state else dict.fromkeys(names)
        readers = {name: part.rows(stream, num_streams, states[name]) for name, part in self._parts.items()}
        for number in itertools.count(given):
            name = names[choose(stream + number * num_streams, self._bounds, self._offset)]
            row, after = next(readers[name])
            states = {**states, name: after}
            yield row, {"row": number + 1, "parts": states}


def _of_part(name: str, states: Sequence[State | None]) -> list[State | None]:
    return [state["parts"].get(name) if state else None for state in states]


def bounds_of(weights: Sequence[float]) -> list[int]:
    """Returns the numbers that cut the range up to 2**64 in proportion to `weights`."""
    total = math.fsum(weights)
    return [int(share / total * 2**64) for share in itertools.accumulate(weights)][:-1]


def choose(number: int, bounds: Sequence[int], offset: int) -> int:
    """Returns the part from which the row of this number, counted over all streams, is drawn."""
    return bisect.bisect_right(bounds, (offset + number * _GOLDEN) % 2**64)
