# SPDX-License-Identifier: Apache-2.0
"""Cross-attention: how a sequence gathers from another, such as a decoder from what the encoder made.

Shape letters: B batch, T time, S length of the memory, D model dim, M memory dim.
"""

import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED
from dovetail.module import Module, ModuleError
from dovetail.ops import AttentionKernel, BlockwiseAttention, SameSegment, Tokens, Written

from ._heads import check_positive, from_heads, head_shapes, to_heads
from ._linear import DenseLinear, Linear


class CrossAttention(Module):
    """Attention to a memory: queries from `x`, keys and values from the memory, without positions.

    Where the call keeps state, keys and values of the memory are computed in the first call and kept.
    """

    class Config(Module.Config):
        dim: int = REQUIRED
        memory_dim: int | None = None  # None: as dim.
        num_heads: int = REQUIRED
        num_kv_heads: int | None = None  # None: as many as num_heads.
        head_dim: int | None = None  # None: dim / num_heads.
        scale: float | None = None  # Of the scores; None: head_dim ** -0.5.
        query: Linear.Config = DenseLinear.Config()
        key: Linear.Config = DenseLinear.Config()
        value: Linear.Config = DenseLinear.Config()
        out: Linear.Config = DenseLinear.Config()
        kernel: AttentionKernel.Config = BlockwiseAttention.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        heads, kv_heads, width = head_shapes(self, cfg)
        check_positive(self, cfg, "memory_dim")
        memory_dim = cfg.memory_dim or cfg.dim
        self._scale = width**-0.5 if cfg.scale is None else cfg.scale
        self.query = self.child("query", to_heads(cfg.query, cfg.dim, heads, width))
        self.key = self.child("key", to_heads(cfg.key, memory_dim, kv_heads, width, axis="kv_heads"))
        self.value = self.child("value", to_heads(cfg.value, memory_dim, kv_heads, width, axis="kv_heads"))
        self.out = self.child("out", from_heads(cfg.out, heads, width, cfg.dim))
        self._kernel: AttentionKernel = cfg.kernel.build(path=f"{self.path}.kernel".removeprefix("."))
        self.state_var("memory")

    def forward(
        self, x: Array, memory: Array | None = None, *, tokens: Tokens, memory_tokens: Tokens | None = None
    ) -> Array:
        """Maps `[B, T, D]` and a memory `[B, S, M]` to `[B, T, D]`.

        A token sees the memory of its own segment, where both have segments, and no padding (index EMPTY).

        Args:
            memory: may be left out once the state holds it.
            memory_tokens: of the memory; None: one document, without padding.
        """
        k, v, k_tokens = self._memory(memory, memory_tokens)
        q = self.query(self.lay(x, "batch", "seq", None))
        attended = self._kernel(
            self.lay(q, "batch", "seq", "heads", None),
            k,
            v,
            mask=SameSegment() & Written(),
            q_tokens=tokens,
            k_tokens=k_tokens,
            scale=self._scale,
            aligned=False,
        )
        attended = self.tag("attended", self.lay(attended, "batch", "seq", "heads", None))
        return self.lay(self.out(attended), "batch", "stream", None)

    def _memory(self, memory: Array | None, tokens: Tokens | None) -> tuple[Array, Array, Tokens]:
        """Returns keys, values and tokens of the memory, from the state if it has them."""
        if self.stateful and self.has_state("memory"):
            return self.memory
        if memory is None:
            raise ModuleError(f"{self!r}: there is no memory. Pass it in the first call.")
        tokens = Tokens(jnp.arange(memory.shape[1], dtype=jnp.int32)[None]) if tokens is None else tokens
        found = (*self.tag("kv", (self.key(memory), self.value(memory))), tokens)
        if self.stateful:
            self.update("memory", found)
        return found
