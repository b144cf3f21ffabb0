# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention: keys and values of all heads are maps of one short vector for each token.

Reference: DeepSeek-AI, DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model, 2024
(arXiv:2405.04434).

Shape letters: B batch, T time, H heads, N dim of keys without position, P dim of keys with position, V value dim, C dim
of the latent vector.
"""

import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED
from dovetail.ops import AttentionKernel, BlockwiseAttention, Written

from ._cache import Cache, DenseCache
from ._context import Context
from ._heads import check_positive, from_heads, to_heads
from ._linear import DenseLinear, Linear
from ._mixer import Mixer
from ._norm import Norm, RMSNorm
from ._rotary import RoPE, Rotary


class LatentAttention(Mixer):
    """Attention with keys and values from a latent vector, and one more key, with position, that all heads share.

    Where the call keeps state, only the latent vector and the shared key are cached. The maps from the latent vector
    are then applied to queries and results instead of to each cached token, which is the same.
    """

    class Config(Mixer.Config):
        num_heads: int = REQUIRED
        query_rank: int | None = None  # Of a latent vector for queries; None: queries come from the input.
        kv_rank: int = 512
        nope_dim: int = 128  # Of the part of queries and keys without position.
        rope_dim: int = 64  # Of the part with position; the key is shared by all heads.
        value_dim: int = 128
        scale: float | None = None  # Of the scores; None: (nope_dim + rope_dim) ** -0.5.
        query_down: Linear.Config = DenseLinear.Config()
        query_norm: Norm.Config = RMSNorm.Config()
        query: Linear.Config = DenseLinear.Config()
        kv_down: Linear.Config = DenseLinear.Config()
        kv_norm: Norm.Config = RMSNorm.Config()
        key_rope: Linear.Config = DenseLinear.Config()
        key_up: Linear.Config = DenseLinear.Config()
        value_up: Linear.Config = DenseLinear.Config()
        out: Linear.Config = DenseLinear.Config()
        rotary: Rotary.Config = RoPE.Config()
        kernel: AttentionKernel.Config = BlockwiseAttention.Config()
        cache: Cache.Config = DenseCache.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        check_positive(self, cfg, "num_heads", "query_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim")
        heads, width = cfg.num_heads, cfg.nope_dim + cfg.rope_dim
        self._scale = width**-0.5 if cfg.scale is None else cfg.scale

        def down(to: Linear.Config, rank: int) -> Linear.Config:
            return to.set(in_shape=(cfg.dim,), in_axes=("embed",), out_shape=(rank,), out_axes=("latent",))

        self.query_down = None
        if cfg.query_rank is not None:
            self.query_down = self.child("query_down", down(cfg.query_down, cfg.query_rank))
            self.query_norm = self.child("query_norm", cfg.query_norm.set(dim=cfg.query_rank, axis="latent"))
        source = {"in_axes": ("embed" if cfg.query_rank is None else "latent",)}
        self.query = self.child("query", to_heads(cfg.query, cfg.query_rank or cfg.dim, heads, width).set(**source))
        self.kv_down = self.child("kv_down", down(cfg.kv_down, cfg.kv_rank))
        self.kv_norm = self.child("kv_norm", cfg.kv_norm.set(dim=cfg.kv_rank, axis="latent"))
        self.key_rope = self.child(
            "key_rope", to_heads(cfg.key_rope, cfg.dim, 1, cfg.rope_dim).set(out_axes=(None, "head_dim"))
        )
        up = {"in_axes": ("latent",)}
        self.key_up = self.child("key_up", to_heads(cfg.key_up, cfg.kv_rank, heads, cfg.nope_dim).set(**up))
        self.value_up = self.child("value_up", to_heads(cfg.value_up, cfg.kv_rank, heads, cfg.value_dim).set(**up))
        self.out = self.child("out", from_heads(cfg.out, heads, cfg.value_dim, cfg.dim))
        self.rotary = self.child("rotary", cfg.rotary.set(head_dim=cfg.rope_dim))
        self._kernel: AttentionKernel = cfg.kernel.build(path=f"{self.path}.kernel".removeprefix("."))
        kept = {"latent": (1, cfg.kv_rank + cfg.rope_dim)}
        self.cache = self.child("cache", cfg.cache.set(entries=kept, axes={"latent": (None, None)}, window=None))

    def forward(self, x: Array, context: Context) -> Array:
        x = self.constrain(x, "batch", "seq", None)
        q = self.query(x if self.query_down is None else self.query_norm(self.query_down(x), context))
        nope, rope = jnp.split(q, [self.cfg.nope_dim], axis=-1)
        rope = self.rotary(rope, context.positions)
        latent, shared = self.kv_norm(self.kv_down(x), context), self.rotary(self.key_rope(x), context.positions)
        latent, shared = self.tag("latent", (latent, shared))
        attend = self._from_cache if self.stateful else self._from_heads
        attended = attend(nope, rope, latent, shared, context)
        attended = self.tag("attended", self.constrain(attended, "batch", "seq", "heads", None))
        return self.constrain(self.out(attended), "batch", "stream", None)

    def _from_heads(self, nope: Array, rope: Array, latent: Array, shared: Array, context: Context) -> Array:
        """Attends to keys and values of each head, `[B, T, H, N + P]` and `[B, T, H, V]`."""
        keys = self.key_up(latent)
        shared = jnp.broadcast_to(shared, (*keys.shape[:3], shared.shape[-1]))
        q, k = jnp.concatenate([nope, rope], axis=-1), jnp.concatenate([keys, shared], axis=-1)
        q, k, v = (self.constrain(each, "batch", "seq", "heads", None) for each in (q, k, self.value_up(latent)))
        q, k, v = self.tag("qkv", (q, k, v))
        tokens, mask = context.tokens, context.mask
        return self._kernel(q, k, v, mask=mask, q_tokens=tokens, k_tokens=tokens, scale=self._scale, aligned=True)

    def _from_cache(self, nope: Array, rope: Array, latent: Array, shared: Array, context: Context) -> Array:
        """Attends to the latent vectors of all tokens so far, as one key head of dimension C + P."""
        view = self.cache({"latent": jnp.concatenate([latent[:, :, None], shared], axis=-1)}, context.tokens)
        q = jnp.concatenate([jnp.einsum("bthn,chn->bthc", nope, self.key_up.matrix()), rope], axis=-1)
        k = view.values["latent"]
        attended = self._kernel(
            q,
            k,
            k,  # As values too: what comes of the shared key is dropped, which is cheaper than a copy of the rest.
            mask=context.mask & Written(),
            q_tokens=context.tokens,
            k_tokens=view.tokens,
            pages=view.pages,
            scales=view.scales_of("latent", "latent"),
            scale=self._scale,
            aligned=False,
        )
        return jnp.einsum("bthc,chv->bthv", attended[..., : self.cfg.kv_rank], self.value_up.matrix())
