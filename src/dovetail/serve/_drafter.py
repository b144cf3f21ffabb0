# SPDX-License-Identifier: Apache-2.0
"""A smaller model that guesses what a larger one will say.

It reads all that the larger one reads, into the same pages: page p of its arrays has the tokens of page p of the other.
So whoever gives pages to sequences, or lets them share prefixes, need not know of it.

Shape letters: R rows, T time.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array

from dovetail.parallel import Mesh
from dovetail.progress import phase
from dovetail.train import Trained

from ._compiled import compiled, placed, row_arrays
from ._device import Rows
from ._programs import Key, ServedModel, Serving


class Drafter:
    """Guesses the most likely tokens, one after the other. A `ServedModel` gives its `model` the pages, then `open`."""

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

    def read(self, rows: Rows, last: Array) -> np.ndarray:
        """Reads tokens, and returns them. `last` are those that the larger model has drawn last, by slot."""
        self._layers(rows, rows.ids, row_arrays(rows), last)
        return rows.ids

    def guess(self, rows: Rows, last: Array) -> Array:
        """Reads the first token of each row, and returns it with guesses of those after it, `[R, T]`.

        The last guess is read, too: if it holds, the next call starts behind it.
        """
        count, time = rows.ids.shape
        arrays, guesses = row_arrays(rows), list[Array]()
        for t in range(time):
            here = rows.count > t
            now = arrays | {"start": rows.start + np.int32(t), "count": here.astype(np.int32)}
            if t:
                now["follows"], now["fresh"] = here, np.zeros_like(rows.fresh)
            final = self._layers(rows, rows.ids[:, :1], now, self._last if t else last)
            if t < time - 1:
                drawn, self._last = self._compiled[Key("greedy", count)](
                    self._params, final, self._last, rows.slots, here
                )
                guesses.append(drawn)
        return self._compiled[Key("join", count, time)](rows.ids[:, 0], tuple(guesses))

    def _layers(self, rows: Rows, ids: np.ndarray, arrays: dict[str, np.ndarray], last: Array) -> Array:
        tables = dict(rows.tables)
        _, final, self._state = self._compiled[Key("layers", *ids.shape)](
            self._params, self._state, last, ids, arrays, tables, self._step
        )
        return final
