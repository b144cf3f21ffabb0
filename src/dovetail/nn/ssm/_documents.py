# SPDX-License-Identifier: Apache-2.0
"""What layers with a state of fixed size share: whose tokens they read, which of them are real, how rates start."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.module import Module, ParamSpec
from dovetail.ops import EMPTY, And, Causal, Mask, SameSegment, Support

from .._context import Context


class Documents(NamedTuple):
    """The documents that a call reads, one after the other in each row."""

    document: Array  # [B, T]: number in this call; 0 goes on where the call before stopped.
    real: Array  # [B, T]: not padding. Padding is at the end of a row, and belongs to the document before it.
    length: Array  # [B]: how many are real.
    segment: Array  # [B]: the segment of the last one, for the next call.

    def only_real(self, x: Array) -> Array:
        """Returns `[B, T, D]` with 0 for padding, which may be nan: what does not count must not get into a state."""
        return jnp.where(self.real[..., None], x, 0)


_NO_SEGMENT = -1  # That of a state before its first token.


def supports_causal(mask: Mask) -> Support:
    """Says whether a layer can obey a mask whose state holds all of the document up to the token itself."""
    parts = _parts(mask)
    if Causal() in parts and parts <= {Causal(), SameSegment()}:
        return Support()
    return Support("its state holds all of the document up to the token itself: Causal(), or Causal() & SameSegment()")


def declare_memory(layer: Module, shape: tuple[int, int, int]) -> None:
    """Declares what a layer keeps of a sequence: a state for each head, and the segment that it is of."""
    layer.state("memory", ("batch", *shape), axes=("batch", "state_heads", None, None), dtype=jnp.float32)
    layer.state("segment", ("batch",), axes=("batch",), dtype=jnp.int32, init=_NO_SEGMENT)


def documents_of(layer: Module, context: Context, shape: tuple[int, ...], last: Array | None) -> Documents:
    """Returns the course of a call over `shape` `[B, T]`, where `last` is the segment at the end of the call before."""
    tokens = context.tokens
    segment = jnp.zeros_like(tokens.index)
    if tokens.segment is not None and SameSegment() in _parts(context.mask):
        segment = tokens.segment
    segment, real = jnp.broadcast_to(segment, shape), jnp.broadcast_to(tokens.index != EMPTY, shape)
    segment, real = layer.constrain(segment, "batch", None), layer.constrain(real, "batch", None)
    length = jnp.sum(real, axis=1)
    before = segment[:, 0] if last is None else last
    known = jnp.concatenate([before[:, None], segment], axis=1)
    document = jnp.cumsum((known[:, 1:] != known[:, :-1]) & real, axis=1)
    return Documents(document, real, length, jnp.take_along_axis(known, length[:, None], axis=1)[:, 0])


def whole_sequence(layer: Module, x: Array) -> Array:
    """Lays `[B, T, H, ...]` out for a layer that reads all of the sequence: whole along T, split along the heads."""
    return layer.constrain(x, "batch", None, "state_heads", *[None] * (x.ndim - 3))


def _parts(mask: Mask) -> set[Mask]:
    return _parts(mask.a) | _parts(mask.b) if isinstance(mask, And) else {mask}


def log_rates(key: Array, spec: ParamSpec) -> Array:
    """Logarithms of rates of decay between 1 and 16, as in Mamba 2."""
    return jnp.log(jax.random.uniform(key, spec.shape, spec.dtype, 1.0, 16.0))


def step_biases(key: Array, spec: ParamSpec) -> Array:
    """What softplus maps to steps between 0.001 and 0.1, evenly on a logarithmic scale, as in Mamba."""
    step = jnp.exp(jax.random.uniform(key, spec.shape, spec.dtype, math.log(0.001), math.log(0.1)))
    return jnp.log(jnp.expm1(step))
