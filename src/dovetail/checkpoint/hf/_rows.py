# SPDX-License-Identifier: Apache-2.0
"""A table of weights: for each tensor of a published model, which parameters hold its numbers. A row is a line of text.

    model.layers.{l}.self_attn.q_proj.weight: (h k) d = layer.mixer.query.weight: d h k
    model.layers.{l}.mlp.experts.{e}.up_proj.weight: f d = layer.ffn.up.weight: e d f
    model.layers.{l}.mlp.gate_up_proj.weight: (f + f) d = layer.ffn.gate.weight: d f, layer.ffn.up.weight: d f
    lm_head.weight == model.embed_tokens.weight
    *.rotary_emb.inv_freq -- a constant

`{l}` is the number of the layer; any other letter is an axis of which each entry is a tensor. On the right are paths of
the model, `layer` being each layer of its stack, with the axes of one layer. `mixer:Attention` is a mixer of that class
alone, `mixer:query_rank` one with this field set, and `mixer:!query_rank` one with it not set. A row counts where the
model has its parameters with as many dimensions, so one table serves layers with and without biases. After ` ~ ` may be
a parameter that says how large axes are. `==` is a copy that a file may have, and `--` what is not needed, and why;
`{n}` is the number of layers there.

From the table and a model follows everything else: what tensors there are and their shapes, that each is used once and
each parameter filled once, what to read for a part of a parameter, and how to write the tensors again.
"""

import dataclasses
import fnmatch
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dovetail.config import ConfigError
from dovetail.nn import Place, layers_of

from ._axes import Axes, exploded, named_axes, parse_axes, put, sizes_of, taken

_LAYER = "{l}"
_NUMBERED = re.compile(r"\{(?!l\})(\w+)\}")
_SHOWN = 12  # Names in a message.
_MOST = 2**18  # Tensors; the largest published models have a third of it.
Key = tuple[str, tuple[int, ...]]  # A parameter and the entry of it that is one layer's.


class _Target(NamedTuple):
    path: str
    axes: Axes


@dataclasses.dataclass(frozen=True)
class Row:
    """Tensors of one kind, and the parameters that have their numbers."""

    name: str
    axes: Axes
    targets: tuple[_Target, ...]
    known: _Target | None = None  # A parameter that tells sizes of axes, and is not filled.

    @property
    def numbered(self) -> str | None:
        """The axis of which each entry is a tensor of its own, if there is one."""
        found = _NUMBERED.search(self.name)
        return found[1] if found else None


class Piece(NamedTuple):
    """What fills a parameter, or the entry of it that is one layer's."""

    names: tuple[str, ...]  # A tensor, or one for each entry of an axis.
    row: Row
    number: int  # The part of the tensor.
    sizes: Mapping[str, int]  # Of the axes.


class Tensor(NamedTuple):
    """A tensor of a published model, and what it is made of."""

    shape: tuple[int, ...]
    row: Row
    parts: tuple[Key, ...]
    entry: int | None  # Of the axis of which there are several.
    sizes: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class WeightMap:
    """A table, applied to a model."""

    tensors: Mapping[str, Tensor]
    pieces: Mapping[Key, Piece]
    copies: Mapping[str, str]  # Tensors that may be there, and the one that they must equal.
    ignored: Mapping[str, str]  # Patterns of names, and why.

    def raw(self, key: Key, part: tuple[slice, ...], view: Any) -> tuple[np.ndarray, tuple[int, ...] | None]:
        """Returns what `read` does before its dimensions are put in order, and that order: `transpose` makes it whole.

        An order of None: the array is what `read` returns. Else it may be a view of the tensor. To move dimensions is
        slow in NumPy, and fast in a compiled program.
        """
        names, row, number, sizes = self.pieces[key]
        to, source = row.targets[number].axes, named_axes(row.axes.part(number))
        if row.numbered is not None or any(len(dim) > 1 or dim == ("1",) for dim in to.dims):
            return self.read(key, part, view), None
        order = [source.index(axis) for axis in named_axes(to)]
        if order == sorted(order):
            return self.read(key, part, view), None
        moved = exploded(view(names[0]), row.axes, number, sizes)
        return moved[tuple(part[order.index(i)] for i in range(len(order)))], tuple(order)

    def read(self, key: Key, part: tuple[slice, ...], view: Any) -> np.ndarray:
        """Returns a part of a parameter of one layer, in memory of its own; `view` gives a tensor by its name."""
        names, row, number, sizes = self.pieces[key]
        to = row.targets[number].axes
        if row.numbered is None:
            return np.array(taken(view(names[0]), row.axes, number, to, sizes)[part], order="C")
        axis = (row.numbered,)
        at = to.dims.index(axis)
        one, rest = {**sizes, row.numbered: 1}, (*part[:at], slice(None), *part[at + 1 :])
        lifted = dataclasses.replace(row.axes, dims=(axis, *row.axes.dims), sums=_moved(row.axes.sums))
        chosen = [taken(view(name)[None], lifted, number, to, one)[rest] for name in names[part[at]]]
        return np.concatenate(chosen, axis=at)

    def write(self, name: str, dtype: Any, value: Any) -> np.ndarray:
        """Returns a tensor; `value(path, index)` gives a part of a parameter."""
        tensor = self.tensors[name]
        whole = np.empty(tensor.shape, dtype)
        for number, (path, index) in enumerate(tensor.parts):
            to, sizes = tensor.row.targets[number].axes, dict(tensor.sizes)
            if tensor.entry is not None:
                at = to.dims.index((tensor.row.numbered or "",))
                to = Axes(to.dims[:at] + to.dims[at + 1 :])
                index = (*index, *(slice(None),) * at, tensor.entry)
            put(whole, tensor.row.axes, number, value(path, index), to, sizes)
        return whole


def _moved(sums: tuple[int, int] | None) -> tuple[int, int] | None:
    return None if sums is None else (sums[0] + 1, sums[1])


def weight_map(
    rows: Iterable[str], stack: Any, shapes: Mapping[str, tuple[int, ...]], *, partial: bool = False
) -> WeightMap:
    """Returns what a table says of a model with this stack and parameters of these shapes, by path.

    All parameters must have a place in the table, unless `partial`.
    """
    tensors, pieces = dict[str, Tensor](), dict[Key, Piece]()
    copies, ignored = dict[str, str](), dict[str, str]()
    places = layers_of(stack)
    for text in rows:
        if " == " in text:
            name, _, like = text.partition(" == ")
            copies[name.strip()] = like.strip()
        elif " -- " in text:
            name, _, why = text.partition(" -- ")
            ignored[name.strip().replace("{n}", str(len(places)))] = why.strip()
        else:
            _apply(_parsed(text), places, shapes, tensors, pieces)
    unfilled = [path for path, shape in shapes.items() if not _is_filled(path, shape, places, pieces)]
    if unfilled and not partial:
        raise ConfigError(
            "this model has parameters for which the format of its family has no place:\n"
            f"{_listed(unfilled)}\n  Leave out what they belong to, or use a family that has it."
        )
    copies = {name: like for name, like in copies.items() if name not in tensors and like in tensors}
    return WeightMap(tensors, pieces, copies, ignored)


def _parsed(text: str) -> Row:
    try:
        rest, _, known = text.partition(" ~ ")
        left, right = rest.split(" = ")
        name, axes = (part.strip() for part in left.split(": "))
        pairs = [[part.strip() for part in each.split(": ")] for each in right.split(", ")]
        targets = tuple(_Target(path, parse_axes(axes)) for path, axes in pairs)
        path, _, axes_known = known.partition(": ")
        row = Row(name, parse_axes(axes), targets, _Target(path, parse_axes(axes_known)) if known else None)
    except ValueError as e:
        raise ConfigError(f"a row of weights is {text!r}, expected `tensor: axes = parameter: axes`.") from e
    if len(row.targets) != max(1, len(row.axes.terms)):
        raise ConfigError(f"a row of weights is {text!r}: it has not as many parameters as the tensor has parts.")
    entry = [row.numbered] if row.numbered else []
    for number, target in enumerate(row.targets):
        if target.axes.sums is not None or (entry and (row.numbered,) not in target.axes.dims):
            raise ConfigError(f"a row of weights is {text!r}: {target.path} can be no such part of a tensor.")
        if sorted([*entry, *named_axes(row.axes.part(number))]) != sorted(named_axes(target.axes)):
            raise ConfigError(
                f"a row of weights is {text!r}: {target.path} has other axes than its part of the tensor."
            )
    return row


def _apply(
    row: Row,
    places: Sequence[Place],
    shapes: Mapping[str, tuple[int, ...]],
    tensors: dict[str, Tensor],
    pieces: dict[Key, Piece],
) -> None:
    for number, place in enumerate(places) if row.targets[0].path.startswith("layer.") else [(None, None)]:
        keys = [_key(target, place, shapes) for target in row.targets]
        found = [key for key in keys if key is not None]
        if len(found) < len(keys):  # None of it, or too little, which leaves a parameter unfilled.
            continue
        own = [shapes[path][len(index) :] for path, index in found]
        pairs = [(target.axes, shape) for target, shape in zip(row.targets, own, strict=True)]
        if row.known is not None and (key := _key(row.known, place, shapes)) is not None:
            pairs.append((row.known.axes, shapes[key[0]][len(key[1]) :]))
        sizes = sizes_of(pairs)
        if sizes is None:
            raise ConfigError(f"{found[0][0]}: shapes {own} do not fit the row of the table for {row.name!r}.")
        name = row.name.replace(_LAYER, str(number))
        entries = range(sizes[row.numbered]) if row.numbered else [None]
        if len(tensors) + len(entries) > _MOST:
            raise ConfigError(
                f"{found[0][0]}: {len(entries):,} tensors in one layer. With those before, that is more than {_MOST:,}."
            )
        names = tuple(name if i is None else _NUMBERED.sub(str(i), name) for i in entries)
        for each, entry in zip(names, entries, strict=True):
            if each in tensors:
                raise ConfigError(f"the table of weights uses {each!r} twice.")
            tensors[each] = Tensor(row.axes.shape(sizes), row, tuple(found), entry, sizes)
        for i, key in enumerate(found):
            if key in pieces:
                raise ConfigError(f"the table of weights fills {key[0]!r} twice.")
            pieces[key] = Piece(names, row, i, sizes)


def _key(target: _Target, place: Place | None, shapes: Mapping[str, tuple[int, ...]]) -> Key | None:
    """Returns the parameter that a target means in a layer, if that has it."""
    if place is None:
        path, index = target.path, ()
    else:
        part, names = place.layer, list[str]()
        for step in target.path.split(".")[1:]:
            name, _, kind = step.partition(":")
            part = getattr(part, name, None)
            if kind and not _is_of(part, kind):
                return None
            names.append(name)
        path, index = ".".join([place.path, *names]), place.entry
    owner, _, last = path.rpartition(".")
    inside = f"{owner}.inner.{last}"  # Of a map that wraps another, such as an adapter.
    path = inside if path not in shapes and inside in shapes else path
    fits = path in shapes and len(shapes[path]) == len(index) + len(target.axes.dims)
    return (path, index) if fits else None


def _is_of(part: Any, kind: str) -> bool:
    """Whether a part is of a class; or, if that is the name of a field that it has, has set it, `!` for not."""
    name = kind.removeprefix("!")
    if name[0].isupper():
        return kind == type(part).__qualname__.partition(".")[0]
    return hasattr(part, name) and (getattr(part, name) is None) is kind.startswith("!")


def _is_filled(path: str, shape: tuple[int, ...], places: Sequence[Place], pieces: Mapping[Key, Piece]) -> bool:
    if (path, ()) in pieces:
        return True
    indices = {place.entry for place in places if path.startswith(f"{place.path}.")}
    return bool(indices) and all((path, index) in pieces for index in indices)


def check_stored(where: str, found: WeightMap, stored: Mapping[str, Any]) -> WeightMap:
    """Raises if tensors of a directory are not those that a model has; returns the map with their names.

    A directory may hold the part of a model below its head, whose names lack their first word.
    """
    if not any(name in stored for name in found.tensors):
        bare = {name: name.partition(".")[2] for name in found.tensors}
        if any(name in stored for name in bare.values()):
            found = _renamed(found, {name: new if new in stored else name for name, new in bare.items()})
            ignored = {pattern.partition(".")[2]: why for pattern, why in found.ignored.items() if pattern[0] != "*"}
            found = dataclasses.replace(found, ignored={**found.ignored, **ignored})
    missing = [name for name in found.tensors if name not in stored]
    extra = [name for name in stored if name not in found.tensors and name not in found.copies]
    patterns = [re.compile(fnmatch.translate(pattern)) for pattern in found.ignored]
    extra = [name for name in extra if not any(pattern.match(name) for pattern in patterns)]
    shapes = [
        f"{name} is {tuple(stored[name].shape)}, expected {tensor.shape}"
        for name, tensor in found.tensors.items()
        if name in stored and tuple(stored[name].shape) != tensor.shape
    ]
    odd = [
        f"{name} is of type {stored[name].dtype}, expected floating point"
        for name in found.tensors
        if name in stored and str(stored[name].dtype) not in _FLOATS
    ]
    problems = [f"is missing: {name}" for name in missing] + [f"has no place in the model: {name}" for name in extra]
    if problems or shapes or odd:
        raise ConfigError(
            f"{where}: its tensors are not those that its config.json describes:\n"
            f"{_listed([*problems, *shapes, *odd])}\n  Nothing was loaded."
        )
    return found


_FLOATS = ("float64", "float32", "float16", "bfloat16")


def _renamed(found: WeightMap, names: Mapping[str, str]) -> WeightMap:
    tensors = {names[name]: tensor for name, tensor in found.tensors.items()}
    pieces = {
        key: piece._replace(names=tuple(names[name] for name in piece.names)) for key, piece in found.pieces.items()
    }
    copies = {name: names[like] for name, like in found.copies.items()}
    return dataclasses.replace(found, tensors=tensors, pieces=pieces, copies=copies)


def _listed(lines: Sequence[str]) -> str:
    shown = [f"  {line}" for line in itertools.islice(lines, _SHOWN)]
    more = len(lines) - len(shown)
    return "\n".join([*shown, *([f"  ... and {more} more"] if more else [])])
