# SPDX-License-Identifier: Apache-2.0
"""Attention on NVIDIA GPUs by JAX's Pallas kernel, which Triton compiles; it knows packed documents."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from .._attention import AttentionInputs, AttentionKernel, Parts, Scoring
from .._kernel_choice import Support
from ._band import band_of, offers
from ._pallas import runs_whole_on
from ._residuals import with_named_residuals

_BLOCK = 128
# JAX's kernels, by name: how many products they make of queries and keys, or as large as those. The backward one makes
# the scores twice.
_PRODUCTS = {"mha_forward": 2, "mha_backward": 7}


def stated_flops(kernel: str, shapes: Sequence[tuple[int, ...]]) -> int | None:
    """Returns the operations of one of JAX's kernels used here, given its inputs: it loops inside, and says no cost.

    None: it is another kernel.
    """
    if kernel not in _PRODUCTS:
        return None
    (rows, length, heads, dim), keys = shapes[0], shapes[1][1]
    return _PRODUCTS[kernel] * 2 * rows * heads * length * keys * dim


class TritonAttention(AttentionKernel):
    """JAX's Pallas kernel for GPUs. Key heads are repeated; values are padded to the dim of keys."""

    class Config(AttentionKernel.Config):
        num_stages: int = 2  # Of the pipeline that loads keys while others are in use.
        interpret: bool = False  # Runs on any platform, slowly, for tests.

    def supports(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Support:
        if not (here := runs_whole_on("cuda", interpret=self.cfg.interpret)):
            return here
        if aligned is not True:
            return Support("queries and keys are different tokens")
        length, key_dim, value_dim = inputs.q.shape[1], inputs.k.shape[-1], inputs.v.shape[-1]
        if length % _BLOCK:
            return Support(f"{length} tokens in a row are not a multiple of {_BLOCK}")
        if not value_dim <= key_dim <= 256:
            return Support(f"keys have dim {key_dim}, values {value_dim}: expected at most 256, and no more in values")
        return offers("the Pallas kernel for GPUs", ("packed documents",), inputs, scoring)

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        from jax.experimental.pallas.ops.gpu import attention

        band = band_of(scoring.mask)
        assert band is not None
        # Of those that fit into the shared memory of A100, H100 and B200. In the backward pass, the larger blocks are
        # those whose gradients are computed, and the smaller ones those that they meet.
        large, small = (_BLOCK, 32) if inputs.k.shape[-1] <= 128 else (64, 32)
        blocks = attention.BlockSizes(
            block_q=large,
            block_k=64,
            block_q_dkv=small,
            block_kv_dkv=large,
            block_q_dq=large,
            block_kv_dq=small,
        )

        @with_named_residuals
        def run(inputs: tuple[Array, Array, Array], segments: Array | None) -> Array:
            return attention.mha(
                *inputs,
                segments,
                sm_scale=scoring.scale,
                causal=band.causal,
                block_sizes=blocks,
                num_stages=self.cfg.num_stages,
                interpret=self.cfg.interpret,
            )

        q, k, v = inputs[:3]
        repeats, value_dim = q.shape[2] // k.shape[2], v.shape[-1]
        v = jnp.pad(v, ((0, 0), (0, 0), (0, 0), (0, k.shape[-1] - value_dim)))
        k, v = (jnp.repeat(x, repeats, axis=2) for x in (k, v))
        return run((q, k, v), inputs.q_tokens.segment if band.documents else None)[..., :value_dim]
