# SPDX-License-Identifier: Apache-2.0
"""Groups of parameters with a learning rate, a decay or a projection of their own."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail.config import ConfigBase, ConfigError, FunctionConfig
from dovetail.module import ParamSpec

from ._groups import by_path, matching

# From what an update makes of a parameter to its new value; each layer of a stack, and its spec, comes on its own.
Projection = Callable[[Array, ParamSpec], Array]


class Group(ConfigBase):
    """Parameters chosen by path and by spec, and how they are changed. A parameter is in the first group that it fits.

    >>> Group(paths=("embedding.*", "head.*"), rate=0.1, decay=0.0).rate
    0.1
    """

    paths: tuple[str, ...] = ("*",)  # Whole paths or patterns, `*` standing for any characters.
    select: Callable[[ParamSpec], bool] | None = None  # Which of these, by spec: `is_matrix`; None: all.
    rate: float = 1.0  # Times the learning rate, and so times the decay; with 0, nothing but `project` moves them.
    layer_rates: tuple[float, ...] = ()  # Times that for each layer of a stack, in the order in which they run.
    decay: float | None = None  # Rate of weight decay; None: as `weight_decay` of the learner says.
    project: FunctionConfig[Projection] | None = None  # What follows each update, as `unit_norm`; not `init`.


@dataclasses.dataclass(frozen=True)
class Treatment:
    """How one parameter is changed."""

    group: str  # Empty: in none.
    rate: float | np.ndarray  # Times the learning rate; an array for layers that differ.
    decay: float
    project: Callable[[Array], Array] | None = None


def treatments(groups: Sequence[Group], specs: Any, rates: Any, decays: Any, path: str) -> Any:
    """Returns the treatment of each parameter, as a tree like `specs`.

    Args:
        rates: a tree of factors of the learning rate, before those of groups.
        decays: a tree of rates of decay where a group says nothing.
        path: of the learner, for errors.
    """
    flat = by_path(specs)
    chosen: dict[str, int] = {}
    for i, group in enumerate(groups):
        place = f"{path}.groups[{i}]"
        _check(group, place)
        fits = [name for pattern in group.paths for name in matching(pattern, list(flat), f"{place}: paths")]
        mine = [name for name in fits if group.select is None or group.select(flat[name])]
        new = dict.fromkeys((name for name in mine if name not in chosen), i)
        if not new:
            why = "all that it fits are in groups before it" if mine else "`select` takes none of those that paths fit"
            raise ConfigError(f"{place}: no parameter is in this group: {why}. Reorder the groups, or leave it out.")
        chosen |= new

    def one(name: str, rate: float, decay: float) -> Treatment:
        if name not in chosen:
            return Treatment("", rate, decay)
        group, place = groups[chosen[name]], f"{path}.groups[{chosen[name]}]"
        return Treatment(
            group=f"groups[{chosen[name]}]",
            rate=rate * group.rate * _by_layer(group.layer_rates, name, flat[name], place),
            decay=decay if group.decay is None else group.decay,
            project=_on_each_layer(group.project, name, flat[name], place) if group.project else None,
        )

    found = map(one, flat, jax.tree.leaves(rates), jax.tree.leaves(decays))
    return jax.tree.unflatten(jax.tree.structure(specs), list(found))


def table(specs: Any, plan: Any) -> str:
    """Returns which group each parameter is in, and what follows from it; frozen ones have no treatment."""
    rows = [("parameter", "group", "rate", "decay", "project")]
    found = by_path(plan)
    for name in by_path(specs):
        how: Treatment | None = found.get(name)
        if how is None:
            rows.append((name, "frozen", "", "", ""))
            continue
        rates = np.unique(how.rate)
        shown = f"{rates[0]:g}" if rates.size == 1 else f"{rates[0]:g} to {rates[-1]:g}, by layer"
        rows.append((name, how.group or "-", shown, f"{how.decay:g}", "yes" if how.project else ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def unit_norm(axis: str = "embed") -> Projection:
    """Scales all vectors along a logical axis to length 1, as nGPT does along the model dimension of all matrices.

    Reference: Loshchilov et al., nGPT, 2024 (arXiv:2410.01131), section 2.1.
    """
    return _UnitNorm(axis)


@dataclasses.dataclass(frozen=True)
class _UnitNorm:
    axis: str

    def __call__(self, value: Array, spec: ParamSpec) -> Array:
        dims = [dim for dim, axis in enumerate(spec.axes) if axis == self.axis]
        if len(dims) != 1:
            raise ConfigError(
                f"unit_norm: {self.axis!r} is {len(dims)} of the axes {spec.axes}, expected once.\n"
                "  Choose another axis, or parameters that have it."
            )
        norm = jnp.sqrt(jnp.sum(jnp.square(value), axis=dims[0], keepdims=True))
        return value / jnp.maximum(norm, jnp.finfo(value.dtype).tiny)


def _check(group: Group, place: str) -> None:
    if not group.paths:
        raise ConfigError(f"{place}: paths is (), expected at least one path or pattern.")
    numbers = {"rate": (group.rate,), "layer_rates": group.layer_rates, "decay": (group.decay or 0.0,)}
    for field, values in numbers.items():
        if not all(0 <= value < math.inf for value in values):
            raise ConfigError(f"{place}: {field} is {getattr(group, field)!r}, expected numbers of at least 0.")


def _by_layer(rates: Sequence[float], name: str, spec: ParamSpec, place: str) -> float | np.ndarray:
    """Returns factors that fit an array of this spec: one for each layer, or 1."""
    if not rates:
        return 1.0
    stack = spec.shape[: spec.stack]
    if not stack or math.prod(stack) != len(rates):
        layers = f"{math.prod(stack)} layers" if stack else "is not of a stack"
        raise ConfigError(
            f"{place}: layer_rates has {len(rates)} numbers, but {name} {'has ' * bool(stack)}{layers}.\n"
            "  Give one for each layer, and groups of their own to parameters that are not of that stack."
        )
    return np.asarray(rates, np.float32).reshape(*stack, *[1] * (len(spec.shape) - spec.stack))


def _on_each_layer(project: FunctionConfig[Projection], name: str, spec: ParamSpec, place: str) -> Any:
    one = dataclasses.replace(spec, shape=spec.shape[spec.stack :], axes=spec.axes[spec.stack :], stack=0)
    made = project.build(path=f"{place}.project")

    def run(value: Array) -> Array:
        return made(value, one)

    for _ in range(spec.stack):
        run = jax.vmap(run)
    given = jax.ShapeDtypeStruct(spec.shape, jnp.float32)
    try:
        out = jax.eval_shape(run, given)
    except ConfigError as e:
        raise ConfigError(f"{place}: project cannot change {name}: {e}") from e
    if (out.shape, out.dtype) != (given.shape, given.dtype):
        raise ConfigError(
            f"{place}: project makes {out.dtype}{list(out.shape)} of {name}, which is float32{list(spec.shape)}. "
            "It has to keep shape and dtype."
        )
    return run
