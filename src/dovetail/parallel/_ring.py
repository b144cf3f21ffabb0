# SPDX-License-Identifier: Apache-2.0
"""Ring attention: keys and values travel round the devices that share a sequence, and meet all queries on their way.

Reference: Liu, Zaharia and Abbeel, Ring Attention with Blockwise Transformers for Near-Infinite Context, 2023
(arXiv:2310.01889).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError
from dovetail.ops import (
    Attended,
    AttentionInputs,
    AttentionKernel,
    BlockInputs,
    BlockPlan,
    BlockwiseAttention,
    Bounds,
    Parts,
    Scoring,
    bounds_of,
    even_blocks,
    from_blocks,
)

from ._attention import on_devices
from ._rules import ACTIVATIONS, Table
from ._sequence_split import SequenceSplit


class RingAttention(AttentionKernel):
    """Passes keys and values from device to device, block by block with the queries that are there.

    A device holds its own part of the sequence and two of the travelling ones, of which one is on its way while the
    other is used. In the backward pass the gradients of keys and values travel with them. What no device may see, by
    the bounds of the mask, does not travel: with a sliding window, keys go only as far as the window reaches.
    """

    class Config(AttentionKernel.Config):
        inner: AttentionKernel.Config = BlockwiseAttention.Config()  # Where the mesh does not split the sequence.
        block: int = 256  # Queries, and keys, in a block, where it does.
        balanced: bool = True  # Deals out the sequence so that devices have equal work, where the mask matters.
        activations: Table = ACTIVATIONS  # Which mesh axes split rows, sequences and heads.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.block < 1:
            raise ConfigError(f"{self._path or 'RingAttention'}: block is {cfg.block}, expected at least 1.")
        self._inner: AttentionKernel = cfg.inner.build(path=f"{self._path}.inner".removeprefix("."))

    @property
    def reads_pages(self) -> bool:
        return self._inner.reads_pages

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        def inner(inputs: AttentionInputs, aligned: bool | Parts) -> Array:
            return self._inner.attend(inputs, scoring, aligned)

        def meet(dealt: SequenceSplit, here: AttentionInputs) -> Array:
            ring = _ring(dealt, self.cfg.block, scoring)
            q, k, v, q_tokens, k_tokens = dealt.send(here[:5])
            moved = here._replace(q=q, k=k, v=v, q_tokens=q_tokens, k_tokens=k_tokens)
            out: Any = _attend(ring, BlockInputs.of(moved, ring.first.rows, ring.first.columns))
            return dealt.bring_back(from_blocks(out, q.shape[1]))

        return on_devices(inputs, aligned, inner, meet, scoring.mask, self.cfg, self._path or "RingAttention")


@dataclass(frozen=True)
class _Ring:
    """What is done on the way round. In turn t, device i has the keys of device i - t."""

    axis: str
    size: int
    turns: int  # After which no device may see any key that it has not met.
    first: BlockPlan  # Has bounds for each device; of its own keys.
    between: BlockPlan | None  # Has bounds for each turn and device.
    last: BlockPlan | None

    def go(self, step: Callable[[BlockPlan, BlockInputs, Any], Any], inputs: BlockInputs, carry: Any) -> Any:
        """Returns the last `carry = step(plan, inputs, carry)`, over all turns.

        Keys set out for the next device before they are used here, so that they travel in the meantime.
        """
        here = jax.lax.axis_index(self.axis)

        def turn(plan: BlockPlan, choice: Array, keys: Any, carry: Any) -> Any:
            k, v, k_tokens = keys
            return step(plan, inputs._replace(k=k, v=v, k_tokens=k_tokens, choice=choice), carry)

        def body(state: tuple[Any, Any], number: Array) -> tuple[tuple[Any, Any], None]:
            assert self.between is not None
            keys, carry = state
            following = self.pass_on(keys)
            return (following, turn(self.between, number * self.size + here, keys, carry)), None

        keys = inputs.k, inputs.v, inputs.k_tokens
        following = self.pass_on(keys) if self.turns > 1 else keys
        carry = turn(self.first, here, keys, carry)
        if self.between is not None:
            (following, carry), _ = jax.lax.scan(body, (following, carry), jnp.arange(self.turns - 2))
        return carry if self.last is None else turn(self.last, here, following, carry)

    def pass_on(self, tree: Any, by: int = 1) -> Any:
        """Sends something `by` devices further."""
        moves = [(i, (i + by) % self.size) for i in range(self.size)]
        return jax.tree.map(lambda x: jax.lax.ppermute(x, self.axis, moves), tree)


def _ring(dealt: SequenceSplit, block: int, scoring: Scoring) -> _Ring:
    size, part = len(dealt.parts), dealt.parts[0]
    rows = even_blocks(part.size, block)

    def bounds(turn: int) -> tuple[Bounds, ...]:
        pairs = ((dealt.parts[i], dealt.parts[i - turn]) for i in range(size))
        return tuple(bounds_of(scoring.mask, q, k, size * part.length, rows, rows) for q, k in pairs)

    def plan(*turns: tuple[Bounds, ...]) -> BlockPlan:
        return BlockPlan(scoring, rows, rows, part.length, sum(turns, ()))

    turns = [bounds(turn) for turn in range(size)]
    while len(turns) > 1 and not plan(turns[-1]).num_pairs:
        turns.pop()
    return _Ring(
        dealt.axis,
        size,
        len(turns),
        first=plan(turns[0]),
        between=plan(*turns[1:-1]) if len(turns) > 2 else None,
        last=plan(turns[-1]) if len(turns) > 1 else None,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(ring: _Ring, inputs: BlockInputs) -> Array:
    """Returns `[B, G, R, T, V]`."""
    return _forward(ring, inputs)[0]


def _forward(ring: _Ring, inputs: BlockInputs) -> tuple[Array, tuple[BlockInputs, Attended]]:
    attended = Attended.of(ring.go(BlockPlan.add_keys, inputs, inputs.no_sums()), inputs.q.dtype)
    return attended.out, (inputs, attended)


def _backward(ring: _Ring, saved: tuple[BlockInputs, Attended], gradient: Array) -> tuple[BlockInputs]:
    inputs, attended = saved
    given = attended.given(gradient)
    dq, *none, dbias = inputs.no_gradients()

    def step(plan: BlockPlan, inputs: BlockInputs, carry: Any) -> Any:
        """Adds what comes of the keys that are here to what comes with them from other devices."""
        dq, found, dbias = carry
        arrived = found if plan is ring.first else ring.pass_on(found)
        dq, dk, dv, dbias = plan.add_gradients(inputs, given, (dq, *none, dbias))
        return dq, jax.tree.map(jnp.add, arrived, [dk, dv]), dbias

    dq, found, dbias = ring.go(step, inputs, (dq, none, dbias))
    home = found if ring.turns == 1 else ring.pass_on(found, by=1 - ring.turns)
    return inputs.gradients(given, (dq, *home, dbias))


_attend.defvjp(_forward, _backward)
