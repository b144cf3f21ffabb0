# SPDX-License-Identifier: Apache-2.0
"""How much memory a run will need on each device, before anything is compiled: good enough to choose between options.

The state is exact. Activations are those that the backward pass is handed, found by tracing. What a block needs while
its own backward pass runs is what it would leave behind without remat, of the block that needs the most.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from dovetail.config import find
from dovetail.data import Input
from dovetail.hardware import Hardware
from dovetail.module import Module, abstract, modules, specs
from dovetail.nn import Block, RematPolicy, with_remat
from dovetail.parallel import Mesh, MeshLayout, flat_specs
from dovetail.train import DTYPES, Trainer, abstract_batch, largest, loss_function

GIB = 2**30
# Of the memory of a GPU: the driver, the communication library and cuBLAS take the rest.
_USABLE = {"cuda": 0.92}


class Model(NamedTuple):
    """What the choice of a mesh needs to know of a model and its learner."""

    specs: Any
    slots: float  # Bytes of the learner's state, for each byte of parameters.
    experts: int  # In a layer; 1: none.


class Estimate(NamedTuple):
    """What a chip needs, in GiB, and what it has for a program; None: not known."""

    state_gib: float  # Parameters, their gradients, and the learner's state.
    activations_gib: float  # And the parameters of the layers that are being computed.
    limit_gib: float | None

    @property
    def total_gib(self) -> float:
        """All of it."""
        return self.state_gib + self.activations_gib

    @property
    def fits(self) -> bool:
        """Whether a chip has as much."""
        return self.limit_gib is None or self.total_gib <= self.limit_gib


def estimate(cfg: Trainer.Config, hardware: Hardware) -> Estimate:
    """Returns what the run of a config that `on_hardware` returned needs; nothing is compiled."""
    about, scale = describe(cfg), hardware.chip.devices / GIB
    activations = activation_bytes(cfg, cfg.mesh, cfg.num_microbatches, cfg.remat or "save_all")
    limit = usable_bytes(hardware)
    return Estimate(
        state_bytes(about, cfg.mesh) * scale,
        (2 * gathered_bytes(about, cfg.mesh) + activations) * scale,
        None if limit is None else limit / GIB,
    )


def usable_bytes(hardware: Hardware) -> float | None:
    """Returns the memory of a chip that a program can have."""
    size = hardware.chip.hbm_bytes
    return None if size is None else size * _USABLE.get(hardware.chip.platform, 1.0)


def memory_of(hardware: Hardware) -> float:
    """Returns the bytes of memory of a device; infinite where it is not known."""
    size = hardware.chip.hbm_bytes
    return math.inf if size is None else size / hardware.chip.devices


def describe(cfg: Trainer.Config) -> Model:
    """Returns what is needed of the config of a trainer."""
    model = cfg.model.build(path="model")
    tree, params = specs(model), abstract(model)
    slots = jax.eval_shape(cfg.learner.build(path="learner", specs=tree, steps=cfg.steps).init, params)
    flat = [spec for _, spec in flat_specs(tree, "")]
    experts = [size for spec in flat for size, axis in zip(spec.shape, spec.axes, strict=True) if axis == "expert"]
    return Model(tree, _bytes(slots) / _bytes(params), max(experts, default=1))


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
        if spec.stack:  # In a loop over layers.
            kept = [tuple(axis for axis in axes if axis not in gathered) for axes in layout.stored_axes(spec)[1:]]
            total += 2 * math.prod(spec.shape[1:]) / math.prod(layout.shards(axes) for axes in kept)
    return total


def activation_bytes(cfg: Trainer.Config, mesh: Mesh, parts: int, policy: RematPolicy) -> float:
    """Returns what a device keeps of a microbatch for the backward pass, and what one block needs besides.

    A stage of a pipeline keeps its layers' part of all that goes through it, and runs a block for a part of that.
    """
    rows = cfg.input.batch_size / (parts * math.prod(mesh.sizes[axis] for axis in mesh.rules.activations["batch"]))
    split = mesh.sizes["seq"] * mesh.sizes["tensor"]
    here = "full" if policy == "offload_qkvo" else policy  # What is offloaded is on the host.
    kept = kept_bytes(with_remat(cfg.model, here), cfg.input, cfg.compute_dtype) / mesh.sizes["pipeline"]
    block = block_bytes(cfg.model, cfg.input, cfg.compute_dtype) / mesh.num_microbatches
    return rows / split * (kept + block)


def row_activations(cfg: Trainer.Config) -> int:
    """Returns the bytes that the forward pass of one row of the input leaves for the backward pass."""
    return kept_bytes(with_remat(cfg.model, cfg.remat), cfg.input, cfg.compute_dtype)


@functools.lru_cache(maxsize=32)
def block_bytes(cfg: Module.Config, data: Input.Config, dtype: str) -> float:
    """Returns the bytes that a block without remat leaves for its backward pass, of one row and the largest block.

    That is the difference that it makes to a model with full remat if all blocks of one kind have none.
    """
    full = with_remat(cfg, "full")
    least = kept_bytes(full, data, dtype)
    return max((kept_bytes(other, data, dtype) - least) / times for other, times in _without_remat(full))


def _without_remat(cfg: Module.Config) -> Iterator[tuple[Module.Config, int]]:
    """Yields the config of a model with each kind of block, in turn, without remat; and how many of them there are."""
    kinds: dict[Any, list[tuple[str, int]]] = defaultdict(list)
    for module, times in modules(cfg.build()):
        if isinstance(module, Block):
            kinds[module.cfg].append((module.path, times))
    known = {path for path, _ in find(cfg, Block.Config)}  # Some layers of a pattern share the config of another.
    for places in kinds.values():
        changed = cfg
        for path, _ in places:
            changed = changed.set_in(f"{path}.remat", None) if path in known else changed
        yield changed, sum(times for _, times in places)


@functools.lru_cache(maxsize=32)
def kept_bytes(cfg: Module.Config, data: Input.Config, dtype: str) -> int:
    """Returns the bytes that the forward pass of one row leaves for the backward pass.

    `cfg` is that of a model, `data` that of an input.
    """
    model = cfg.build(path="model")
    loss = loss_function(model, dtype=DTYPES[dtype])

    def kept(params: Any, batch: Any) -> list[Any]:
        given = {id(leaf) for leaf in jax.tree.leaves((params, batch))}
        _, pullback = jax.vjp(lambda params: loss(params, batch, jax.random.key(0))[0], params)
        return [leaf for leaf in jax.tree.leaves(pullback) if id(leaf) not in given]

    return _bytes(jax.eval_shape(kept, abstract(model), abstract_batch(largest(data.set(batch_size=1).batch_specs()))))


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
