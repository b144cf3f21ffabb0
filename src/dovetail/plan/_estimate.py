# SPDX-License-Identifier: Apache-2.0
"""How much memory a run will need on each device, before anything is compiled: good enough to choose between options.

The state is exact. Activations are those that the backward pass is handed, found by tracing. What a layer needs while
its own backward pass runs is what it would leave behind without remat.
"""

import functools
import math
from typing import Any, NamedTuple

import jax

from dovetail.module import abstract, specs
from dovetail.nn import RematPolicy, with_remat
from dovetail.parallel import Mesh, MeshLayout, flat_specs
from dovetail.train import DTYPES, abstract_batch, loss_function


class Model(NamedTuple):
    """What the choice of a mesh needs to know of a model and its learner."""

    specs: Any
    slots: float  # Bytes of the learner's state, for each byte of parameters.
    layers: int  # All loops together.
    experts: int  # In a layer; 1: none.


def describe(cfg: Any) -> Model:
    """Returns what is needed of the config of a trainer."""
    model = cfg.model.build(path="model")
    tree, params = specs(model), abstract(model)
    slots = jax.eval_shape(cfg.learner.build(path="learner", specs=tree, steps=cfg.steps).init, params)
    flat = [spec for _, spec in flat_specs(tree, "")]
    loops = {path.partition(".layer")[0]: spec.shape[0] for path, spec in flat_specs(tree, "") if _in_loop(spec)}
    experts = [size for spec in flat for size, axis in zip(spec.shape, spec.axes, strict=True) if axis == "expert"]
    return Model(tree, _bytes(slots) / _bytes(params), max(1, sum(loops.values())), max(experts, default=1))


def state_bytes(model: Model, mesh: Mesh) -> float:
    """Returns what a device holds of parameters, their gradients and the learner's state."""
    layout = MeshLayout(mesh)
    held = 0.0
    for _, spec in flat_specs(model.specs, ""):
        held += spec.nbytes / math.prod(layout.shards(axes) for axes in layout.stored_axes(spec))
    return held * (2 + model.slots)


def gathered_bytes(model: Model, mesh: Mesh) -> float:
    """Returns what the parameters of one layer of each loop take on a device while they are used, in 16 bits."""
    layout, gathered, total = MeshLayout(mesh), set(mesh.rules.gathered), 0.0
    for _, spec in flat_specs(model.specs, ""):
        if _in_loop(spec):
            kept = [tuple(axis for axis in axes if axis not in gathered) for axes in layout.stored_axes(spec)[1:]]
            total += 2 * math.prod(spec.shape[1:]) / math.prod(layout.shards(axes) for axes in kept)
    return total


def activation_bytes(cfg: Any, model: Model, mesh: Mesh, parts: int, policy: RematPolicy) -> float:
    """Returns what a device keeps of a microbatch for the backward pass, and what one layer needs besides."""
    rows = cfg.input.batch_size / (parts * math.prod(mesh.sizes[axis] for axis in ("data", "fsdp", "expert")))
    split = mesh.sizes["seq"] * mesh.sizes["tensor"]
    here = "full" if policy == "offload_qkvo" else policy  # What is offloaded is on the host.
    kept, layer = (_kept_bytes(cfg.model, cfg.input.seq_len, each, cfg.compute_dtype) for each in (here, "none"))
    return rows / split * (kept + layer / model.layers)


@functools.lru_cache(maxsize=32)
def _kept_bytes(cfg: Any, tokens: int, policy: Any, dtype: str) -> int:
    """Returns the bytes that the forward pass of one row leaves for the backward pass."""
    model = with_remat(cfg, policy).build(path="model")
    loss = loss_function(model, dtype=DTYPES[dtype])

    def kept(params: Any, batch: Any) -> list[Any]:
        given = {id(leaf) for leaf in jax.tree.leaves((params, batch))}
        _, pullback = jax.vjp(lambda params: loss(params, batch, jax.random.key(0))[0], params)
        return [leaf for leaf in jax.tree.leaves(pullback) if id(leaf) not in given]

    return _bytes(jax.eval_shape(kept, abstract(model), abstract_batch(1, tokens)))


def _in_loop(spec: Any) -> bool:
    return spec.axes[:1] == ("layers",)


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
