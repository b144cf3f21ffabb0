# SPDX-License-Identifier: Apache-2.0
"""Cross-attention: how a sequence gathers from another, such as a decoder from what the encoder made.

Shape letters: B batch, T time, S length of the memory, D model dim, M memory dim, G key heads, K head dim.
"""

import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED
from dovetail.module import ModuleError
from dovetail.ops import EMPTY, AttentionKernel, BlockwiseAttention, SameSegment, Tokens, Written

from ._context import Context
from ._heads import check_positive, from_heads, head_shapes, to_heads
from ._linear import DenseLinear, Linear
from ._mixer import Mixer


class CrossAttention(Mixer):
    """Attention to a memory: queries from `x`, keys and values from the memory, without positions.

    The context has it as `given`: "memory", `[B, S, M]`, and, unless it is one document without padding, its `Tokens`
    as "memory_tokens". A token sees the memory of its own segment, where both have segments, and no padding. Where
    the call keeps state, keys and values of a memory that is given are kept, with room for "memory" positions, and used
    in later calls, in which none is given.
    """

    class Config(Mixer.Config):
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
        size, axes = ("batch", "memory"), ("batch", None)
        for name in ("kept_keys", "kept_values"):
            self.state(name, (*size, kv_heads, width), axes=(*axes, "kv_heads", None))
        self.state("kept_index", size, axes=axes, dtype=jnp.int32, init=EMPTY)
        self.state("kept_segment", size, axes=axes, dtype=jnp.int32)

    def forward(self, x: Array, context: Context) -> Array:
        k, v, k_tokens = self._memory(x, context)
        q = self.query(self.constrain(x, "batch", "seq", None))
        attended = self._kernel(
            self.constrain(q, "batch", "seq", "heads", None),
            k,
            v,
            mask=SameSegment() & Written(),
            q_tokens=context.tokens,
            k_tokens=k_tokens,
            scale=self._scale,
            aligned=False,
        )
        attended = self.tag("attended", self.constrain(attended, "batch", "seq", "heads", None))
        return self.constrain(self.out(attended), "batch", "stream", None)

    def _memory(self, x: Array, context: Context) -> tuple[Array, Array, Tokens]:
        """Returns keys, values and tokens of the memory: of the one that is given, or else of the one that is kept."""
        has_segments = context.tokens.segment is not None
        if self.stateful and "memory" not in context.given:
            segment = self.kept_segment if has_segments else None
            return self.kept_keys.astype(x.dtype), self.kept_values.astype(x.dtype), Tokens(self.kept_index, segment)
        memory = context.need("memory")
        tokens = context.given.get("memory_tokens") or Tokens(jnp.arange(memory.shape[1], dtype=jnp.int32)[None])
        k, v = self.tag("kv", (self.key(memory), self.value(memory)))
        if self.stateful:
            if (length := memory.shape[1]) > (room := self.kept_index.shape[1]):
                raise ModuleError(
                    f"{self!r}: a memory of {length} positions, and room for {room}. "
                    "Use a larger size 'memory' in state_specs."
                )
            segment = jnp.ones_like(tokens.index) if tokens.segment is None else tokens.segment
            found = {"keys": k, "values": v, "index": tokens.index, "segment": segment}
            for name, value in found.items():
                old = getattr(self, f"kept_{name}")
                self.update(f"kept_{name}", _placed(value, old, EMPTY if name == "index" else 0))
        return k, v, tokens


def _placed(value: Array, old: Array, fill: int) -> Array:
    """Returns `[B or 1, S, ...]` with room for more positions, as state has it."""
    value = jnp.broadcast_to(value, (old.shape[0], *value.shape[1:])).astype(old.dtype)
    more = [(0, 0)] * value.ndim
    more[1] = (0, old.shape[1] - value.shape[1])
    return jnp.pad(value, more, constant_values=fill)
