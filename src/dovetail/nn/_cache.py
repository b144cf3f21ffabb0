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
from jax.typing import DTypeLike

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Axes, Module, ModuleError
from dovetail.ops import EMPTY, Tokens, from_pairs, in_pairs, is_native, native_write, rescaled, rows_of_pages


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class View:
    """Where the keys and values are that queries attend to."""

    values: Mapping[str, Array]  # `[B, S, ...]`, or, with pages, `[P, L, ...]`.
    tokens: Tokens  # `[B or 1, S]`, also with pages; index EMPTY where nothing has been written.
    pages: Array | None = None  # `[B, N]`: the pages of each row, in order; None: rows are contiguous.
    pairs: Array | None = None  # `[P, L, 2G, K]`: keys and values as they lie, if in turn; see `PagedCache`.
    aligned: bool = dataclasses.field(metadata={"static": True}, default=False)  # Keys and queries are the same tokens.
    scales: Mapping[str, Array] | None = None  # Of values that are integers, without their last dimension.

    def scales_of(self, k: str, v: str) -> tuple[Array, Array] | None:
        """Returns the scales of keys and values, as kernels take them."""
        return None if self.scales is None else (self.scales[k], self.scales[v])

    def plain(self, dtype: DTypeLike) -> "View":
        """Returns it for who changes keys and values: not in pairs, and in a dtype if they were integers."""
        scales = self.scales or {}
        numbers = {name: rescaled(self.values[name], scale, dtype) for name, scale in scales.items()}
        return dataclasses.replace(self, values={**self.values, **numbers}, pairs=None, scales=None)


class Cache(Module, abc.ABC):
    """The interface: keeps arrays by token; used only in calls that keep state."""

    class Config(Module.Config):
        entries: Mapping[str, tuple[int, ...]] = REQUIRED  # What is kept of each token, by name; set by the owner.
        axes: Mapping[str, tuple[str | None, ...]] = REQUIRED  # Their logical names, set with the shapes.
        window: int | None = REQUIRED  # How many tokens back the owner looks; others need not be kept. Set by it, too.
        dtypes: Mapping[str, str] = {}  # Of what is not kept in that of the computation, by name.

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
            self.state(name, ("batch", *heads, "capacity", *rest), axes=_whole(axes), dtype=cfg.dtypes.get(name))
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

    Rows start with pages of their own, in order. Who serves many requests writes other numbers into the table
    `[B, N]`, so that pages are taken as rows grow, shared, and freed: the size "pages" is how many there are for all
    rows, and "row_pages" how many a row may have. Caches of a window have sizes of their own, "pages[512]" and
    "row_pages[512]", as their pages are free again once the window has passed.

    The tokens of a row come in order, and none is left out; so of a row that has a token in a call, all places up to
    that are known. A document or prefix is kept of each token only where calls speak of them.

    Entries `k` and `v` of one shape can be one array, `[P, L, 2G, K]`, in which each key head is followed by its value
    head, as kernels for TPUs read them: to put them together in each call would copy all pages. Such heads may be
    filled up with zeros to a multiple of `lanes`; the memory of a TPU holds multiples of 128 in any case.
    """

    class Config(Cache.Config):
        page: int = 16  # Tokens of a page.
        paired: bool = False  # Whether keys and values are one array, where the owner keeps these two, alike.
        lanes: int = 1  # What the dim of paired heads is filled up to a multiple of.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        for name in ("page", "lanes"):
            if (size := getattr(cfg, name)) < 1:
                raise ConfigError(f"{self!r}: {name} is {size}, expected at least 1.")
        pages, row_pages = (f"{name}{page_group(cfg.window)}" for name in ("pages", "row_pages"))
        self._paired = cfg.paired and _are_alike(cfg)
        if self._paired:
            heads, dim = cfg.entries["k"]
            width = -(-dim // cfg.lanes) * cfg.lanes
            axes = (None, None, *_whole(cfg.axes["k"]))
            self.state("kv", (pages, cfg.page, 2 * heads, width), axes=axes, dtype=cfg.dtypes.get("k"))
        else:
            for name, shape in cfg.entries.items():
                axes = (None, None, *_whole(cfg.axes[name]))
                self.state(name, (pages, cfg.page, *shape), axes=axes, dtype=cfg.dtypes.get(name))
        for name, dtype in (("segment", jnp.int32), ("prefix", jnp.bool_)):
            self.state(name, (pages, cfg.page), axes=(None, None), dtype=dtype)
        self.state("table", ("batch", row_pages), axes=("batch", None), dtype=jnp.int32, init=_pages_in_order)

    def forward(self, values: Mapping[str, Array], tokens: Tokens) -> View:
        shape, size = _checked(self, self.cfg.entries, values), self.cfg.page
        table, index = self.table, jnp.broadcast_to(tokens.index, shape)
        capacity = table.shape[1] * size
        _check_capacity(self, shape[1], capacity)
        lost = index >= capacity
        self.summary("lost", jnp.sum(lost & (index != EMPTY)).astype(jnp.float32))
        row = jnp.take_along_axis(table, jnp.where(lost, 0, index // size), axis=1)

        def write(name: str, new: Array) -> Array:
            old = getattr(self, name)
            at = jnp.where(lost, old.shape[0], row)  # Beyond the last page: dropped.
            if is_native(old, new):
                written = native_write(old, new, at, index % size)
            else:
                written = old.at[at, index % size].set(new.astype(old.dtype), mode="drop")
            self.update(name, written)
            return written

        def known(name: str, new: Array | None) -> Array | None:
            return None if new is None else rows_of_pages(write(name, jnp.broadcast_to(new, shape)), table)

        places, last = jnp.arange(capacity), jnp.max(jnp.where(index == EMPTY, -1, index), axis=1)
        seen = jnp.where(places <= last[:, None], places, EMPTY)
        now = Tokens(seen, known("segment", tokens.segment), known("prefix", tokens.prefix))
        if not self._paired:
            return View({name: write(name, new) for name, new in values.items()}, now, table)
        both, width = in_pairs(values["k"], values["v"]), self.kv.shape[-1]
        pairs = write("kv", jnp.pad(both, (*[(0, 0)] * 3, (0, width - both.shape[-1]))))
        k, v = (x[..., : both.shape[-1]] for x in from_pairs(pairs))
        return View({"k": k, "v": v}, now, table, pairs)


def _are_alike(cfg: Cache.Config) -> bool:
    """Whether what is kept are keys and values of the same heads."""
    entries, same_dtype = cfg.entries, cfg.dtypes.get("k") == cfg.dtypes.get("v")
    return same_dtype and set(entries) == {"k", "v"} and entries["k"] == entries["v"] and len(entries["k"]) == 2


def page_group(window: int | None) -> str:
    """Returns what names of sizes end with, for caches that keep so many tokens; None: all."""
    return "" if window is None else f"[{window}]"


def page_window(size: str) -> int | None:
    """Returns the window in the name of a size, such as "pages[512]"; None: it has none."""
    _, _, window = size.removesuffix("]").partition("[")
    return int(window) if window else None


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
    _check_capacity(cache, shape[1], capacity)
    segment = jnp.ones(shape, jnp.int32) if tokens.segment is None else jnp.broadcast_to(tokens.segment, shape)
    prefix = jnp.zeros(shape, bool) if tokens.prefix is None else jnp.broadcast_to(tokens.prefix, shape)
    known: dict[str, Array] = {}
    for name, new in {"index": index, "segment": segment, "prefix": prefix}.items():
        known[name] = _write(getattr(cache, name), new, index)
        cache.update(name, known[name])
    cache.summary("lost", jnp.sum((index >= capacity) & (index != EMPTY)).astype(jnp.float32))
    return index, Tokens(known["index"], known["segment"] if tokens.segment is not None else None, known["prefix"])


def _check_capacity(cache: Cache, time: int, capacity: int) -> None:
    if time > capacity:
        raise ModuleError(f"{cache!r}: {time} tokens do not fit into a capacity of {capacity}.")


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
