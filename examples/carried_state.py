# SPDX-License-Identifier: Apache-2.0
"""State carried from step to step: a recurrent model reads documents that are longer than any row, one row at a time.

A row of a batch goes on where the same row of the batch before ended (`ConsecutivePacker`), and so does the state of
the layers. No gradient goes from one row to the row before (truncated backpropagation through time). On a mesh, each
device has the states of all rows: `mesh.rules.parameters` may split them by a logical axis of your own.

    dovetail train examples/carried_state.py:run directory=runs/carried

Shape letters: B batch, T time.
"""

import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, replace_all
from dovetail.data import ConsecutivePacker, Packer
from dovetail.models import CausalLM
from dovetail.module import Loss, Objective, abstract, state_specs
from dovetail.nn import GatedDeltaNet, Mixer
from dovetail.zoo import recipe


class CarriedState(Objective):
    """Trains a model whose state at the end of a batch is that at the start of the next: its layers are recurrent."""

    sums_over_rows = False  # Each row has a state of its own, so that all of them are in one call.

    class Config(Objective.Config):
        model: CausalLM.Config = REQUIRED
        rows: int = REQUIRED  # Of a batch.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.model = self.child("model", cfg.model)
        alone = cfg.model.build(path=self.model.path)
        names = ("tokens", "targets", "weights", "segments", "positions")
        batch = {name: jax.ShapeDtypeStruct((cfg.rows, 1), jnp.int32) for name in names}
        specs = state_specs(alone, abstract(alone), batch, method="loss", sizes={"batch": cfg.rows})
        self._length = specs.pop(f"{self.model.path}.length")  # That of all rows so far: of no use to recurrent layers.
        self._names = {path: re.sub(r"\W", "_", path) for path in specs}
        for path, spec in specs.items():
            whole = {"axes": (None,) * len(spec.shape), "lifetime": "run"}
            self.state(self._names[path], spec.shape, dtype=spec.dtype, init=spec.spec.init, **whole)
        self.state("segment", (cfg.rows,), axes=(None,), dtype=jnp.int32, lifetime="run")

    def loss(self, batch: Mapping[str, Array]) -> Loss:
        """Returns the loss of rows `[B, T]` that go on where those of the batch before ended."""
        # Segments are counted on, so that a document has the same number in all of its rows.
        segments = self.segment[:, None] + jnp.cumsum(batch["positions"] == 0, axis=1)
        pure = self.lift(self.model.loss)
        state = {path: getattr(self, name) for path, name in self._names.items()}
        state[f"{self.model.path}.length"] = self._length.make()
        found, left = pure(pure.params, state, pure.key, {**batch, "segments": segments})
        self.bring(left)
        if self.training:
            self.update("segment", segments[:, -1])
            for path, name in self._names.items():
                self.update(name, left.state[path])
        return found


def with_carried_state(cfg):
    """Returns a run of the same size whose mixers are recurrent, and whose rows go on from batch to batch."""
    cfg = replace_all(
        Mixer.Config, GatedDeltaNet.Config(num_heads=4, key_head_dim=8, value_head_dim=8), drop="unplaced"
    )(cfg)
    cfg = cfg.set(input=replace_all(Packer.Config, ConsecutivePacker.Config())(cfg.input).set(streams=None))
    return cfg.set(model=CarriedState.Config(model=cfg.model, rows=cfg.input.batch_size), evaluators={})


def run():
    return with_carried_state(recipe("llama3-tiny"))
