# SPDX-License-Identifier: Apache-2.0
"""Attention on CPUs to keys and values in pages, by a native kernel that reads them where they lie."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._attention import AttentionInputs, AttentionKernel, Parts, Scoring
from .._kernel_choice import Support
from .._masks import And, Full, Mask, Written
from ._band import band_of, offers
from ._native import native, native_support
from ._pallas import runs_whole_on


class NativePagedAttention(AttentionKernel):
    """Goes through the keys of each query in one order, so that neither other queries nor chunks change its result.

    The tokens of a row come in order, as a `PagedCache` has them. It has no gradient, which decoding does not need.
    """

    @property
    def reads_pages(self) -> bool:
        return True

    def supports(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Support:
        if not (here := runs_whole_on("cpu", interpret=False)):
            return here
        if not (there := native_support()):
            return there
        if inputs.pages is None or inputs.pairs is not None:
            return Support("keys and values are not in pages, or in pairs")
        if inputs.scales is not None:
            return Support("keys and values are integers")
        found = {str(each.dtype) for each in (inputs.q, inputs.k, inputs.v)}
        if found != {"float32"}:
            return Support(f"it computes in float32, this is {', '.join(sorted(found))}")
        dims = inputs.k.shape[-1], inputs.v.shape[-1]
        if any(dim % native().width for dim in dims):
            return Support(f"heads have dims {dims}, expected multiples of {native().width}")
        plain = Scoring(_without_written(scoring.mask), scoring.scale, scoring.soft_cap)
        band = band_of(plain.mask)
        if band is not None and not band.causal:
            return Support("the mask is not causal")
        return offers("the native kernel", ("a window", "soft_cap", "sinks"), inputs, plain)

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        q, table = inputs.q, inputs.pages
        assert table is not None
        band = band_of(_without_written(scoring.mask))
        assert band is not None
        sinks = jnp.zeros(0) if inputs.sinks is None else inputs.sinks
        out = jax.ShapeDtypeStruct((*q.shape[:3], inputs.v.shape[-1]), q.dtype)
        return jax.ffi.ffi_call("dovetail_paged_attention", out)(
            q,
            inputs.k,
            inputs.v,
            table.astype(jnp.int32),
            inputs.q_tokens.index.astype(jnp.int32),
            sinks.astype(jnp.float32),
            scale=np.float32(scoring.scale),
            soft_cap=np.float32(scoring.soft_cap or 0.0),
            window=np.int64(band.window or 0),
        )


def _without_written(mask: Mask) -> Mask:
    """Returns the mask without what follows from the places of queries."""
    match mask:
        case Written():
            return Full()
        case And(a, b):
            return And(_without_written(a), _without_written(b))
        case _:
            return mask
