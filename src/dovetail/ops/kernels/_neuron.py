# SPDX-License-Identifier: Apache-2.0
"""Attention on Trainium by the flash attention of AWS's Neuron kernel library.

Shape letters: B batch, T queries, S keys, H query heads, G key heads, K head dim.
"""

import functools
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.module import kernel_result

from .._attention import AttentionInputs, AttentionKernel, Parts, Scoring
from .._kernel_choice import Support
from .._platform import device_kind
from ._band import band_of, offers
from ._pallas import runs_whole_on
from ._residuals import RESIDUALS

_TILES = (2048, 1024, 512)  # Keys that the forward kernel takes at once: a length must be a multiple of one.


class NeuronAttention(AttentionKernel):
    """`flash_fwd` and `flash_attn_bwd` of `neuronxcc.nki.kernels.attention`. Rows are of one document."""

    def supports(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Support:
        if not (here := runs_whole_on("neuron", interpret=False)):
            return here
        for package in ("neuronxcc", "jax_neuronx"):
            if importlib.util.find_spec(package) is None:
                return Support(f"the package {package} is not installed")
        if aligned is not True:
            return Support("queries and keys are different tokens")
        length, key_dim, value_dim = inputs.q.shape[1], inputs.k.shape[-1], inputs.v.shape[-1]
        if length % _TILES[-1]:
            return Support(f"{length} tokens in a row are not a multiple of {_TILES[-1]}")
        if key_dim != value_dim or key_dim > 128:
            return Support(f"keys have dim {key_dim}, values {value_dim}: expected one dim up to 128")
        return offers("Neuron's kernel", (), inputs, scoring)

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        band = band_of(scoring.mask)
        assert band is not None
        q, k, v = (x.swapaxes(1, 2) for x in inputs[:3])
        out: Any = _attend(band.causal, scoring.scale, q, k, v)
        return out.swapaxes(1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(causal: bool, scale: float, q: Array, k: Array, v: Array) -> Array:
    """Returns `[B, H, T, K]`, from `[B, H, T, K]` and `[B, G, S, K]`."""
    return _forward(causal, scale, q, k, v)[0]


def _forward(causal: bool, scale: float, q: Array, k: Array, v: Array) -> tuple[Array, tuple[Array, ...]]:
    from neuronxcc.nki.kernels.attention import FlashConfig, flash_fwd  # pyright: ignore[reportMissingImports]

    tile = next(tile for tile in _TILES if k.shape[2] % tile == 0)
    out, sums = flash_fwd[_grid(k)](
        q.swapaxes(2, 3),
        k.swapaxes(2, 3),
        v,
        _seed(),
        softmax_scale=scale,
        use_causal_mask=causal,
        mixed_precision=True,
        dropout_p=0.0,
        config=FlashConfig(seq_tile_size=tile, training=True),
    )
    out, sums = kernel_result(RESIDUALS, out), kernel_result(RESIDUALS, sums)
    return out, (q, k, v, out, sums)


def _backward(causal: bool, scale: float, saved: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, Array]:
    from neuronxcc.nki.kernels.attention import flash_attn_bwd  # pyright: ignore[reportMissingImports]

    q, k, v, out, sums = saved
    batch, groups, length, dim = k.shape
    repeats = q.shape[1] // groups  # Unlike the forward kernel, the backward one knows no shared key heads.
    wide = [jnp.repeat(x, repeats, axis=1) for x in (k, v)]
    dq, dk, dv = flash_attn_bwd[_grid(q)](
        *(x.swapaxes(2, 3) for x in (q, *wide, out, gradient)),
        sums,
        _seed(),
        softmax_scale=scale,
        use_causal_mask=causal,
        mixed_precision=True,
        dropout_p=0.0,
    )

    def summed(x: Array) -> Array:
        parts = x.swapaxes(2, 3).reshape(batch, groups, repeats, length, dim)
        return jnp.sum(parts, axis=2, dtype=jnp.float32).astype(k.dtype)

    return dq.swapaxes(2, 3), summed(dk), summed(dv)


_attend.defvjp(_forward, _backward)


def _grid(x: Array) -> tuple[Any, Any]:
    """Returns how many programs run: one for each row and head, dealt out to the physical cores of a logical one."""
    import jax_neuronx  # pyright: ignore[reportMissingImports] # noqa: F401 # It makes JAX know these kernels.
    import neuronxcc.nki.language as nl  # pyright: ignore[reportMissingImports]

    batch, heads = x.shape[:2]
    if device_kind() != "NC_v3d" or heads % 2:  # A logical core of Trainium 2 is two physical ones.
        return batch, heads
    return batch, nl.nc(2) * (heads // 2)


def _seed() -> Array:
    return jnp.ones((1,), jnp.int32)  # Of dropout, which there is none of.
