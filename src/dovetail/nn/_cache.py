# SPDX-License-Identifier: Apache-2.0
"""Caches: what attention keeps of the tokens of earlier calls, and how kernels see it.

Shape letters: B batch, T time, S capacity, P pages, N pages of a row, L tokens of a page.
"""

import abc
import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Axes, Module, ModuleError
from dovetail.ops import EMPTY, Tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class View:
    """Where the keys and values are that queries attend to."""

    values: Mapping[str, Array]  # `[B, S, ...]`, or, with pages, `[P, L, ...]`.
    tokens: Tokens  # `[B or 1, S]`, also with pages; index EMPTY where nothing has been written.
    pages: Array | None = None  # `[B, N]`: the pages of each row, in order; None: rows are contiguous.
    aligned: bool = dataclasses.field(metadata={"static": True}, default=False)  # Keys and queries are the same tokens.


class Cache(Module, abc.ABC):
    """The interface: keeps arrays by token; used only in calls that keep state."""

    class Config(Module.Config):
        entries: Mapping[str, tuple[int, ...]] = REQUIRED  # What is kept of each token, by name; set by the owner.
        axes: Mapping[str, tuple[str | None, ...]] = REQUIRED  # Their logical names, set with the shapes.

    @abc.abstractmethod
    def forward(self, values: Mapping[str, Array], tokens: Tokens) -> View:
        """Adds arrays `[B, T, *entry]` of new tokens, and returns a view of those of all tokens so far.

        A token whose index is beyond the capacity is not kept; the summary `lost` counts such tokens.
        """


class DenseCache(Cache):
    """An array with room for "capacity" tokens in each row, each at the place that is its index.

    Heads come before tokens, `[B, G, S, K]`, as products with queries want them: time-major, each call would transpose
    all that is kept.
    """

    def __init__(self, cfg: Cache.Config, **kwargs):
        super().__init__(cfg, **kwargs)
        for name, shape in cfg.entries.items():
            heads, rest = (shape[:1], shape[1:]) if len(shape) > 1 else ((), shape)
            axes: Axes = cfg.axes[name]
            axes = ("batch", *axes[: len(heads)], None, *axes[len(heads) :])
            self.state(name, ("batch", *heads, "capacity", *rest), axes=_whole(axes))
        _declare_tokens(self)

    def forward(self, values: Mapping[str, Array], tokens: Tokens) -> View:
        index, known = _remember(self, tokens, _checked(self, self.cfg.entries, values))
        kept: dict[str, Array] = {}
        for name, new in values.items():
            old = getattr(self, name)
            self.update(name, written := _write(old, new.astype(old.dtype), index))
            kept[name] = _swapped(written)
        return View(kept, known)


class PagedCache(Cache):
    """Pages of `page` tokens, which rows need not have side by side: a table says which pages a row has.

    Rows start with pages of their own, in order. Who serves many requests writes other numbers into the table, `[B, N]`
    for N = capacity / page, so that pages are taken as rows grow, shared, and freed: the size "pages" is how many there
    are for all rows.
    """

    class Config(Cache.Config):
        page: int = 16  # Tokens of a page.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        if cfg.page < 1:
            raise ConfigError(f"{self!r}: page is {cfg.page}, expected at least 1.")
        for name, shape in cfg.entries.items():
            self.state(name, ("pages", cfg.page, *shape), axes=(None, None, *_whole(cfg.axes[name])))
        self.state("table", ("batch", "row_pages"), axes=("batch", None), dtype=jnp.int32, init=_pages_in_order)
        _declare_tokens(self)

    def forward(self, values: Mapping[str, Array], tokens: Tokens) -> View:
        index, known = _remember(self, tokens, _checked(self, self.cfg.entries, values))
        page, place = index // self.cfg.page, index % self.cfg.page
        if self.table.shape[1] * self.cfg.page != known.index.shape[1]:
            raise ModuleError(
                f"{self!r}: a row has {self.table.shape[1]} pages of {self.cfg.page} tokens, and a capacity of "
                f"{known.index.shape[1]}. Make them agree: sizes row_pages and capacity."
            )
        lost = page >= self.table.shape[1]
        kept: dict[str, Array] = {}
        for name, new in values.items():
            old = getattr(self, name)
            row = jnp.take_along_axis(self.table, jnp.where(lost, 0, page), axis=1)
            at = jnp.where(lost, old.shape[0], row)  # Beyond the last page: dropped.
            self.update(name, written := old.at[at, place].set(new.astype(old.dtype), mode="drop"))
            kept[name] = written
        return View(kept, known, self.table)


def _declare_tokens(cache: Cache) -> None:
    """Declares what is kept of the tokens themselves."""
    size, axes = ("batch", "capacity"), ("batch", None)
    cache.state("index", size, axes=axes, dtype=jnp.int32, init=EMPTY)
    cache.state("segment", size, axes=axes, dtype=jnp.int32)
    cache.state("prefix", size, axes=axes, dtype=jnp.bool_)


def _checked(cache: Cache, entries: Mapping[str, tuple[int, ...]], values: Mapping[str, Array]) -> tuple[int, ...]:
    """Returns batch and time of arrays that are what the cache was declared for."""
    found = {name: value.shape[2:] for name, value in values.items()}
    if found != {name: tuple(shape) for name, shape in entries.items()}:
        raise ModuleError(
            f"{cache!r}: is given {found} for each token, but was declared for {dict(entries)}.\n"
            "  Declare what is kept; or change it after the cache, as a variant of attention does in its view."
        )
    return next(iter(values.values())).shape[:2]


def _remember(cache: Cache, tokens: Tokens, shape: tuple[int, ...]) -> tuple[Array, Tokens]:
    """Keeps the tokens of a call, `[B, T]`; returns their indices, and all tokens so far."""
    index = jnp.broadcast_to(tokens.index, shape)
    capacity = cache.index.shape[1]
    if shape[1] > capacity:
        raise ModuleError(f"{cache!r}: {shape[1]} tokens do not fit into a capacity of {capacity}.")
    segment = jnp.ones(shape, jnp.int32) if tokens.segment is None else jnp.broadcast_to(tokens.segment, shape)
    prefix = jnp.zeros(shape, bool) if tokens.prefix is None else jnp.broadcast_to(tokens.prefix, shape)
    known: dict[str, Array] = {}
    for name, new in {"index": index, "segment": segment, "prefix": prefix}.items():
        known[name] = _write(getattr(cache, name), new, index)
        cache.update(name, known[name])
    cache.summary("lost", jnp.sum((index >= capacity) & (index != EMPTY)).astype(jnp.float32))
    return index, Tokens(known["index"], known["segment"] if tokens.segment is not None else None, known["prefix"])


def _pages_in_order(shape: tuple[int, ...]) -> Array:
    return jnp.arange(shape[0] * shape[1], dtype=jnp.int32).reshape(shape)


def _whole(axes: Axes) -> Axes:
    """Returns the axes of activations: those of a head alone are never split."""
    return tuple(None if axis == "head_dim" else axis for axis in axes)


def _swapped(x: Array) -> Array:
    """Swaps tokens and heads, where there are heads: `[B, T, G, K]` and `[B, G, T, K]`."""
    return x if x.ndim < 4 else jnp.swapaxes(x, 1, 2)


def _write(old: Array, new: Array, index: Array) -> Array:
    """Puts `[B, T, ...]` at places `[B, T]` of what is kept."""
    if new.ndim < 4:
        return jax.vmap(lambda old, new, at: old.at[at].set(new, mode="drop"))(old, new, index)
    return jax.vmap(lambda old, new, at: old.at[:, at].set(new, mode="drop"))(old, _swapped(new), index)
