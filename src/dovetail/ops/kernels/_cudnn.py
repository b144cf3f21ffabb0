# SPDX-License-Identifier: Apache-2.0
"""Attention on NVIDIA GPUs by cuDNN, for rows of one document.

cuDNN has a form for packed documents, but JAX needs to know how many a row has at most, keeps the sums of a row's
scores once for each of them, and finds keys by the number of query heads, which is wrong where key heads are shared.
"""

import jax
import jax.numpy as jnp
from jax import Array

from .._attention import AttentionInputs, AttentionKernel, Parts, Scoring
from .._choice import Support
from .._platform import runs_on
from ._band import band_of
from ._residuals import with_named_residuals


class CudnnAttention(AttentionKernel):
    """The fused attention of NVIDIA's cuDNN library."""

    def supports(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Support:
        q, k, v, tokens, _, bias, sinks = inputs
        if not (here := runs_on("cuda")):
            return here
        if aligned is not True:
            return Support("queries and keys are different tokens")
        band = band_of(scoring.mask)
        if band is None or (band.window is not None and not band.causal):
            return Support(f"the mask {scoring.mask} is not offered by cuDNN")
        if band.documents and tokens.segment is not None:
            return Support("packed documents are not offered by cuDNN")
        for name, value in (("soft_cap", scoring.soft_cap), ("a bias", bias), ("a sink", sinks)):
            if value is not None:
                return Support(f"{name} is not offered by cuDNN")
        if q.dtype not in (jnp.bfloat16, jnp.float16):
            return Support(f"{q.dtype} is not offered by cuDNN")
        if k.shape[-1] != v.shape[-1] or k.shape[-1] % 8 or k.shape[-1] > 128:
            return Support(f"dims {k.shape[-1]} of keys and {v.shape[-1]} of values: expected a multiple of 8 up to 128")
        return Support() if _is_installed() else Support("the library cuDNN is not found")

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        band = band_of(scoring.mask)
        assert band is not None

        @with_named_residuals
        def run(q: Array, k: Array, v: Array, _: None) -> Array:
            window = None if band.window is None else (band.window - 1, 0)
            return jax.nn.dot_product_attention(
                q,
                k,
                v,
                scale=scoring.scale,
                is_causal=band.causal,
                local_window_size=window,
                implementation="cudnn",
            )

        return run(inputs.q, inputs.k, inputs.v, None)


def _is_installed() -> bool:
    from jax._src.lib import cuda_versions  # JAX has no public way to ask.

    try:
        return cuda_versions is not None and cuda_versions.cudnn_get_version() > 0
    except RuntimeError:
        return False
