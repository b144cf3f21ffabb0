# SPDX-License-Identifier: Apache-2.0
"""Per-layer embeddings: each layer has a small table of its own, looked up by the ids of the tokens.

Reference: Google, Gemma 3n, 2025 (ai.google.dev/gemma/docs/gemma-3n).

    dovetail train examples/per_layer_embeddings.py:run
"""

import jax
from jax import Array

from dovetail.config import REQUIRED, replace_all
from dovetail.nn import Block, Context, DenseLinear, Embedding, Layer, Linear
from dovetail.zoo import recipe


class LayerEmbedding(Layer):
    """Adds `up(gelu(down(y)) * table[id])` to what a layer makes, `y`."""

    class Config(Layer.Config):
        inner: Layer.Config = REQUIRED
        table: Embedding.Config = REQUIRED
        embedding_dim: int = 8
        down: Linear.Config = DenseLinear.Config()
        up: Linear.Config = DenseLinear.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        wide, narrow = ((cfg.dim,), ("embed",)), ((cfg.embedding_dim,), (None,))

        def linear(name, source, target):
            ends = {"in_shape": source[0], "in_axes": source[1], "out_shape": target[0], "out_axes": target[1]}
            return self.child(name, getattr(cfg, name).set(**ends))

        self.inner = self.child("inner", cfg.inner.set(dim=cfg.dim))
        self.table = self.child("table", cfg.table.set(dim=cfg.embedding_dim))
        self.down, self.up = linear("down", wide, narrow), linear("up", narrow, wide)

    def forward(self, x: Array, context: Context) -> Array:
        y = self.inner(x, context)
        return y + self.up(jax.nn.gelu(self.down(y)) * self.table(context.ids))


def with_layer_embeddings(cfg):
    table = Embedding.Config(vocab_size=cfg.model.vocab_size)
    return replace_all(Block.Config, lambda block: LayerEmbedding.Config(inner=block, table=table))(cfg)


def run():
    return with_layer_embeddings(recipe("llama3-tiny"))
