# SPDX-License-Identifier: Apache-2.0
"""A model as a picture of blocks, from its modules and the parameters they declare."""

import math
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from dovetail.module import Module, Objective, ParamSpec, children, modules, own_specs
from dovetail.nn import Add, Block, Connection, Dropout, Repeat, layers_of
from dovetail.nn import Sequence as LayerSequence
from dovetail.pictures import TIMES, BlockBranch, BlockLayer, Card, Picture, Row, Section, Stack, blocks_picture, number

_ARROW = "\N{RIGHTWARDS ARROW}"
_DOT = "\N{MIDDLE DOT}"


def model_picture(name: str, model: Module) -> Picture:
    """Returns a picture of what a model is made of."""
    items = list(_items(model))
    main = takewhile(lambda item: not isinstance(item, Section), items)
    layers = sum(len(item.order) for item in main if isinstance(item, Stack))
    about = f"{type(model).__name__}, {_count(model)} parameters, {layers} layers" if layers else type(model).__name__
    return blocks_picture(name, about, items)


def _items(module: Module) -> Iterator[Card | Stack | Section]:
    """Yields the parts of a model in the order in which they are declared, which is that in which they run."""
    if own_specs(module):
        yield Card("(own)", type(module).__name__, "", list(_own_rows(module)))
    for name, (child, _) in children(module).items():
        if isinstance(child, Repeat | LayerSequence | Block):
            yield _stack(name, child)
        elif isinstance(child, Objective) or any(isinstance(each, Block) for each, _ in modules(child)):
            yield Section(name, type(child).__name__, _count(child))
            yield from _items(child)
        elif children(child):
            yield _card(name, child)
        elif not _goes_without_saying(child):
            yield Card(name, f"{type(child).__name__}  {_declared(child)}", _count(child))


def _stack(name: str, stack: Module) -> Stack:
    by_path = {each.path: each for each, _ in modules(stack)}
    places = layers_of(stack.cfg, stack.path)
    kinds: dict[Any, int] = {}
    order = [kinds.setdefault(place.layer, len(kinds)) for place in places]
    firsts = [by_path[places[order.index(number)].path] for number in range(len(kinds))]
    return Stack(name, _count(stack), order, [_layer(each) for each in firsts])


def _layer(layer: Module) -> BlockLayer:
    if not isinstance(layer, Block):
        card = _card(type(layer).__name__, layer)
        return BlockLayer(type(layer).__name__, _count(layer), [BlockBranch(card)], plain=True)
    inside = {name: child for name, (child, _) in children(layer).items()}
    shared = [_norm("norm", inside["norm"])] if "norm" in inside else []
    branches: list[BlockBranch] = []
    for name, child in inside.items():
        joined = inside.get(f"{name}_connection")
        if not isinstance(joined, Connection):
            continue
        norms = [inside.get(f"{name}_{where}norm") for where in ("", "out_")]
        before, after = (
            [_norm(n, norm)] if norm else [] for n, norm in zip((f"{name}_norm", "norm"), norms, strict=True)
        )
        how = "" if isinstance(joined, Add) else type(joined).__name__
        branches.append(BlockBranch(_card(name, child), [*shared, *before], after, how))
    return BlockLayer(type(layer).__name__, _count(layer), branches, parallel=layer.cfg.order == "parallel")


def _norm(name: str, norm: Module) -> str:
    return f"{name}  {type(norm).__name__}"


def _card(name: str, module: Module) -> Card:
    rows = list(_rows(module))
    many = any(_several(spec) for child, _ in children(module).values() for spec in own_specs(child).values())
    inside = children(module) or own_specs(module)
    return Card(name, type(module).__name__, _count(module) if inside else "", rows, many=many)


def _rows(module: Module) -> Iterator[Row | Card]:
    yield from _own_rows(module)
    for name, (child, _) in children(module).items():
        if _goes_without_saying(child):
            continue
        if children(child):
            yield _card(name, child)
        else:
            yield Row(name, _declared(child) or type(child).__name__, _count(child))


def _own_rows(module: Module) -> Iterator[Row]:
    for name, spec in own_specs(module).items():
        yield Row(name, _shape(spec), number(spec.size))


def _declared(module: Module) -> str:
    """Returns the shape of the largest parameter of a module, and the names of the others."""
    ordered = sorted(own_specs(module).items(), key=lambda item: -item[1].size)
    return " + ".join([*(_shape(spec) for _, spec in ordered[:1]), *(name for name, _ in ordered[1:])])


def _shape(spec: ParamSpec) -> str:
    """Returns a shape as what it maps: how many of them, from what, to what."""
    into, out = ([spec.shape[dim] for dim in dims] for dims in (spec.in_dims, spec.out_dims))
    if not into or not out:
        return _DOT.join(map(str, spec.shape))
    maps = f"{_DOT.join(map(str, into))} {_ARROW} {_DOT.join(map(str, out))}"
    number_of_maps = _several(spec)
    return f"{number_of_maps} {TIMES} {maps}" if number_of_maps else maps


def _several(spec: ParamSpec) -> int:
    """Returns how many maps a parameter holds, side by side; 0 if it is one, or none."""
    rank, mapped = len(spec.shape), (*spec.in_dims, *spec.out_dims)
    rest = [spec.shape[dim] for dim in range(rank) if dim - rank not in mapped]
    return math.prod(rest) if rest and spec.in_dims and spec.out_dims else 0


def _count(module: Module) -> str:
    total = sum(math.prod(spec.shape) * times for each, times in modules(module) for spec in own_specs(each).values())
    return number(total) if total else ""


def _goes_without_saying(module: Module) -> bool:
    return isinstance(module, Dropout | Add)
