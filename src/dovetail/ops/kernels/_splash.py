# SPDX-License-Identifier: Apache-2.0
"""Attention on TPUs by JAX's splash kernel: blocks of queries and keys, without those that the mask rules out.

Shape letters: B batch, T queries, S keys, H query heads, G key heads, K key dim, V value dim.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail.config import ConfigError

from .._attention import AttentionInputs, AttentionKernel, Part, Parts, Scoring
from .._kernel_choice import Support
from ._band import Band, band_of, offers
from ._pallas import runs_whole_on
from ._residuals import with_named_residuals

_LANES = 128  # Blocks are multiples of what a vector register of a TPU holds.


class SplashAttention(AttentionKernel):
    """JAX's Pallas kernel for TPUs. Key heads are shared, not repeated; keys and values may differ in their dims.

    Blocks shrink to the largest multiple of 128 that divides the sequence.
    """

    class Config(AttentionKernel.Config):
        block_q: int = 1024  # Queries in a block.
        block_kv: int = 1024  # Keys in a block.
        block_kv_compute: int = 512  # Of those, how many are multiplied at once.
        max_copies: int = 4  # The backward pass is one kernel if it has so few blocks of keys, else two: see `_blocks`.
        interpret: bool = False  # Runs on any platform, slowly, for tests.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        for name in ("block_q", "block_kv", "block_kv_compute"):
            size = getattr(cfg, name)
            if size < 1 or size % _LANES:
                where = self._path or "SplashAttention"
                raise ConfigError(f"{where}: {name} is {size}, expected a multiple of {_LANES}.")

    def supports(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Support:
        if not (here := runs_whole_on("tpu", interpret=self.cfg.interpret)):
            return here
        if not aligned:
            return Support("queries and keys are different tokens")
        queries = aligned.size if isinstance(aligned, Parts) else inputs.q.shape[1]
        for name, length in (("queries", queries), ("keys", inputs.k.shape[1])):
            if length % _LANES:
                return Support(f"{length} {name} in a row are not a multiple of {_LANES}")
        return offers("splash", ("a window", "packed documents", "soft_cap", "sinks"), inputs, scoring)

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

        q, k, v, q_tokens, k_tokens, _, sinks, *_ = inputs
        band = band_of(scoring.mask)
        assert band is not None
        segments = None
        if band.documents and q_tokens.segment is not None and k_tokens.segment is not None:
            segments = splash.SegmentIds(q_tokens.segment, k_tokens.segment)

        @with_named_residuals
        def run(inputs: tuple[Array, Array, Array, Array | None], others: Any) -> Array:
            (*qkv, sinks), (kernel, segments) = inputs, others
            return jax.vmap(kernel, in_axes=(0, 0, 0, None if segments is None else 0, None))(*qkv, segments, sinks)

        q, k, v = (x.swapaxes(1, 2) for x in (q * jnp.asarray(scoring.scale, q.dtype), k, v))
        out = run((q, k, v, sinks), (self._kernel(inputs, scoring, band, aligned), segments))
        return out.swapaxes(1, 2)

    def _kernel(self, inputs: AttentionInputs, scoring: Scoring, band: Band, aligned: bool | Parts) -> Any:
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

        length, keys, heads = inputs.q.shape[1], inputs.k.shape[1], inputs.q.shape[2]
        split = aligned if isinstance(aligned, Parts) and not _is_full(band) else None
        parts = (Part((0,), length),) if split is None else split.parts
        mask = _mask(band, parts, keys)
        kernel = splash.make_splash_mha(
            masks.MultiHeadMask([mask] * heads),
            block_sizes=self._blocks(parts[0].size, keys),
            head_shards=1,
            q_seq_shards=len(parts),
            attn_logits_soft_cap=scoring.soft_cap,
            interpret=self.cfg.interpret,
        )
        return kernel if split is None else _part_of(kernel, split)

    def _blocks(self, queries: int, keys: int) -> Any:
        """Returns the blocks' sizes.

        The kernel that computes all gradients in one go writes those of the queries once for each block of keys, and
        adds them up later. For long sequences, this would need more memory than all else.
        """
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

        rows, columns = _largest(queries, self.cfg.block_q), _largest(keys, self.cfg.block_kv)
        part = _largest(columns, self.cfg.block_kv_compute)
        one = keys // columns <= self.cfg.max_copies
        return splash.BlockSizes(
            block_q=rows,
            block_kv=columns,
            block_kv_compute=part,
            block_q_dkv=rows,
            block_kv_dkv=columns,
            block_kv_dkv_compute=part,
            block_q_dq=None if one else rows,
            block_kv_dq=None if one else part,
            use_fused_bwd_kernel=one,
        )


def _largest(length: int, most: int) -> int:
    """Returns the largest block that divides a length."""
    return max(size for size in range(_LANES, min(most, length) + 1, _LANES) if length % size == 0)


def _is_full(band: Band) -> bool:
    """Whether it rules nothing out, but for documents, which the kernel only knows when it runs."""
    return not band.causal and band.window is None


def _mask(band: Band, parts: tuple[Part, ...], keys: int) -> Any:
    """Returns what the kernel may see of all parts, one after the other."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    queries = np.concatenate([np.arange(at, at + part.size) for part in parts for at in part.starts])
    shape = (len(queries), keys)
    if _is_full(band):
        return masks.FullMask(shape)
    if band.window is None:
        mask = masks.CausalMask(shape)
    else:
        mask = masks.LocalMask(shape, (band.window - 1, 0 if band.causal else None), 0)
    mask.q_sequence = queries.astype(np.int32)
    return mask


def _part_of(kernel: Any, split: Parts) -> Any:
    """Returns the kernel for one of several parts of the queries, all of which its mask describes."""

    def of(x: Any, axis: int) -> Any:
        if x is None:
            return None
        parts = x.reshape(*x.shape[:axis], len(split.parts), -1, *x.shape[axis + 1 :])
        return jax.lax.dynamic_index_in_dim(parts, split.choice, axis, keepdims=False)

    def part(info: Any) -> Any:
        return info._replace(
            data_next=of(info.data_next, 1),
            mask_next=of(info.mask_next, 1),
            block_mask=of(info.block_mask, 1),
            q_sequence=of(info.q_sequence, 0),
        )

    infos, kwargs = kernel.tree_flatten()
    return kernel.tree_unflatten(kwargs, [None if info is None else part(info) for info in infos])
