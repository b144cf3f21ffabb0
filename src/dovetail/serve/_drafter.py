# SPDX-License-Identifier: Apache-2.0
"""Who guesses, on the device, what a model will say: a smaller model, or the model's own predictions.

Both read all that the model reads, into the same pages: page p of their arrays has the tokens of page p of the model's.
So whoever gives pages to sequences, or lets them share prefixes, need not know of it.

Shape letters: R rows, T time.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array

from dovetail.parallel import Mesh
from dovetail.progress import phase
from dovetail.train import Trained

from ._compiled import compiled, placed, row_arrays
from ._device import Rows
from ._draw import Counts
from ._predictions import Made
from ._programs import Key, ServedModel
from ._serving import Serving


@dataclasses.dataclass
class OnDevice:
    """What a model has on its devices, all that a call takes and replaces."""

    params: Any
    state: Any
    last: Array  # [S]: the token drawn last in each slot.
    counts: Counts
    step: np.int32


class Drafter(abc.ABC):
    """Guesses, round the calls of a model."""

    @abc.abstractmethod
    def before(self, rows: Rows, on: OnDevice) -> Any:
        """Returns the tokens `[R, T]` of a call of the model; of one that verifies, with guesses after the first."""

    @abc.abstractmethod
    def after(self, rows: Rows, on: OnDevice, ids: Any, hidden: Array, drawn: Array | None) -> None:
        """Takes what the model has made of these tokens; `drawn` are those that it has said, of a call that verifies.

        Of other calls, it is before anything is drawn.
        """


class Predictor(Drafter):
    """Guesses by the model's own predictions of tokens further ahead than the next."""

    def __init__(self, model: ServedModel) -> None:
        devices = model.program.devices
        self._compiled = compiled(model, model.prediction_keys())
        self._made: Made = devices.jit(model.make_made, out_shardings=devices.everywhere)()

    def before(self, rows: Rows, on: OnDevice) -> Any:
        if not rows.verifies:
            return rows.ids
        ids, on.state = self._compiled[Key("guess", *rows.ids.shape)](*self._given(rows, on, rows.ids))
        return ids

    def after(self, rows: Rows, on: OnDevice, ids: Any, hidden: Array, drawn: Array | None) -> None:
        kept: Any = drawn
        if drawn is None:
            kept = np.where(np.arange(rows.ids.shape[1]) < rows.count[:, None], 0, -1).astype(np.int32)
        given = self._given(rows, on, ids, is_known=drawn is not None)
        self._made, on.state = self._compiled[Key("predict", *rows.ids.shape)](*given, hidden, kept)

    def _given(self, rows: Rows, on: OnDevice, ids: Any, *, is_known: bool = False) -> tuple[Any, ...]:
        """Returns arguments of a program; `is_known`: the first tokens are those of `ids`."""
        arrays = row_arrays(rows)
        if is_known:
            arrays["follows"] = np.zeros_like(rows.follows)
        return on.params, on.state, on.last, self._made, ids, arrays, dict(rows.tables), on.step


class DraftModel(Drafter):
    """A smaller model. It guesses the most likely tokens, one after the other.

    A `ServedModel` gives its `model` the pages, then `open`.
    """

    def __init__(self, serving: Serving, trained: Trained, mesh: Mesh) -> None:
        # How much room there is, the larger model finds out for both.
        self.model = ServedModel(trained.program.cfg.set(mesh=mesh), serving, room=2**62)
        self._step = np.int32(trained.step)
        self._params = placed(self.model, trained.params)

    def open(self) -> None:
        """Allocates and compiles."""
        model, devices = self.model, self.model.program.devices
        shape = model.shape
        with phase("allocating"):
            self._state: Any = devices.jit(model.make_state, out_shardings=model.state_shardings())()
            self._last, _ = devices.jit(model.make_tokens, out_shardings=devices.everywhere)()
        keys = [Key("layers", 1, chunk) for chunk in shape.chunks]
        for rows in {1, *shape.rows}:
            keys += [Key("layers", rows, 1), Key("greedy", rows), Key("join", rows, shape.drafts + 1)]
        self._compiled: dict[Key, Callable[..., Any]] = compiled(model, keys)

    def before(self, rows: Rows, on: OnDevice) -> Any:
        """Reads tokens, and returns them; or reads the first token of each row, and returns it with guesses.

        The last guess is read, too: if it holds, the next call starts behind it.
        """
        if not rows.verifies:
            self._layers(rows, rows.ids, row_arrays(rows), on.last)
            return rows.ids
        count, time = rows.ids.shape
        arrays, guesses = row_arrays(rows), list[Array]()
        for t in range(time):
            here = rows.count > t
            now = arrays | {"start": rows.start + np.int32(t), "count": here.astype(np.int32)}
            if t:
                now["follows"], now["fresh"] = here, np.zeros_like(rows.fresh)
            final = self._layers(rows, rows.ids[:, :1], now, self._last if t else on.last)
            if t < time - 1:
                drawn, self._last = self._compiled[Key("greedy", count)](
                    self._params, final, self._last, rows.slots, here
                )
                guesses.append(drawn)
        return self._compiled[Key("join", count, time)](rows.ids[:, 0], tuple(guesses))

    def after(self, rows: Rows, on: OnDevice, ids: Any, hidden: Array, drawn: Array | None) -> None:
        pass

    def _layers(self, rows: Rows, ids: np.ndarray, arrays: dict[str, np.ndarray], last: Array) -> Array:
        tables = dict(rows.tables)
        _, final, self._state = self._compiled[Key("layers", *ids.shape)](
            self._params, self._state, last, ids, arrays, tables, self._step
        )
        return final
