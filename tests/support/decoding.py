# SPDX-License-Identifier: Apache-2.0
"""Calls with state: a row in parts, one call after the other, for tests that hold it against the whole row."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.module import Module, call, make_state, state_specs
from dovetail.nn import Context


def started(module: Module, params: Any, *inputs: Any, sizes: dict[str, int], **named: Any) -> dict[str, Array]:
    """Returns the state before the first call."""
    return make_state(state_specs(module, params, *inputs, sizes=sizes, **named))


def part_of(context: Context, start: int, stop: int) -> Context:
    """Returns the context of some of the tokens."""
    ids = None if context.ids is None else context.ids[:, start:stop]
    tokens, positions = context.tokens.slice(start, stop), context.positions[:, start:stop]
    return context.set(tokens=tokens, positions=positions, ids=ids)


def in_parts(
    layer: Module, params: Any, x: Array, context: Context, parts: Sequence[tuple[int, int]], **sizes: int
) -> tuple[Array, dict[str, Array], list[Any]]:
    """Runs a layer on one part of the rows after the other; returns the whole, the state, and all summaries."""
    first = slice(*parts[0])
    sizes = {"batch": x.shape[0], **sizes}
    state = started(layer, params, x[:, first], part_of(context, *parts[0]), sizes=sizes)
    return from_state(layer, params, x, context, parts, state)


def from_state(
    layer: Module, params: Any, x: Array, context: Context, parts: Iterable[tuple[int, int]], state: dict[str, Array]
) -> tuple[Array, dict[str, Array], list[Any]]:
    """As `in_parts`, from a state that the test made."""
    step = jax.jit(lambda x, context, state: call(layer, params, x, context, state=state))
    outs: list[Array] = []
    summaries: list[Any] = []
    for start, stop in parts:
        out, collected = step(x[:, start:stop], part_of(context, start, stop), state)
        outs, state, summaries = [*outs, out], collected.state, [*summaries, collected.summaries]
    return jnp.concatenate(outs, axis=1), state, summaries
