# SPDX-License-Identifier: Apache-2.0
"""`BatchIterator`: one process's part of each global batch, and a position from which any number of processes go on."""

import contextlib
import json
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Self

from ._batches import join_batches
from ._change import ChangedDataError, changes
from ._errors import DataError
from ._packing import State
from ._spec import Batch, BatchSpec


class Pace(NamedTuple):
    """How fast batches were made, if all cores are free to: without the first, which opens files, starts processes."""

    batches: int = 0
    seconds: float = 0.0
    fastest: float = math.inf  # Seconds for a batch.

    def figures(self, spec: BatchSpec) -> dict[str, float]:
        """Returns how many units a second could be made, as `data/rate`; nothing if that is not known."""
        return {"data/rate": spec.num_units * self.batches / self.seconds} if self.seconds else {}


_Maker = Callable[[dict[str, State]], list[Any]]  # Starts what makes the batches, at these positions of the streams.
_Check = Callable[[dict[str, State]], None]  # Raises if there must be no batch that leads to these positions.


class BatchIterator:
    """An iterator over batches, each this process's rows of a global batch.

    `get_state()` is the position after the batch given last, as JSON data of a few hundred bytes. It depends neither on
    the number of worker processes nor on batches prepared ahead. Close it to end its processes, or use it in `with`.
    """

    def __init__(
        self,
        start: _Maker,
        *,
        streams: range,
        num_streams: int = 1,
        about: dict[str, Any],
        ahead: int,
        check: _Check | None = None,
    ) -> None:
        self._core = _Batches(start, streams, num_streams, about, check)
        iterator: Any = self._core
        if ahead:
            from ._workers import prefetch  # Here, because it imports JAX.

            iterator = prefetch(self._core, ahead)
        self._opened = [iterator]
        self._shut = weakref.finalize(self, _shut, self._opened, self._core)  # At the latest when Python ends.
        self._error: Exception | None = None
        self._held = deque[tuple[Batch, State]]()  # Made, not given yet; with the position after each.
        self._at: State | None = None  # After the batch given last, where others are held.

    @property
    def is_whole(self) -> bool:
        """Whether its position is that of all processes, not of its own streams alone."""
        return self._core.is_whole

    @property
    def pace(self) -> Pace:
        """How fast it makes batches, as far as is known."""
        return self._core.pace

    @property
    def _iterator(self) -> Any:
        if not self._opened:
            raise ValueError("this iterator is closed.")
        return self._opened[0]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        if self._opened and self._held:
            batch, self._at = self._held.popleft()
            return batch
        self._at = None
        return self._made()

    def _made(self) -> Batch:
        if self._opened and self._error is not None:  # After an error, Grain would report the end of the data.
            raise self._error
        iterator = self._iterator
        try:
            return next(iterator)
        except Exception as e:
            self._error = StopIteration() if isinstance(e, StopIteration) else e
            raise

    def left(self, most: int) -> int:
        """Returns how many batches are still to come, up to `most`; these are made now, and held.

        With fewer than that, the data ends after them, or cannot be read: `next_error` is why.
        """
        while len(self._held) < most and self._error is None:
            if self._at is None:
                self._at = self._iterator.get_state()
            with contextlib.suppress(Exception):  # It is kept.
                self._held.append((self._made(), self._iterator.get_state()))
        return min(len(self._held), most)

    @property
    def next_error(self) -> Exception | None:
        """What asking for the batch after those that are held would raise, if that is known."""
        return self._error

    def get_state(self) -> State:
        """Returns the position after the batch given last."""
        return json.loads(json.dumps(self._iterator.get_state() if self._at is None else self._at))

    def set_state(self, state: State) -> None:
        """Goes to a position: of this input, in any process and with any number of them and of workers."""
        self._core.check(state)
        self._iterator.set_state(state)
        self._error = self._at = None
        self._held.clear()

    def close(self) -> None:
        """Ends threads and processes; the iterator cannot be used any more."""
        self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _shut(opened: list[Any], core: "_Batches") -> None:
    iterator = opened.pop()  # Grain's iterators must be gone before its modules are.
    if iterator is not core:
        iterator.close()
    core.close()


class _Batches:
    """The iterator without a thread: joins what its makers give."""

    def __init__(
        self, start: _Maker, streams: range, num_streams: int, about: dict[str, Any], check: _Check | None
    ) -> None:
        self._start, self._needed, self._about = start, streams, about
        self.is_whole = len(streams) == num_streams
        self._check = check if self.is_whole else None
        self._step = 0
        self._states: dict[str, State] = {}
        self._makers: list[Iterator[Any]] | None = None
        self.pace = Pace()

    def __next__(self) -> Batch:
        if self._makers is None:  # Not before: a position may be set first.
            self._makers = self._start(self._states)
            made = [next(maker) for maker in self._makers]
        else:
            begun = time.perf_counter()
            made = [next(maker) for maker in self._makers]
            passed = time.perf_counter() - begun
            # Workers make theirs at the same time, and ahead: they say how long it took.
            self._count(max(getattr(maker, "seconds", passed) for maker in self._makers))
        states = {name: state for _, each in made for name, state in each.items()}
        if self._check is not None:
            self._check(states)
        self._step, self._states = self._step + 1, states
        return join_batches([batch for batch, _ in made])

    def _count(self, seconds: float) -> None:
        batches, before, fastest = self.pace
        self.pace = Pace(batches + 1, before + seconds, min(fastest, seconds))

    def get_state(self) -> State:
        return {"step": self._step, "streams": self._states, "about": self._about}

    def set_state(self, state: State) -> None:
        self.close()
        self._step = state["step"]
        self._states = {str(s): state["streams"][str(s)] for s in self._needed} if self._step else {}

    def check(self, state: State) -> None:
        """Raises if `state` is not a position of this input."""
        if not isinstance(state, dict) or state.keys() != {"step", "streams", "about"}:
            raise DataError(f"not a position of an input: {state!r:.80}. Pass what get_state() returned.")
        found = list(changes(state["about"], json.loads(json.dumps(self._about))))
        if found:
            raise ChangedDataError(
                "this position belongs to another input:\n  " + "\n  ".join(found) + "\n"
                "  Go on with the data and settings of then, or decide what the position means now:\n"
                "  --data-change keep, restart or skip-to-step (in Python: run(data_change=...)).",
                found,
            )
        missing = [s for s in self._needed if str(s) not in state["streams"]]
        if missing and state["step"]:
            raise DataError(
                f"this process needs streams {missing}, the position has {sorted(map(int, state['streams']))}.\n"
                "  Each process knows the position of its own streams: join them all with merge_states."
            )

    def close(self) -> None:
        for maker in self._makers or ():
            maker.close()  # pyright: ignore[reportAttributeAccessIssue] (generators and workers have it)
        self._makers = None


def merge_states(states: Iterable[State]) -> State:
    """Returns the position of a whole run from those of its processes, for any number of processes to go on from.

    With one stream, all processes have the same position, and merging changes nothing.
    """
    first, *others = states
    for other in others:
        if (other["step"], other["about"]) != (first["step"], first["about"]):
            raise DataError(
                f"positions of different runs or steps cannot be joined: step {first['step']} and {other['step']}."
            )
    streams = {name: state for each in (first, *others) for name, state in each["streams"].items()}
    return {**first, "streams": dict(sorted(streams.items(), key=lambda item: int(item[0])))}
