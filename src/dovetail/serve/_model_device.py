# SPDX-License-Identifier: Apache-2.0
"""`ModelDevice`: a served model, its state, and its programs, compiled.

All programs are compiled when it is made, each for a number of rows and of tokens; none later.
"""

import concurrent.futures
import dataclasses
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from dovetail.progress import phase
from dovetail.train import Trained

from ._compiled import compiled, placed, row_arrays
from ._device import Device, Drawn, RowDraw, Rows
from ._drafter import Drafter, DraftModel, OnDevice, Predictor
from ._draw import Drawing, DrawParams, Verified
from ._native import kernel_uses
from ._programs import Key, ServedModel
from ._serving import Serving

_TIMED = 5  # Steps that are measured; the shortest counts.


class _Started(NamedTuple):
    """Results on their way from the device."""

    tokens: Array | None
    drawing: Drawing | Verified | None = None
    scored: tuple[Array, Array, Array] | None = None
    pooled: Array | None = None


class ModelDevice(Device):
    """Computes with the model of a run, on its mesh and in its dtype.

    Args:
        trained: model and parameters; the model has methods `hidden` and `head_logits`, as `CausalLM` does.
        draft: a smaller model of the same tokens, which guesses; None: who calls does, if `serving` has drafts.
    """

    def __init__(self, serving: Serving, trained: Trained, draft: Trained | None = None) -> None:
        serving = serving if draft is None else serving.set(drafter="lookup")  # It guesses in place of predictions.
        smaller = None if draft is None else DraftModel(serving, draft, trained.program.cfg.mesh)
        self._model = model = ServedModel(
            trained.program.cfg, serving, draft=None if smaller is None else smaller.model
        )
        self.shape = model.shape
        devices = model.program.devices
        with phase("allocating"):
            state = devices.jit(model.make_state, out_shardings=model.state_shardings())()
            last, counts = devices.jit(model.make_tokens, out_shardings=devices.everywhere)()
        self._all_tokens = np.full((1, -(-self.shape.vocab_size // 32)), -1, np.int32)
        with phase("compiling"), concurrent.futures.ThreadPoolExecutor(1) as aside:
            loading = aside.submit(placed, model, trained.params)  # Meanwhile: programs need shapes alone.
            self._compiled = compiled(model, model.keys())
            params = loading.result()
            self._drafter: Drafter | None = smaller
            if smaller is not None:
                smaller.open()
            elif model.predictions:
                self._drafter = Predictor(model)
        self._on = OnDevice(params, state, last, counts, np.int32(trained.step))
        self.kernels = kernel_uses(model.choices)
        if self.shape.drafts:
            self.shape = dataclasses.replace(self.shape, draft_costs=tuple(map(self._draft_cost, self.shape.rows)))

    def run(self, rows: Rows) -> _Started:
        (count, time), ids, on = rows.ids.shape, rows.ids, self._on
        if self._drafter is not None:
            ids = self._drafter.before(rows, on)
        hidden, final, on.state = self._compiled[Key("layers", count, time)](
            on.params, on.state, on.last, ids, row_arrays(rows), dict(rows.tables), on.step
        )
        if rows.verifies:
            started = self._verify(rows, ids, hidden)
            if self._drafter is not None:
                self._drafter.after(rows, on, ids, hidden, started.tokens)
            return _sent(started)
        if self._drafter is not None:
            self._drafter.after(rows, on, ids, hidden, None)
        scored = pooled = None
        if rows.prompt_logprobs:
            scored = self._compiled[Key("score", 1, time)](on.params, hidden, rows.targets)
        if rows.pools is not None:
            pooled = self._compiled[Key("pool", 1, time)](hidden, rows.pools)
        if not rows.draws.any():
            return _sent(_Started(None, None, scored, pooled))
        if rows.draw is None:
            tokens, on.last = self._compiled[Key("greedy", count)](on.params, final, on.last, rows.slots, rows.draws)
            return _sent(_Started(tokens, None, scored, pooled))
        drawing, on.last, on.counts = self._compiled[Key("draw", count)](
            on.params, final, on.last, on.counts, rows.slots, rows.draws, self._draw_params(rows.draw)
        )
        return _sent(_Started(drawing.tokens, drawing, scored, pooled))

    def _verify(self, rows: Rows, ids: Any, hidden: Array) -> _Started:
        given, on = (rows.slots, rows.draws, ids, rows.count), self._on
        if rows.draw is None:
            tokens, on.last = self._compiled[Key("verify_greedy", *ids.shape)](on.params, hidden, on.last, *given)
            return _Started(tokens)
        found, on.last, on.counts = self._compiled[Key("verify", *ids.shape)](
            on.params, hidden, on.last, on.counts, *given, self._draw_params(rows.draw)
        )
        return _Started(found.tokens, found)

    def fetch(self, started: _Started) -> Drawn:
        tokens, drawing, scored, pooled = jax.device_get(tuple(started))
        found = Drawn(np.zeros(0, np.int32) if tokens is None else tokens, pooled=pooled)
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
        self._on.state = self._compiled[Key("save")](self._on.state, np.int32(slot), target)

    def count(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        both = [np.full(self.shape.max_length, -1, np.int32) for _ in range(2)]
        for place, ids in zip(both, (prompt, output), strict=True):
            place[: len(ids)] = ids
        self._on.counts = self._compiled[Key("count")](self._on.counts, np.int32(slot), *both)

    def swap(self, params: Any) -> None:
        self._on.params = placed(self._model, params)

    def _draft_cost(self, rows: int) -> float:
        """Returns how many plain steps one that verifies takes."""
        return max(1.0, self._seconds(rows, self.shape.drafts + 1) / self._seconds(rows, 1))

    def _seconds(self, rows: int, time: int) -> float:
        """Returns how long a step takes: of rows that nobody uses, in page 0, which nobody reads."""
        slots, start, flags = np.full(rows, self.shape.slots, np.int32), np.zeros(rows, np.int32), np.ones(rows, bool)
        call = Rows(
            ids=np.zeros((rows, time), np.int32),
            slots=slots,
            source=slots,
            fresh=flags,
            start=start,
            count=np.full(rows, time, np.int32),
            follows=~flags,
            tables={group.name: np.zeros((rows, self.shape.row_pages), np.int32) for group in self.shape.groups},
            draws=flags,
            verifies=time > 1,
        )
        found = list[float]()
        for _ in range(_TIMED):
            begin = perf_counter()
            self.fetch(self.run(call))
            found.append(perf_counter() - begin)
        return min(found)

    def _draw_params(self, how: RowDraw) -> DrawParams:
        rows = len(how.temperature)
        mask = np.repeat(self._all_tokens, rows, axis=0) if how.mask is None else how.mask
        places = (rows, self.shape.max_biased)
        ids, bias = np.full(places, -1, np.int32), np.zeros(places, np.float32)
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
