# SPDX-License-Identifier: Apache-2.0
"""`Mixture`: rows drawn from several data sets in given proportions."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.config import REQUIRED, ConfigError, did_you_mean

from ._change import Carried, Old
from ._dataset import Dataset
from ._errors import child_path, place_of
from ._order import derive_seed
from ._packing import Row, State
from ._skipped import Skipped
from ._tokenizer import KnownTokenizer
from ._weights import Weight, Weights


class Mixture(Dataset):
    """Draws each row from one of its parts, so weights are proportions of rows, and of tokens where rows are full.

    The choice is spread evenly, not by chance: after n rows, the count of each part is within a few of its share. Each
    part goes at its own pace, and one that is small beside its weight is repeated more often. A part with `epochs` ends
    after them, and its share goes to the others in proportion; the mixture ends with the last of them.

    Which part a row is from depends on its number, over all streams, and on which parts have ended.
    """

    class Config(Dataset.Config):
        parts: dict[str, Dataset.Config] = REQUIRED
        weights: Mapping[str, Weight] = REQUIRED  # For each part, more than 0, or a schedule; they need not sum to 1.

        def prepared_with(self, where: str) -> KnownTokenizer | None:
            parts: Mapping[str, Dataset.Config] = {} if self.parts is REQUIRED else self.parts
            found = (part.prepared_with(f"{where}.parts.{name}") for name, part in parts.items())
            return next((known for known in found if known is not None), None)

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self._check_names()
        self._parts: dict[str, Dataset] = {}
        for name, part in cfg.parts.items():
            part = part.set(seq_len=cfg.seq_len, seed=derive_seed(cfg.seed, name))
            given = {"tokenizer": self._tokenizer, "rows_per_step": self._rows_per_step}
            self._parts[name] = part.build(path=child_path(self, "parts", name), **given)
        weights = {name: cfg.weights[name] for name in cfg.parts}
        self._weights = Weights(weights, self._rows_per_step, place_of(self, "weights"))
        self._offset = derive_seed(cfg.seed, "mixture")

    def _check_names(self) -> None:
        parts, weights, place = self.cfg.parts, self.cfg.weights, place_of(self, "weights")
        if not parts:
            raise ConfigError(f"{place_of(self, 'parts')}: is empty.")
        if missing := [name for name in parts if name not in weights]:
            raise ConfigError(f"{place}: no weight for {', '.join(map(repr, missing))}.")
        if unknown := [name for name in weights if name not in parts]:
            raise ConfigError(f"{place}: there is no part {unknown[0]!r}.{did_you_mean(unknown[0], parts)}")

    @property
    def is_endless(self) -> bool:
        return any(part.is_endless for part in self._parts.values())

    @property
    def wants_streams(self) -> bool:
        return any(part.wants_streams for part in self._parts.values())

    def fingerprint(self) -> dict[str, Any]:
        parts = {name: part.fingerprint() for name, part in self._parts.items()}
        return {"seed": self.cfg.seed, **self._weights.fingerprint(), "parts": parts}

    def rows(self, stream: int, num_streams: int, state: State | None) -> Iterator[tuple[Row, State]]:
        state = state or {"row": 0, "parts": dict.fromkeys(self._parts)}
        states: dict[str, State | None] = state["parts"]
        given, ended, since = state.get("given", {}), state.get("ended", []), state.get("since", (0, 0))
        kept = {name: state[name] for name in ("since", "ended") if name in state}
        readers = {name: part.rows(stream, num_streams, states[name]) for name, part in self._parts.items()}
        for number in itertools.count(state["row"]):
            name, found = "", None
            while found is None:
                if len(ended) == len(self._parts):
                    return
                name = self._weights.choose(stream + number * num_streams, self._offset, ended, since)
                found = next(readers[name], None)
                if found is None:
                    ended = [*ended, name]
                    kept["ended"] = ended
            (row, after), (rows, tokens) = found, given.get(name, (0, 0))
            states = {**states, name: after}
            given = {**given, name: [rows + 1, tokens + int(np.count_nonzero(row["segments"]))]}
            yield row, {"row": number + 1, "parts": states, "given": given, **kept}

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
        paced = self._weights.by_step and (old.about.get("rows_per_step") != self._rows_per_step or any(_since(states)))
        kept = {"since": [row, old.steps]} if paced else {}
        given = [state.get("given", {}) if state else {} for state in states]
        if num_streams != len(states):
            given = [_summed(given), *({} for _ in range(num_streams - 1))]
        return Carried(
            [
                {
                    "row": -(-(row - stream) // num_streams),
                    "parts": {name: each[stream] for name, each in parts.items()},
                    "given": given[stream],
                    **kept,
                }
                for stream in range(num_streams)
            ],
            notes,
        )

    def figures(self, states: Sequence[State | None]) -> dict[str, float]:
        given = _summed([state.get("given", {}) if state else {} for state in states])
        found: dict[str, float] = {}
        for name, part in self._parts.items():
            rows, tokens = given.get(name, (0, 0))
            own = {"rows": float(rows), "tokens": float(tokens), **part.figures(_of_part(name, states))}
            if any(name in state.get("ended", ()) for state in states if state):
                own["ended"] = 1.0
            found |= {f"{name}/{figure}": value for figure, value in own.items()}
        if not self._weights.is_constant:
            row = sum(state["row"] for state in states if state)
            found |= {f"{name}/weight": weight for name, weight in self._weights.at(row, _since(states)).items()}
        return found

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


def _since(states: Sequence[State | None]) -> Sequence[int]:
    return next((state["since"] for state in states if state and "since" in state), (0, 0))


def _summed(given: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """Returns the rows and the tokens that each part has given in all streams."""
    names = dict.fromkeys(name for each in given for name in each)
    return {name: [sum(each.get(name, (0, 0))[i] for each in given) for i in range(2)] for name in names}


def _of_part(name: str, states: Sequence[State | None]) -> list[State | None]:
    return [state["parts"].get(name) if state else None for state in states]
