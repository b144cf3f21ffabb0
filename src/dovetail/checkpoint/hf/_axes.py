# SPDX-License-Identifier: Apache-2.0
"""How the dimensions of two arrays that hold the same numbers correspond, as text: `(h k) d = d h k`.

Each side lists its dimensions. A dimension is an axis, `d`; or several, `(h k)`, the first one slowest. One dimension
of the left side may be made of parts one behind the other, `(h k + g k + g k) d`: then there are as many arrays on the
right. A part may be inside of other axes: `(h (n + v)) c` has n and v in turn for each h. An axis of size 1 is `1`.

From this follow both directions, each without arithmetic on values, so that one undoes the other: transposing,
splitting and merging dimensions, taking arrays apart and joining them, and any permutation, such as that between
rotary pairs which are neighbours, `(h k 2)`, and halves, `(h 2 k)`, where a number is the size of an axis.
"""

import concurrent.futures
import dataclasses
import functools
import math
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np

from dovetail.config import ConfigError

_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|[()+]")
_BLOCK = 128  # Elements along each of two dimensions that are copied together.
Dim = tuple[str, ...]  # Axes, the first one slowest.


@dataclasses.dataclass(frozen=True)
class Axes:
    """The dimensions of one array, or of the left side: `sums` is where the parts are, if there are several."""

    dims: tuple[Dim, ...]
    sums: tuple[int, int] | None = None  # The dimension, and how many of its axes are before the parts.
    terms: tuple[Dim, ...] = ()  # The axes of each part, which `dims` has none of.

    def part(self, number: int) -> "Axes":
        """Returns the dimensions of one part as if it were alone."""
        if self.sums is None:
            return self
        at, before = self.sums
        dim = self.dims[at]
        whole = (*dim[:before], *self.terms[number], *dim[before:])
        return Axes((*self.dims[:at], whole, *self.dims[at + 1 :]))

    @property
    def flat(self) -> Dim:
        """All axes in order, those of no size left out."""
        return tuple(axis for dim in self.dims for axis in dim if axis != "1")

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the size of each dimension."""
        found = [_product(dim, sizes) for dim in self.dims]
        if self.sums is not None:
            found[self.sums[0]] *= sum(_product(term, sizes) for term in self.terms)
        return tuple(found)


@functools.cache
def parse_axes(text: str) -> Axes:
    """Returns what a text like `(h k + g k) d` says."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != "".join(text.split()):
        raise _refused(text)
    dims, sums, terms = list[Dim](), None, tuple[Dim, ...]()
    while tokens:
        if tokens[0] in (")", "+"):
            raise _refused(text)
        dim, before, inner = _group(tokens, text) if tokens[0] == "(" else ((tokens.pop(0),), 0, ())
        if inner and sums is not None:
            raise ConfigError(f"{text!r} has parts in two dimensions, expected one at most.")
        if inner:
            sums, terms = (len(dims), before), inner
        dims.append(dim)
    found = Axes(tuple(dims), sums, terms)
    for number in range(max(1, len(terms))):
        named = [axis for axis in found.part(number).flat if not axis.isdigit()]
        if twice := [axis for axis in named if named.count(axis) > 1]:
            raise ConfigError(f"{text!r} has the axis {twice[0]!r} twice.")
    return found


def _group(tokens: list[str], text: str) -> tuple[Dim, int, tuple[Dim, ...]]:
    """Takes what is in parentheses: axes outside of parts, how many of them are before the parts, and the parts."""
    tokens.pop(0)
    parts, before, inner = [list[str]()], 0, tuple[Dim, ...]()
    while tokens and (token := tokens[0]) != ")":
        if token == "(":
            outer, before = inner, len(parts[-1])
            between, _, inner = _group(tokens, text)
            if outer or between or not inner:  # Two sums, one inside of two, or parentheses that say nothing.
                raise _refused(text)
            continue
        tokens.pop(0)
        if token == "+":
            parts.append([])
        else:
            parts[-1].append(token)
    if not tokens or (len(parts) > 1 and (inner or not all(parts))) or not (parts[0] or inner):
        raise _refused(text)
    del tokens[:1]
    if len(parts) == 1:
        return tuple(parts[0]), before, inner
    return (), 0, tuple(map(tuple, parts))


def _refused(text: str) -> ConfigError:
    return ConfigError(f"{text!r} is not a list of axes, such as `(h k) d`.")


def _product(axes: Dim, sizes: Mapping[str, int]) -> int:
    return math.prod(int(axis) if axis.isdigit() else sizes[axis] for axis in axes)


def sizes_of(known: Sequence[tuple[Axes, tuple[int, ...]]]) -> dict[str, int] | None:
    """Returns the size of each axis, from arrays of known shapes; None if these do not agree, or do not tell."""
    sizes: dict[str, int] = {}
    open_dims = [(dim, size) for axes, shape in known for dim, size in zip(axes.dims, shape, strict=True)]
    while open_dims:
        left = []
        for dim, size in open_dims:
            unknown = [axis for axis in dim if not axis.isdigit() and axis not in sizes]
            if len(unknown) > 1:
                left.append((dim, size))
                continue
            rest = _product(tuple(axis for axis in dim if axis not in unknown), sizes)
            if unknown and (rest == 0 or size % rest):
                return None
            if unknown:
                sizes[unknown[0]] = size // rest
            elif rest != size:
                return None
        if len(left) == len(open_dims):
            return None
        open_dims = left
    return sizes


def taken(whole: np.ndarray, axes: Axes, number: int, to: Axes, sizes: Mapping[str, int]) -> np.ndarray:
    """Returns the array on the right that is part `number` of the one on the left; a view where that is possible."""
    moved = exploded(whole, axes, number, sizes)
    order = [named_axes(axes.part(number)).index(axis) for axis in named_axes(to)]
    return moved.transpose(order).reshape(to.shape(sizes))


def put(whole: np.ndarray, axes: Axes, number: int, value: np.ndarray, to: Axes, sizes: Mapping[str, int]) -> None:
    """Writes an array on the right into the one on the left: undoes `taken`."""
    target = exploded(whole, axes, number, sizes)
    flat = value.reshape([_product((axis,), sizes) for axis in to.flat])
    _copy(target, flat.transpose([named_axes(to).index(axis) for axis in named_axes(axes.part(number))]))


def _copy(target: np.ndarray, source: np.ndarray) -> None:
    """Copies an array whose dimensions lie in another order in memory, in blocks that stay in the processor's caches.

    NumPy alone goes through one of the two with a stride, and is several times slower.
    """
    fast = [min(range(x.ndim), key=lambda i: (abs(x.strides[i]), -x.shape[i]), default=0) for x in (target, source)]
    if fast[0] == fast[1] or target.size < _BLOCK**2:
        target[...] = source
        return

    def blocks(first: int) -> None:
        part = [slice(None)] * target.ndim
        part[fast[0]] = slice(first, first + _BLOCK)
        for start in range(0, target.shape[fast[1]], _BLOCK):
            part[fast[1]] = slice(start, start + _BLOCK)
            target[tuple(part)] = source[tuple(part)]

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for _ in pool.map(blocks, range(0, target.shape[fast[0]], _BLOCK)):
            pass


def exploded(whole: np.ndarray, axes: Axes, number: int, sizes: Mapping[str, int]) -> np.ndarray:
    """Returns a view of one part with a dimension for each axis."""
    if axes.sums is None:
        return whole.reshape([_product((axis,), sizes) for axis in axes.flat])
    at, before = axes.sums
    widths = [_product(term, sizes) for term in axes.terms]
    shape, place = list[int](), 0
    for i, dim in enumerate(axes.dims):
        plain = [_product((axis,), sizes) for axis in dim if axis != "1"]
        if i == at:
            ahead = sum(axis != "1" for axis in dim[:before])
            place = len(shape) + ahead
            plain.insert(ahead, sum(widths))
        shape += plain
    start = sum(widths[:number])
    cut = whole.reshape(shape)[(slice(None),) * place + (slice(start, start + widths[number]),)]
    inner = [_product((axis,), sizes) for axis in axes.terms[number] if axis != "1"]
    # Splitting a dimension never copies.
    return cut.reshape((*cut.shape[:place], *inner, *cut.shape[place + 1 :]))


def named_axes(axes: Axes) -> list[str]:
    """Returns the axes in order, numbers told apart by how many are before them."""
    names, seen = list[str](), dict[str, int]()
    for axis in axes.flat:
        seen[axis] = seen.get(axis, -1) + 1
        names.append(f"{axis}#{seen[axis]}" if axis.isdigit() else axis)
    return names
