# SPDX-License-Identifier: Apache-2.0
"""`ModelDevice`: a served model, its state, and its programs, compiled.

All programs are compiled when it is made, each for a number of rows and of tokens; none later.
"""

import concurrent.futures
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from dovetail.module import merged
from dovetail.nn import quantised_params
from dovetail.progress import phase
from dovetail.train import Trained

from ._apart import params_apart
from ._device import Device, Drawn, RowDraw, Rows
from ._draw import Drawing, DrawParams
from ._programs import BIASED, Key, ServedModel, Serving


class _Started(NamedTuple):
    """Results on their way from the device."""

    tokens: Array | None
    drawing: Drawing | None = None
    scored: tuple[Array, Array, Array] | None = None


class ModelDevice(Device):
    """Computes with the model of a run, on its mesh and in its dtype.

    Args:
        trained: model and parameters; the model has methods `hidden` and `head_logits`, as `CausalLM` does.
    """

    def __init__(self, serving: Serving, trained: Trained) -> None:
        self._model = model = ServedModel(trained.program.cfg, serving)
        self.shape, self._step = model.shape, np.int32(trained.step)
        self._params = self._placed(trained.params)
        devices = model.program.devices
        with phase("allocating"):
            self._state: Any = devices.jit(model.make_state, out_shardings=model.state_shardings())()
            self._last, self._counts = devices.jit(model.make_tokens, out_shardings=devices.everywhere)()
        self._all_tokens = np.full((1, -(-self.shape.vocab_size // 32)), -1, np.int32)
        with phase("compiling"):
            self._compiled = self._compile()

    def run(self, rows: Rows) -> _Started:
        count, time = rows.ids.shape
        arrays = {name: getattr(rows, name) for name in ("slots", "source", "fresh", "start", "count", "follows")}
        hidden, final, self._state = self._compiled[Key("layers", count, time)](
            self._params, self._state, self._last, rows.ids, arrays, dict(rows.tables), self._step
        )
        scored = None
        if rows.prompt_logprobs:
            scored = self._compiled[Key("score", 1, time)](self._params, hidden, rows.targets)
        if not rows.draws.any():
            return _sent(_Started(None, None, scored))
        if rows.draw is None:
            tokens, self._last = self._compiled[Key("greedy", count)](
                self._params, final, self._last, rows.slots, rows.draws
            )
            return _sent(_Started(tokens, None, scored))
        drawing, self._last, self._counts = self._compiled[Key("draw", count)](
            self._params, final, self._last, self._counts, rows.slots, rows.draws, self._draw_params(rows.draw)
        )
        return _sent(_Started(drawing.tokens, drawing, scored))

    def fetch(self, started: _Started) -> Drawn:
        tokens, drawing, scored = jax.device_get(tuple(started))
        found = Drawn(np.zeros(0, np.int32) if tokens is None else tokens)
        if drawing is not None:
            found = found._replace(
                logprobs=drawing.logprobs, top_ids=drawing.top_ids, top_logprobs=drawing.top_logprobs
            )
        if scored is not None:
            names = ("prompt_logprobs", "prompt_top_ids", "prompt_top_logprobs")
            found = found._replace(**dict(zip(names, scored, strict=True)))
        return found

    def save(self, slot: int, snapshot: int) -> None:
        target = np.int32(self.shape.slots + snapshot)
        self._state = self._compiled[Key("save")](self._state, np.int32(slot), target)

    def count(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        both = [np.full(self.shape.max_length, -1, np.int32) for _ in range(2)]
        for place, ids in zip(both, (prompt, output), strict=True):
            place[: len(ids)] = ids
        self._counts = self._compiled[Key("count")](self._counts, np.int32(slot), *both)

    def swap(self, params: Any) -> None:
        self._params = self._placed(params)

    def _placed(self, params: Any) -> Any:
        """Returns parameters of the run as the programs take them."""
        if self._model.serving.weights is not None:
            params = quantised_params(self._model.source.build(), params)  # Before they are copied in full.
        if self._model.serving.apart:
            params = params_apart(self._model.source, params, self._model.program.model)
        params = jax.tree.map(lambda x, like: x.astype(like.dtype), params, self._model.params)
        places = self._model.program.shardings
        return params if places is None else jax.device_put(params, merged(places.params, places.run_state))

    def _compile(self) -> dict[Key, Callable[..., Any]]:
        """Returns all programs; XLA compiles several at once, as it uses one thread for most of its work."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            running = {key: pool.submit(self._model.traced(key).lower().compile) for key in self._model.keys()}
            return {key: each.result() for key, each in running.items()}

    def _draw_params(self, how: RowDraw) -> DrawParams:
        rows = len(how.temperature)
        mask = np.repeat(self._all_tokens, rows, axis=0) if how.mask is None else how.mask
        ids, bias = np.full((rows, BIASED), -1, np.int32), np.zeros((rows, BIASED), np.float32)
        for row, wanted in enumerate(how.bias or ()):
            ids[row, : len(wanted)], bias[row, : len(wanted)] = list(wanted), list(wanted.values())
        arrays: tuple[Any, ...] = (
            how.temperature, how.top_k, how.top_p, how.min_p, how.repetition, how.presence, how.frequency,
            how.seed, how.choice, how.number, mask, ids, bias,
        )  # fmt: skip
        return DrawParams(*arrays)


def _sent(started: _Started) -> _Started:
    """Asks for the results, so that they are on their way when they are fetched."""
    for leaf in jax.tree.leaves(tuple(started)):
        leaf.copy_to_host_async()
    return started
