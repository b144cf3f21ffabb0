# SPDX-License-Identifier: Apache-2.0
"""A logit lens: how well each layer would predict the next token if it were the last one.

Reference: nostalgebraist, interpreting GPT: the logit lens, 2020.

    dovetail train examples/logit_lens.py:run
"""

import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail.config import REQUIRED, replace_all
from dovetail.data import Input
from dovetail.module import per_layer
from dovetail.nn import Block, Context, Layer
from dovetail.train import Evaluated, Evaluator, Findings
from dovetail.zoo import recipe


class Visible(Layer):
    """Reports what a layer makes, except in training."""

    class Config(Layer.Config):
        inner: Layer.Config = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.inner = self.child("inner", cfg.inner.set(dim=cfg.dim))

    def forward(self, x: Array, context: Context) -> Array:
        y = self.inner(x, context)
        if not self.training:
            self.summary("made", y)
        return y


class LogitLens(Evaluator):
    """The share of tokens of one batch that each layer would get right."""

    class Config(Evaluator.Config):
        input: Input.Config = REQUIRED

    def run(self, at: Evaluated) -> Findings:
        batch = next(iter(self.program.devices.batches(self.cfg.input.build(path=f"{self._path}.input"))))
        _, collected = self.program.call(at, batch)
        found = {path: made for path, made in per_layer(collected.summaries).items() if path.endswith(".made")}
        shares: dict[str, float] = {}
        for path, made in found.items():
            logits, _ = self.program.call(at, made, method="logits_of")
            right = jnp.argmax(logits, axis=-1) == batch["targets"]
            total = jnp.sum(batch["weights"])
            shares[path.removesuffix(".made")] = float(
                np.asarray(jnp.sum(jnp.where(right, batch["weights"], 0)) / total)
            )
        return Findings(shares)


def with_logit_lens(cfg):
    cfg = replace_all(Block.Config, lambda block: Visible.Config(inner=block))(cfg)
    return cfg.set(evaluators={**cfg.evaluators, "lens": LogitLens.Config(input=cfg.input, every=50)})


def run():
    return with_logit_lens(recipe("llama3-tiny"))
