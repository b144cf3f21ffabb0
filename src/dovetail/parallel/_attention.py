# SPDX-License-Identifier: Apache-2.0
"""Attention on a mesh: rows, heads and queries are split over devices, and each device runs a kernel on its own.

Shape letters: B batch, T queries, S keys, H query heads, G key heads, K key dim, V value dim.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from dovetail.ops import AttentionInputs, AttentionKernel, BlockwiseAttention, Mask, Parts, Scoring, Tokens, in_pairs

from ._rules import ACTIVATIONS, Table
from ._sequence_split import SequenceSplit, split_sequence


class GatheredAttention(AttentionKernel):
    """Brings all keys and values to each device's queries, and runs another kernel there.

    Those of the whole sequence are in memory while it runs, and until the backward pass in layers without remat. Where
    the mesh splits no sequences, nothing is gathered, and this is just the way to run a kernel on a mesh; without a
    mesh it is that kernel.
    """

    class Config(AttentionKernel.Config):
        inner: AttentionKernel.Config = BlockwiseAttention.Config()
        balanced: bool = True  # Deals out queries so that devices have equal work, where the mask makes a difference.
        activations: Table = ACTIVATIONS  # Which mesh axes split rows, sequences and heads.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self._inner: AttentionKernel = cfg.inner.build(path=f"{self._path}.inner".removeprefix("."))

    @property
    def reads_pages(self) -> bool:
        return self._inner.reads_pages

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        def inner(inputs: AttentionInputs, aligned: bool | Parts) -> Array:
            return self._inner.attend(inputs, scoring, aligned)

        meet = functools.partial(_gathered, inner)
        return on_devices(inputs, aligned, inner, meet, scoring.mask, self.cfg, self._path or "GatheredAttention")


class SpreadConfig(Protocol):
    """What the configs of kernels that are spread over devices have alike."""

    @property
    def balanced(self) -> bool: ...
    @property
    def activations(self) -> Table: ...


def on_devices(
    inputs: AttentionInputs,
    aligned: bool | Parts,
    inner: Callable[..., Array],
    meet: Callable[[SequenceSplit, AttentionInputs], Array],
    mask: Mask,
    cfg: SpreadConfig,
    where: str,
) -> Array:
    """Runs `inner` on each device's part; or `meet`, where the mesh splits the sequence of both queries and keys."""
    split = _Split.of(inputs, aligned, cfg.activations)
    if math.prod(split.sizes.values()) == 1:
        return inner(inputs, aligned)
    if not split.seq:
        return split.run(lambda inputs: inner(inputs, aligned), inputs)
    if not split.keys:
        return split.run(lambda inputs: inner(inputs, False), inputs)
    (axis,) = split.seq
    dealt = split_sequence(mask, inputs.q.shape[1], axis, split.sizes[axis], balanced=cfg.balanced, where=where)
    return split.run(functools.partial(meet, dealt), inputs)


def _gathered(inner: Callable[..., Array], dealt: SequenceSplit, inputs: AttentionInputs) -> Array:
    def gather(x: Array) -> Array:
        return jax.lax.all_gather(x, dealt.axis, axis=1, tiled=True)

    q, q_tokens = dealt.send((inputs.q, inputs.q_tokens))
    k, v, k_tokens = jax.tree.map(gather, (inputs.k, inputs.v, inputs.k_tokens))
    here = inputs._replace(q=q, k=k, v=v, q_tokens=q_tokens, k_tokens=k_tokens)
    return dealt.bring_back(inner(here, dealt.here()))


@dataclass(frozen=True)
class _Split:
    """The mesh axes that split each dimension."""

    sizes: dict[str, int]  # Of all mesh axes, but those along which this code already runs on each device's part.
    batch: tuple[str, ...]
    seq: tuple[str, ...]  # Of the queries.
    keys: tuple[str, ...]  # Of the sequence of the keys. If queries are split and keys are not, these come whole.
    heads: tuple[str, ...]  # Of the queries.
    key_heads: tuple[str, ...]  # If query heads are split and these are not, each device takes those that it needs.

    @classmethod
    def of(cls, inputs: AttentionInputs, aligned: bool | Parts, table: Table) -> "_Split":
        """Returns how the ambient mesh splits the inputs."""
        mesh = jax.sharding.get_abstract_mesh()
        sizes = {axis: size for axis, size in mesh.shape.items() if axis not in mesh.manual_axes}

        def split(length: int, name: str) -> tuple[str, ...]:
            """Returns the first of the axes for a dimension, as many as divide it."""
            kept: list[str] = []
            for axis in (axis for axis in table[name] if sizes.get(axis, 1) > 1):
                if length % math.prod(sizes[each] for each in (*kept, axis)):
                    break
                kept.append(axis)
            return tuple(kept)

        batch, length, num_heads, _ = inputs.q.shape
        same = aligned is True  # If not, the keys are those of a cache, or of a memory, and queries meet all of them.
        seq = split(0 if same else length, "seq")  # Everything divides 0.
        heads, key_heads = split(num_heads, "heads"), split(inputs.k.shape[2], "heads")
        return cls(
            sizes, split(batch, "batch"), seq, seq if same else (), heads, key_heads if key_heads == heads else ()
        )

    @property
    def axes(self) -> tuple[str, ...]:
        """All that split something."""
        return (*self.batch, *self.seq, *self.heads)

    def run(self, local: Callable[[AttentionInputs], Array], inputs: AttentionInputs) -> Array:
        """Runs a kernel on each device's part of the inputs."""

        def here(inputs: AttentionInputs) -> Array:
            if self.heads != self.key_heads:
                inputs = self._with_own_key_heads(inputs)
            return local(inputs)

        # Manual over the whole mesh, also where it splits nothing. The stages of a pipeline are a dimension that
        # `jax.vmap` adds to the inputs, and JAX splits it over their axis only if that is manual. And where an axis is
        # left to the compiler, that of CPUs fails to sum bfloat16 (jax 0.10).
        run: Any = jax.shard_map(
            here,
            axis_names=set(self.sizes),
            in_specs=(self._specs(inputs),),
            out_specs=self._spec(self.seq, self.heads),
            check_vma=False,  # A kernel need not know what differs between devices.
        )
        return run(inputs)

    def _specs(self, inputs: AttentionInputs) -> Any:
        def tokens(tokens: Tokens, seq: tuple[str, ...]) -> Any:
            rows = inputs.q.shape[0]
            return jax.tree.map(
                lambda x: self._spec(seq) if len(x) == rows else PartitionSpec(None, seq or None), tokens
            )

        keys, of_heads = self._spec(self.keys, self.key_heads), PartitionSpec(self.heads or None)
        if inputs.pages is not None:  # Which are of all rows.
            keys = PartitionSpec(None, None, self.key_heads or None)
        return inputs._replace(
            q=self._spec(self.seq, self.heads),
            k=keys,
            v=keys,
            q_tokens=tokens(inputs.q_tokens, self.seq),
            k_tokens=tokens(inputs.k_tokens, self.keys),
            bias=jax.tree.map(lambda _: of_heads, inputs.bias),
            sinks=jax.tree.map(lambda _: of_heads, inputs.sinks),
            pages=None if inputs.pages is None else self._spec(),
            pairs=None if inputs.pairs is None else keys,
            scales=jax.tree.map(lambda _: keys, inputs.scales),
        )

    def _spec(self, *after_batch: tuple[str, ...]) -> PartitionSpec:
        # Gradients are summed over axes that are not named, so those of size 1 are.
        alone = tuple(axis for axis, size in self.sizes.items() if size == 1)
        return PartitionSpec((*alone, *self.batch) or None, *(axes or None for axes in after_batch))

    def _with_own_key_heads(self, inputs: AttentionInputs) -> AttentionInputs:
        """Takes the key heads of this device's query heads, in groups of equal size, so some may be there twice."""
        here, in_all = inputs.q.shape[2], inputs.k.shape[2]
        group = here * math.prod(self.sizes[axis] for axis in self.heads) // in_all
        share = math.gcd(group, here)  # On every device, so many query heads that follow each other have one key head.
        heads = (jax.lax.axis_index(self.heads) * here + jnp.arange(0, here, share)) // group
        lying = (inputs.k, inputs.v, inputs.scales)
        k, v, scales = jax.tree.map(lambda each: jnp.take(each, heads, axis=2, mode="clip"), lying)
        return inputs._replace(k=k, v=v, pairs=None if inputs.pairs is None else in_pairs(k, v), scales=scales)
