# SPDX-License-Identifier: Apache-2.0
"""What follows from the declarations: specs of all parameters, their initial values, and the tree in print."""
# pyright: reportPrivateUsage=false
# `_children` and `_params` of a module are private to this package, not to its file.

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from ._param import ParamSpec, fold_paths

if TYPE_CHECKING:
    from ._module import Module


_NUMERIC = (False, False, False, False, False, True, True)


def specs(module: "Module") -> dict[str, Any]:
    """Returns the specs of all parameters, as a tree of dicts with the names of modules and parameters."""
    tree: dict[str, Any] = dict(module._params)
    if module._is_frozen:
        tree = {name: dataclasses.replace(spec, frozen=True) for name, spec in tree.items()}
    for name, (child, stack) in module._children.items():
        tree[name] = map_specs(lambda spec, n=stack: spec.stacked(n) if n else spec, specs(child))
    return tree


def modules(module: "Module", times: int = 1) -> Iterator[tuple["Module", int]]:
    """Yields a module and all below it, each with the number of layers that it stands for."""
    yield module, times
    for child, stack in module._children.values():
        yield from modules(child, times * (stack or 1))


def children(module: "Module") -> dict[str, tuple["Module", int]]:
    """Returns the children of a module by name, each with the number of layers that it stands for, or 0."""
    return dict(module._children)


def own_specs(module: "Module") -> dict[str, ParamSpec]:
    """Returns the specs of what a module declares itself, those of one layer where it stands for several."""
    return dict(module._params)


def map_specs(function: Callable[[ParamSpec], Any], tree: dict[str, Any]) -> dict[str, Any]:
    """Applies a function to every spec of a tree."""
    return jax.tree.map(function, tree, is_leaf=_is_spec)


def init(module: "Module", key: Array) -> dict[str, Any]:
    """Returns initial values for all parameters. Each depends on the key and on its own path alone.

    Parameters that are alike are filled together, with the values that each would have by itself: what takes time to
    compile is the number of draws, not of values.
    """
    tree = specs(module)
    alike: dict[ParamSpec, list[str]] = {}
    for path, spec in _leaves(tree, ""):
        alike.setdefault(dataclasses.replace(spec, cast=True, frozen=False), []).append(path)
    keys = fold_paths(key, [path for paths in alike.values() for path in paths])
    values: dict[str, Array] = {}
    for spec, paths in alike.items():
        mine = keys[len(values) : len(values) + len(paths)]
        values |= zip(paths, jax.vmap(spec.make)(mine), strict=True)
    return _filled(tree, values, "")


def _leaves(tree: dict[str, Any], path: str) -> Iterator[tuple[str, ParamSpec]]:
    for name, below in tree.items():
        place = join(path, name)
        yield from [(place, below)] if _is_spec(below) else _leaves(below, place)


def _filled(tree: dict[str, Any], values: dict[str, Array], path: str) -> dict[str, Any]:
    def fill(below: Any, place: str) -> Any:
        return values[place] if _is_spec(below) else _filled(below, values, place)

    return {name: fill(below, join(path, name)) for name, below in tree.items()}


def check_params(module: "Module", params: Mapping[str, Any], stack: tuple[int, ...] = ()) -> str:
    """Returns what is wrong with the first array that is not as its spec says, or nothing.

    What is missing is not wrong here: nobody may ask for it. `stack` is the number of layers in each loop around.
    """
    for name, spec in (module._params | module._run_state).items():
        shape, value = (*stack, *spec.shape), params.get(name)
        if value is None or (tuple(value.shape) == shape and _kind(value.dtype) == _kind(spec.dtype)):
            continue
        found, declared = f"{value.dtype}{list(value.shape)}", f"{jnp.dtype(spec.dtype)}{list(shape)}"
        return f"{join(module.path, name)}: the array is {found}, the module declares {declared}."
    for name, (child, count) in module._children.items():
        wrong = check_params(child, params.get(name, {}), (*stack, count) if count else stack)
        if wrong:
            return wrong
    return ""


def _kind(dtype: DTypeLike) -> Any:
    return next((kind for kind in (jnp.floating, jnp.integer) if jnp.issubdtype(dtype, kind)), jnp.dtype(dtype))


def join(path: str, name: str) -> str:
    """Appends a name to a module path."""
    return f"{path}.{name}" if path else name


def abstract(module: "Module") -> dict[str, Any]:
    """Returns shapes and dtypes of all parameters, for tracing without making them."""
    return map_specs(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), specs(module))


def describe(module: "Module") -> str:
    """Returns the module tree as a table: path, class, and parameters with shape, axes, count and bytes."""
    rows = [("path", "class", "parameter", "shape", "axes", "count", "bytes"), *_rows(module, specs(module))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(_padded, row, widths, _NUMERIC)).rstrip() for row in rows]
    leaves = jax.tree.leaves(specs(module), is_leaf=_is_spec)
    total = f"total: {sum(s.size for s in leaves):,} parameters, {sum(s.nbytes for s in leaves):,} bytes"
    return "\n".join([*lines, total])


def _padded(cell: str, width: int, numeric: bool) -> str:
    return cell.rjust(width) if numeric else cell.ljust(width)


def _rows(module: "Module", tree: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    path, kind = module.path or "(root)", type(module).__name__
    for name in module._params or [""]:
        spec = tree.get(name)
        if isinstance(spec, ParamSpec):
            axes = ", ".join(axis or "-" for axis in spec.axes)
            shown = f"{name} (frozen)" if spec.frozen else name
            yield path, kind, shown, str(spec.shape), axes, f"{spec.size:,}", f"{spec.nbytes:,}"
        else:
            yield path, kind, "", "", "", "", ""
        path = kind = ""
    for name, (child, _) in module._children.items():
        yield from _rows(child, tree[name])


def _is_spec(value: Any) -> bool:
    return isinstance(value, ParamSpec)
