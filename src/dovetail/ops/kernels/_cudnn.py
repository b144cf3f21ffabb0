# SPDX-License-Identifier: Apache-2.0
"""Attention on NVIDIA GPUs by cuDNN, for rows of one document.

cuDNN has a form for packed documents, but JAX needs to know how many a row has at most, keeps the sums of a row's
scores once for each of them, and finds keys by the number of query heads, which is wrong where key heads are shared.
"""

import jax
import jax.numpy as jnp
from jax import Array

from .._attention import AttentionInputs, AttentionKernel, Parts, Scoring
from .._kernel_choice import Support
from .._platform import runs_on
from ._band import band_of, offers
from ._residuals import with_named_residuals


class CudnnAttention(AttentionKernel):
    """The fused attention of NVIDIA's cuDNN library."""

    def supports(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Support:
        if not (here := runs_on("cuda")):
            return here
        if aligned is not True:
            return Support("queries and keys are different tokens")
        dtype, key_dim, value_dim = inputs.q.dtype, inputs.k.shape[-1], inputs.v.shape[-1]
        if dtype not in (jnp.bfloat16, jnp.float16):
            return Support(f"cuDNN does not offer {dtype}")
        if key_dim != value_dim or key_dim % 8 or key_dim > 128:
            return Support(f"keys have dim {key_dim}, values {value_dim}: expected one multiple of 8 up to 128")
        band = band_of(scoring.mask)
        window = ("a window",) if band is not None and band.causal else ()
        if not (offered := offers("cuDNN", window, inputs, scoring)):
            return offered
        return Support() if _is_installed() else Support("the library cuDNN is not found")

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        band = band_of(scoring.mask)
        assert band is not None

        @with_named_residuals
        def run(inputs: tuple[Array, Array, Array], _: None) -> Array:
            window = None if band.window is None else (band.window - 1, 0)
            return jax.nn.dot_product_attention(
                *inputs,
                scale=scoring.scale,
                is_causal=band.causal,
                local_window_size=window,
                implementation="cudnn",
            )

        return run(inputs[:3], None)


def _is_installed() -> bool:
    from jax._src.lib import cuda_versions  # JAX has no public way to ask.

    try:
        return cuda_versions is not None and cuda_versions.cudnn_get_version() > 0
    except RuntimeError:
        return False
