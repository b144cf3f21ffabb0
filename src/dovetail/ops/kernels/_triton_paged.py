# SPDX-License-Identifier: Apache-2.0
"""Attention on NVIDIA GPUs to keys and values in pages, by JAX's Pallas kernel: single tokens, or a few of each row.

Shape letters: B batch, T queries, H query heads, G key heads, K head dim, P pages, L tokens of a page, S keys that a
query may see, at most.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError

from .._attention import AttentionInputs, AttentionKernel, Parts, Scoring
from .._kernel_choice import Support
from .._masks import EMPTY
from ._band import band_of, offers
from ._pallas import runs_whole_on
from ._ragged_paged import without_written

_HEADS = 16  # Rows of a product that Triton makes, at least.
_LARGEST = 2**31  # What its indices count up to.


class TritonPagedAttention(AttentionKernel):
    """JAX's Pallas kernel for pages on GPUs, which decodes: each query reads the keys of its row by itself.

    The kernel wants the pages of each head together, and would copy those that lie as ours do. So it is told of pages
    of one key each, which lie as they are, and of a table for each head; then a window is a part of that table.
    """

    class Config(AttentionKernel.Config):
        most_queries: int = 8  # Of a row. Prompts have more: to read all keys for each of their tokens takes too long.
        block: int = 64  # Keys that are looked at together.
        splits: int = 8  # Parts of a row that run at once, at most.
        interpret: bool = False  # Runs on any platform, slowly, for tests.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        for name in ("most_queries", "block", "splits"):
            if (size := getattr(cfg, name)) < 1:
                raise ConfigError(f"{self._path or 'TritonPagedAttention'}: {name} is {size}, expected at least 1.")

    @property
    def reads_pages(self) -> bool:
        return True

    def supports(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Support:
        if not (here := runs_whole_on("cuda", interpret=self.cfg.interpret)):
            return here
        if inputs.pages is None:
            return Support("keys and values are not in pages")
        if inputs.pairs is not None:
            return Support("keys and values lie in pairs")
        if inputs.q.shape[1] > self.cfg.most_queries:
            return Support(f"{inputs.q.shape[1]} queries of a row, expected at most {self.cfg.most_queries}")
        if inputs.k.shape != inputs.v.shape:
            return Support(f"keys have dim {inputs.k.shape[-1]}, values {inputs.v.shape[-1]}: expected the same")
        dim = inputs.k.shape[-1]
        if not self.cfg.interpret and (dim < _HEADS or dim & (dim - 1)):
            return Support(f"heads have dim {dim}, expected a power of two, at least {_HEADS}")
        if not self.cfg.interpret and inputs.q.dtype == jnp.float32:
            return Support("queries are float32, of which it would make products in 10 bits")
        if inputs.k.size >= _LARGEST:
            return Support(f"there are {inputs.k.size} numbers in all pages, expected less than {_LARGEST}")
        plain = Scoring(without_written(scoring.mask), scoring.scale, scoring.soft_cap)
        band = band_of(plain.mask)
        if band is not None and not band.causal:
            return Support("the mask is not causal")
        return offers("the kernel for pages on GPUs", ("a window", "soft_cap"), inputs, plain)

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

        q, k, table = inputs.q, inputs.k, inputs.pages
        assert table is not None
        band = band_of(without_written(scoring.mask))
        assert band is not None
        heads, dim = k.shape[2:]
        keys, lengths = _keys_of(inputs, table, band.window)
        blocks = -(-keys.shape[-1] // self.cfg.block)
        splits = min(self.cfg.splits, blocks)
        blocks = -(-blocks // splits) * splits
        keys = jnp.pad(keys, ((0, 0), (0, blocks * self.cfg.block - keys.shape[-1])), mode="edge")
        by_head = keys[:, None] * heads + jnp.arange(heads, dtype=jnp.int32)[:, None]  # [B T, G, S]
        scaled = (q.astype(jnp.float32) * scoring.scale).astype(q.dtype)
        scales = (None, None) if inputs.scales is None else tuple(each.reshape(1, -1, 1) for each in inputs.scales)
        out = paged_attention(
            scaled.reshape(-1, q.shape[2] // heads, dim),
            k.reshape(1, -1, 1, dim),
            inputs.v.reshape(1, -1, 1, dim),
            by_head.reshape(-1, keys.shape[-1]),
            jnp.repeat(lengths, heads),
            *scales,
            block_h=_HEADS,
            pages_per_compute_block=self.cfg.block,
            k_splits=splits,
            num_warps=4,
            attn_logits_soft_cap=scoring.soft_cap,
            interpret=self.cfg.interpret,
        )
        return out.reshape(q.shape)


def _keys_of(inputs: AttentionInputs, table: Array, window: int | None) -> tuple[Array, Array]:
    """Returns where the keys lie that each query sees, `[B T, S]`, as numbers of tokens of all pages; and how many.

    Behind them, the first one is named again: what nobody has written must not get into a product, not even by zero.
    """
    size, time = inputs.k.shape[1], inputs.q.shape[1]
    index = jnp.broadcast_to(inputs.q_tokens.index, inputs.q.shape[:2]).astype(jnp.int32)
    lengths = jnp.where(index == EMPTY, 0, index + 1).reshape(-1)
    capacity = table.shape[1] * size
    first, most = jnp.zeros_like(lengths), capacity
    if window is not None and window < capacity:
        first, most = jnp.maximum(lengths - window, 0), window
        lengths = lengths - first
    place = jnp.arange(most, dtype=jnp.int32)
    place = first[:, None] + jnp.where(place < lengths[:, None], place, 0)
    pages = jnp.take_along_axis(jnp.repeat(table.astype(jnp.int32), time, axis=0), place // size, axis=1)
    return pages * size + place % size, lengths
