# SPDX-License-Identifier: Apache-2.0
"""Attention on TPUs to keys and values in pages, by JAX's ragged kernel: prompts and single tokens alike.

Shape letters: B batch, T queries, H query heads, G key heads, K head dim, P pages, L tokens of a page.
"""

import contextlib
from typing import Any

import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError

from .._attention import AttentionInputs, AttentionKernel, Parts, Scoring
from .._kernel_choice import Support
from .._masks import EMPTY, And, Full, Mask, Written
from ._band import band_of, offers
from ._pallas import runs_whole_on

_LANES = 128  # Of a vector register: the one head dim that the kernel takes.
_SUBLANES = 8
_TABLE_BYTES = 2**19  # Of the scalar memory, of which a core has 1 MiB: what the tables may take.


class RaggedPagedAttention(AttentionKernel):
    """JAX's Pallas kernel for TPUs, version 2. It fetches the pages of a row while it computes with those before.

    Pages lie in pairs (`PagedCache.Config.paired`): to put keys and values together would copy all pages in each call.
    The tokens of a row are those after which the row ends, in order, and padding is at the end, as a server has them.
    """

    class Config(AttentionKernel.Config):
        block_q: int = 32  # Queries in a block.
        block_kv: int = 256  # Keys in a block, at least those of one page.
        interpret: bool = False  # Runs on any platform, slowly, for tests.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        for name, size in (("block_q", cfg.block_q), ("block_kv", cfg.block_kv)):
            if size < 1:
                where = self._path or "RaggedPagedAttention"
                raise ConfigError(f"{where}: {name} is {size}, expected at least 1.")

    @property
    def reads_pages(self) -> bool:
        return True

    def supports(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Support:
        if not (here := runs_whole_on("tpu", interpret=self.cfg.interpret)):
            return here
        if inputs.pages is None:
            return Support("keys and values are not in pages")
        if inputs.pairs is None:
            return Support("keys and values do not lie in pairs")
        if inputs.pairs.dtype != inputs.q.dtype:
            return Support(f"queries are {inputs.q.dtype}, keys and values {inputs.pairs.dtype}")
        if (dim := inputs.pairs.shape[-1]) != _LANES:
            return Support(f"heads have dim {dim}, expected {_LANES}, or to be filled up to that")
        if not _is_tiled(inputs.pairs.shape[2], inputs.pairs.dtype):
            return Support(f"{inputs.k.shape[2]} key heads on a device do not fill registers")
        rows, width = inputs.pages.shape
        if 4 * rows * -(-width // _LANES) * _LANES > _TABLE_BYTES:
            return Support(f"tables of {rows} rows with {width} pages do not fit into scalar memory; use larger pages")
        plain = Scoring(without_written(scoring.mask), scoring.scale, scoring.soft_cap)
        band = band_of(plain.mask)
        if band is not None and not band.causal:
            return Support("the mask is not causal")
        return offers("the ragged kernel for TPUs", ("a window", "soft_cap"), inputs, plain)

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

        table, pairs, dim = inputs.pages, inputs.pairs, inputs.q.shape[-1]
        assert table is not None
        assert pairs is not None
        band = band_of(without_written(scoring.mask))
        assert band is not None
        size, more = pairs.shape[1], pairs.shape[-1] - dim
        q = jnp.pad(inputs.q, (*[(0, 0)] * 3, (0, more)))  # Zeros change no product, and make no value.
        real, counts, lengths = _counted(inputs)
        if band.window is not None:
            table, lengths = _within(band.window, table, lengths, size, q.shape[1])
        starts = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)])
        places = _places(starts, q.shape[:2])
        flat = q.reshape(-1, *q.shape[2:])
        with _interpreted(self.cfg.interpret):
            out = ragged_paged_attention(
                flat if places is None else flat[_sources(starts, q.shape[:2])],
                pairs,
                lengths,
                table.astype(jnp.int32),
                starts,
                jnp.full(1, q.shape[0], jnp.int32),
                sm_scale=scoring.scale,
                sliding_window=band.window,
                soft_cap=scoring.soft_cap,
                num_kv_pages_per_block=min(table.shape[1], max(1, self.cfg.block_kv // size)),
                num_queries_per_block=min(flat.shape[0], self.cfg.block_q),
            )
        out = out.reshape(q.shape) if places is None else out[places]
        return jnp.where(real[..., None, None], out[..., :dim], 0)  # What the kernel leaves out is never written.


def _counted(inputs: AttentionInputs) -> tuple[Array, Array, Array]:
    """Returns which queries are real, `[B, T]`, how many in each row, and how many keys: one at least of each.

    A row without any would upset the order in which the kernel fetches pages.
    """
    index = jnp.broadcast_to(inputs.q_tokens.index, inputs.q.shape[:2])
    real = index != EMPTY
    counts = jnp.maximum(jnp.sum(real, axis=1, dtype=jnp.int32), 1)
    ends = jnp.max(jnp.where(real, index, -1), axis=1).astype(jnp.int32) + 1
    return real, counts, jnp.maximum(ends, counts)


def _within(window: int, table: Array, lengths: Array, size: int, time: int) -> tuple[Array, Array]:
    """Returns table and lengths without the pages before the window: the kernel would fetch these, too."""
    width = -(-(window + time - 1) // size) + 1
    if width >= table.shape[1]:
        return table, lengths
    first = jnp.clip((lengths - time - window + 1) // size, 0, table.shape[1] - width)
    chosen = first[:, None] + jnp.arange(width, dtype=jnp.int32)
    return jnp.take_along_axis(table, chosen, axis=1), lengths - first * size


def _places(starts: Array, shape: tuple[int, ...]) -> Array | None:
    """Returns where each query `[B, T]` is among those that follow each other; None: where it is."""
    if 1 in shape:
        return None
    return jnp.minimum(starts[:-1, None] + jnp.arange(shape[1]), shape[0] * shape[1] - 1)


def _sources(starts: Array, shape: tuple[int, ...]) -> Array:
    """Returns which of the queries, `[B T]`, comes at each place, so that those of a row follow those before."""
    at = jnp.arange(shape[0] * shape[1])
    row = jnp.clip(jnp.searchsorted(starts, at, side="right") - 1, 0, shape[0] - 1)
    return jnp.clip(row * shape[1] + at - starts[row], 0, at.size - 1)


def without_written(mask: Mask) -> Mask:
    """Returns the mask without what follows from the lengths of rows."""
    match mask:
        case Written():
            return Full()
        case And(a, b):
            return And(without_written(a), without_written(b))
        case _:
            return mask


def _is_tiled(heads: int, dtype: Any) -> bool:
    """Whether so many heads are whole registers, or a power of two below."""
    packed, rest = divmod(heads, max(1, 4 // jnp.dtype(dtype).itemsize))
    return not rest and (packed in (1, 2, 4) or packed % _SUBLANES == 0)


def _interpreted(interpret: bool) -> contextlib.AbstractContextManager[Any]:
    if not interpret:
        return contextlib.nullcontext()
    from jax.experimental.pallas import tpu

    how: Any = True  # As in `pallas_call`: the mode that simulates memory cannot reshape a reference (jax 0.10).
    return tpu.force_tpu_interpret_mode(how)
