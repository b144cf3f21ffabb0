# SPDX-License-Identifier: Apache-2.0
"""Attention in blocks: memory grows with the length of the sequence, not with its square."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError

from ._attention import AttentionInputs, AttentionKernel, Part, Parts, Scoring
from ._blocks import Attended, BlockInputs, BlockPlan, Bounds, bounds_of, even_blocks, from_blocks
from ._masks import Mask
from ._query_blocks import attend


class BlockwiseAttention(AttentionKernel):
    """One pair of blocks of queries and keys at a time, without the pairs that the mask rules out.

    It has no derivative in forward mode, and none of its gradient.
    """

    class Config(AttentionKernel.Config):
        block: int = 256  # Queries, and keys, in a block.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.block < 1:
            raise ConfigError(f"{self._path or 'BlockwiseAttention'}: block is {cfg.block}, expected at least 1.")

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        q, v, length, keys, block = inputs.q, inputs.v, inputs.q.shape[1], inputs.k.shape[1], self.cfg.block
        if max(length, keys) <= block:  # One pair of blocks: no loop, and its weights may be kept.
            return attend(inputs, scoring)
        rows = even_blocks(aligned.size if isinstance(aligned, Parts) else length, block)
        columns = even_blocks(keys, max(block, block * block // rows))  # Few queries see many keys at once.
        bounds = _bounds(scoring.mask, aligned, length, keys, rows, columns)
        plan = BlockPlan(scoring, rows, columns, keys, bounds)
        if not plan.num_pairs:
            return jnp.zeros((*q.shape[:3], v.shape[-1]), q.dtype)
        choice = aligned.choice if isinstance(aligned, Parts) else None
        out: Any = _attend(plan, BlockInputs.of(inputs, rows, columns)._replace(choice=choice))
        return from_blocks(out, length)


def _bounds(mask: Mask, aligned: bool | Parts, length: int, keys: int, rows: int, columns: int) -> tuple[Bounds, ...]:
    if not aligned:
        return (((0, -(-keys // columns)),) * -(-length // rows),)
    whole = Part((0,), keys)
    parts = aligned.parts if isinstance(aligned, Parts) else (whole,)
    return tuple(bounds_of(mask, part, whole, keys, rows, columns) for part in parts)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: BlockPlan, inputs: BlockInputs) -> Array:
    """Returns `[B, G, R, T, V]`."""
    return _forward(plan, inputs)[0]


def _forward(plan: BlockPlan, inputs: BlockInputs) -> tuple[Array, tuple[BlockInputs, Attended]]:
    attended = Attended.of(plan.add_keys(inputs, inputs.no_sums()), inputs.q.dtype)
    return attended.out, (inputs, attended)


def _backward(plan: BlockPlan, saved: tuple[BlockInputs, Attended], gradient: Array) -> tuple[BlockInputs]:
    inputs, attended = saved
    given = attended.given(gradient)
    return inputs.gradients(given, plan.add_gradients(inputs, given, inputs.no_gradients()))


_attend.defvjp(_forward, _backward)
