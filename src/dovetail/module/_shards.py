# SPDX-License-Identifier: Apache-2.0
"""Methods that run on each device's own part of their inputs: `Module.on_shards`."""
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# JAX's own annotations are incomplete.

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from ._context import Scope
from ._layout import Axes, Layout
from ._lift import folded, lift, run_plain
from ._param import ParamSpec
from ._state import merged, run_specs
from ._tree import map_specs, specs


def run_on_shards(
    scope: Scope,
    method: Callable[..., Any],
    inputs: Sequence[Array],
    in_axes: Sequence[Axes],
    out_axes: Axes | None,
    keep: Sequence[str],
) -> Any:
    """See `Module.on_shards`."""
    outer, layout = scope.frame, scope.frame.layout
    known = merged(specs(scope.module), run_specs(scope.module))
    tree = _there(known, scope.params)
    split = frozenset(() if layout is None else _split_over(layout, in_axes, tree, keep))
    state = None if outer.state is None else {}  # Nothing says which part of a state a device has.
    if layout is None or not split:  # The same rules hold on all of the inputs as on a part.
        out, collected = lift(scope, _bound(method), run_plain, on_shards=True)(scope.params, state, outer.rng, *inputs)
        outer.take(collected)
        return out
    # Stages of a pipeline run side by side by `jax.vmap`. JAX then wants their axis among those of the shards, and
    # cannot follow what differs between devices, by which it saves sums elsewhere.
    stages = layout.stage_axis
    local_axes = split | {stages} if stages else split
    mark = functools.partial(_varying, axes=split) if stages is None else _same
    lifted = lift(scope, _bound(method), run_plain, on_shards=True, layout=layout.inside(local_axes))

    def local(params: Any, *inputs: Array) -> tuple[Any, Any]:
        # With the same key for all parts, noise would repeat itself from part to part.
        key = folded(outer.rng, lambda: jax.lax.axis_index(tuple(sorted(split))))
        out, collected = lifted(mark(params), state, key, *inputs)
        reported = jax.lax.pmean(mark(collected), tuple(split))
        return out if out_axes is not None else jax.lax.psum(mark(out), tuple(split)), reported

    def activation(axes: Axes) -> PartitionSpec:
        return PartitionSpec(*(layout.activation_axes(axis) or None if axis else None for axis in axes))

    def parameter(spec: ParamSpec) -> PartitionSpec:
        kept = zip(spec.axes, layout.stored_axes(spec), strict=True)
        return PartitionSpec(*(axes or None if name in keep else None for name, axes in kept))

    def used(spec: ParamSpec, value: Array) -> Array:
        return layout.gather(spec.as_read(value, outer.dtype), spec)

    # Axes of size 1 split nothing. But kernels must not be left to the compiler along any axis.
    mesh = jax.sharding.get_abstract_mesh()
    single = {axis for axis in mesh.auto_axes if mesh.shape[axis] == 1}
    run: Any = jax.shard_map(
        local,
        axis_names=local_axes | single,
        in_specs=(map_specs(parameter, tree), *map(activation, in_axes)),
        out_specs=(PartitionSpec() if out_axes is None else activation(out_axes), PartitionSpec()),
        check_vma=stages is None,
    )
    out, reported = run(jax.tree.map(used, tree, {name: scope.params[name] for name in tree}), *inputs)
    outer.take(reported)
    return out


def _there(tree: Any, params: Any) -> Any:
    """Returns the specs of the arrays that there are."""
    found = {name: below for name, below in tree.items() if name in params}
    return {
        name: below if isinstance(below, ParamSpec) else _there(below, params[name]) for name, below in found.items()
    }


def _bound(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(_: Any, *args: Any) -> Any:
        return method(*args)

    return run


def _split_over(layout: Layout, in_axes: Sequence[Axes], tree: Any, keep: Sequence[str]) -> Iterator[str]:
    """Yields the mesh axes over which the inputs are split, and what is kept of the parameters."""
    for name in {axis for axes in in_axes for axis in axes if axis}:
        yield from layout.activation_axes(name)
    for spec in jax.tree.leaves(tree):
        for name, axes in zip(spec.axes, layout.stored_axes(spec), strict=True):
            yield from axes if name in keep else ()


def _same(tree: Any) -> Any:
    return tree


def _varying(tree: Any, axes: Collection[str]) -> Any:
    """Marks arrays as different on the devices along all of `axes`, so that their gradients are summed over them.

    The sums are in float32, whatever the dtype of the array.
    """

    def one(x: Array) -> Array:
        missing = tuple(sorted(set(axes) - jax.typeof(x).manual_axis_type.varying))
        if not missing:
            return x
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return jax.lax.pcast(x, missing, to="varying")
        return jax.lax.pcast(x.astype(jnp.float32), missing, to="varying").astype(x.dtype)

    return jax.tree.map(one, tree)
