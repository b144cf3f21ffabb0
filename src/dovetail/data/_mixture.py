# SPDX-License-Identifier: Apache-2.0
"""`Mixture`: rows drawn from several data sets in given proportions."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dovetail.config import REQUIRED, ConfigError, did_you_mean

from ._change import Carried, Old
from ._dataset import Dataset
from ._errors import child_path, place_of
from ._order import derive_seed
from ._packing import Row, State
from ._skipped import Skipped
from ._stride import Stride, Turns
from ._tokenizer import KnownTokenizer
from ._weights import Weight, Weights

_Given = Mapping[str, Sequence[int]]  # By part: rows, tokens and documents.
_AMOUNTS = ("rows", "tokens", "documents")
_NOTHING = (0, 0, 0)


class Mixture(Dataset):
    """Draws each row from one of its parts. Weights are proportions of rows, of tokens or of documents.

    The choice is spread evenly, not by chance: at any time, what each part has given is within a few rows of its share.
    Each part goes at its own pace, and one that is small beside its weight is repeated more often. A part with `epochs`
    ends after them, and its share goes to the others in proportion; the mixture ends with the last of them.

    By rows, the part that a row is from depends on its number, over all streams, and on which parts have ended. By
    tokens or documents, it depends on what the parts have given in its stream: rows with padding, or with many short
    documents, count as what is in them. A document counts in the row in which it ends.
    """

    class Config(Dataset.Config):
        parts: dict[str, Dataset.Config] = REQUIRED
        weights: Mapping[str, Weight] = REQUIRED  # For each part, more than 0, or a schedule; they need not sum to 1.
        by: Literal["rows", "tokens", "documents"] = "rows"  # What weights are proportions of.

        def row_shape(self, seq_len: int) -> tuple[int, ...]:
            shapes = {name: part.row_shape(seq_len) for name, part in self.parts.items()}
            if len(set(shapes.values())) > 1:
                found = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
                raise ConfigError(f"Mixture: rows have several shapes: {found}. Use parts with rows of one shape.")
            return next(iter(shapes.values()), (seq_len,))

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
            if self._parts[name].rows_go_on:
                raise ConfigError(
                    f"{place_of(self, 'parts')}.{name}: each row goes on where the one before ended, and rows of a "
                    "mixture come from several parts.\n  Use another packer, or no mixture."
                )
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
        by = {} if self.cfg.by == "rows" else {"by": self.cfg.by}
        return {"seed": self.cfg.seed, **self._weights.fingerprint(), **by, "parts": parts}

    def documents(self, state: State | None) -> int:
        return sum(_in_full(given)[2] for given in (state or {}).get("given", {}).values())

    def rows(self, stream: int, num_streams: int, state: State | None) -> Iterator[tuple[Row, State]]:
        state = state or {"row": 0, "parts": dict.fromkeys(self._parts)}
        states: dict[str, State | None] = state["parts"]
        given, ended, since = state.get("given", {}), state.get("ended", []), state.get("since", (0, 0))
        kept = {name: state[name] for name in ("since", "ended", "turns") if name in state}
        readers = {name: part.rows(stream, num_streams, states[name]) for name, part in self._parts.items()}
        stride = None if self.cfg.by == "rows" else Stride(derive_seed(self.cfg.seed, "stride"), stream)
        for number in itertools.count(state["row"]):
            name, found, row_number, shares = "", None, stream + number * num_streams, {}
            while found is None:
                if len(ended) == len(self._parts):
                    return
                if stride is None:
                    name = self._weights.choose(row_number, self._offset, ended, since)
                else:
                    shares = self._weights.shares(row_number, ended, since)
                    name, kept["turns"] = stride.choose(kept.get("turns", {}), shares, self._a_row(given))
                found = next(readers[name], None)
                if found is None:
                    ended = [*ended, name]
                    kept["ended"] = ended
            row, after = found
            amounts = self._amounts(name, row, states[name], after)
            if stride is not None:
                kept["turns"] = stride.done(kept["turns"], name, shares[name], amounts[_AMOUNTS.index(self.cfg.by)])
            states = {**states, name: after}
            before = _in_full(given.get(name, _NOTHING))
            given = {**given, name: [a + b for a, b in zip(before, amounts, strict=True)]}
            yield row, {"row": number + 1, "parts": states, "given": given, **kept}

    def _amounts(self, name: str, row: Row, before: State | None, after: State) -> tuple[int, int, int]:
        """Returns what is in a row, as `_AMOUNTS` names it."""
        part = self._parts[name]
        return 1, int(np.count_nonzero(row["segments"])), part.documents(after) - part.documents(before)

    def _a_row(self, given: _Given) -> float:
        """Returns how much there was in a row on average so far, in one stream."""
        rows, *amounts = (sum(column) for column in zip(_NOTHING, *map(_in_full, given.values()), strict=True))
        return max(amounts[_AMOUNTS.index(self.cfg.by) - 1] / rows, 1.0) if rows else 1.0

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
        same_by = old.about.get("by", "rows") == self.cfg.by
        if not same_by:
            notes.append(f"weights: they are of {self.cfg.by} from here on")
        row = min(stream + (state["row"] if state else 0) * len(states) for stream, state in enumerate(states))
        paced = self._weights.by_step and (old.about.get("rows_per_step") != self._rows_per_step or any(_since(states)))
        kept: dict[str, Any] = {"since": [row, old.steps]} if paced else {}
        turns = [{} for _ in range(num_streams)]
        if same_by and num_streams == len(states):
            turns = [_turns_of(state, self._parts) for state in states]
        given = [state.get("given", {}) if state else {} for state in states]
        if num_streams != len(states):
            given = [_summed(given), *({} for _ in range(num_streams - 1))]
        return Carried(
            [
                {
                    "row": -(-(row - stream) // num_streams),
                    "parts": {name: each[stream] for name, each in parts.items()},
                    "given": given[stream],
                    **turns[stream],
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
            counted = map(float, _in_full(given.get(name, _NOTHING)))
            own = {**dict(zip(_AMOUNTS, counted, strict=True)), **part.figures(_of_part(name, states))}
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


def _in_full(given: Sequence[int]) -> Sequence[int]:
    """Returns what a part has given; positions of before documents were counted do not have those."""
    return given if len(given) == len(_NOTHING) else (*given, 0)


def _turns_of(state: State | None, parts: Mapping[str, Dataset]) -> dict[str, Turns]:
    """Returns what a position has of turns, those of parts that there are."""
    if not state or "turns" not in state:
        return {}
    turns = state["turns"]
    return {"turns": {**turns, "next": {name: turn for name, turn in turns["next"].items() if name in parts}}}


def _summed(given: Sequence[_Given]) -> dict[str, list[int]]:
    """Returns what each part has given in all streams."""
    names = dict.fromkeys(name for each in given for name in each)
    return {
        name: [sum(column) for column in zip(*(_in_full(each.get(name, _NOTHING)) for each in given), strict=True)]
        for name in names
    }


def _of_part(name: str, states: Sequence[State | None]) -> list[State | None]:
    return [state["parts"].get(name) if state else None for state in states]
