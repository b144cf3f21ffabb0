# SPDX-License-Identifier: Apache-2.0
"""The time and the memory of a training step by arithmetic: what a model does, how it is laid out, and the chip.

Every quantity may be a number or an array, so that one call answers for one run or for twenty thousand. Each part is
timed by what limits it: products by the share of the peak that sizes like theirs reach, the rest by memory, collectives
by links, as far as other work does not hide them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dovetail.parallel import MESH_AXES

from ._work import COLUMNS, INNER, MATRIX_AXIS, NEVER, WITH_ALL, Numbers, Work

# What is computed again in the backward pass, in order.
SAVE_ALL, SAVE_DOTS, SAVE_QKVO, FULL = range(4)
REMAT: Mapping[str, int] = {
    "save_all": SAVE_ALL,
    "save_dots": SAVE_DOTS,
    "save_qkvo": SAVE_QKVO,
    "offload_qkvo": SAVE_QKVO,
    "full": FULL,
}


HOST_BANDWIDTH = 16e9  # Bytes/s of a chip to the memory of its host: that of TPU v4; of others none is published.
_BESIDE_HOST = 0.8  # Of these transfers, what runs beside other work.


class Constants(NamedTuple):
    """What was fitted to published steps: `constants.toml` says of each what it is, and from what it was found."""

    reached: Numbers
    half_size: Numbers
    grouped: Numbers
    float8: Numbers
    float4: Numbers
    attention: Numbers
    recurrence: Numbers
    memory: Numbers
    traffic: Numbers
    backward_traffic: Numbers
    rounding_traffic: Numbers
    moved: Numbers
    links: Numbers
    exchange: Numbers
    optimizer: Numbers
    hidden_tensor: Numbers
    hidden_seq: Numbers
    hidden_pipeline: Numbers
    hidden_expert: Numbers
    hidden_fsdp: Numbers
    hidden_data: Numbers
    layer_seconds: Numbers
    sparse_seconds: Numbers
    rest: Numbers


class Machine(NamedTuple):
    """A chip, and how it reaches the others; bytes/s are one way."""

    peak: Numbers  # FLOP/s in bfloat16.
    float8: Numbers  # How many times as many in 8 bits,
    float4: Numbers  # and in 4.
    bandwidth: Numbers  # Of its memory.
    fast: Numbers  # To chips of its domain: of a torus, along one dimension.
    network: Numbers  # To others.
    domain: Numbers  # Chips that fast links join.
    torus: Numbers  # Its dimensions; 0: a switch.
    host: Numbers = HOST_BANDWIDTH  # To the memory of its host.


class Run(NamedTuple):
    """How a model is trained."""

    sizes: Mapping[str, Numbers]  # Of the mesh axes.
    rows: Numbers  # Of a batch.
    microbatches: Numbers  # That a device computes one after another, of a pipeline too.
    rounds: Numbers  # Of a pipeline.
    remat: Numbers
    bits: Numbers  # Of the factors of products in layers: 16, 8 or 4.
    # As Megatron-LM lays out: replicas along `data` split the optimizer and gather parameters once a step; devices
    # along `tensor` and `seq` hold experts of their own, so that experts are spread over `expert` of all of them.
    megatron: Numbers = False
    # Whether a host starts each operation by itself, as PyTorch does without graphs; and whether it waits in each layer
    # with experts until it knows how many rows they get.
    eager: Numbers = False
    waits: Numbers = False
    offloaded: Numbers = False  # Whether what is kept of mixers goes to the memory of the host and back.

    @property
    def devices(self) -> Numbers:
        """How many there are."""
        product: Numbers = 1
        for size in self.sizes.values():
            product = product * size
        return product


def step_parts(work: Work, run: Run, machine: Machine, k: Constants) -> dict[str, Numbers]:
    """Returns the seconds of each part of a step, which add up to it."""
    sizes = run.sizes
    products = _products(work, run, machine, k)
    attention = _kernels(work, run, machine, k)
    memory = _memory_passes(work, run, machine, k)
    parts = {"products": products, "attention": attention, "memory traffic": memory}
    body = left = products + attention + memory
    seconds = _collectives(work, run, machine, k)
    for axis in ("tensor", "seq", "pipeline", MATRIX_AXIS, "fsdp", "data"):
        room = left / run.microbatches if axis == "data" else left
        hidden = np.minimum(getattr(k, f"hidden_{axis}") * seconds[axis], room)
        left = left - hidden
        parts[f"exposed, {axis}"] = seconds[axis] - hidden
        body = body + (parts[f"exposed, {axis}"] if axis != "data" else 0.0)
    started = k.layer_seconds * work.depth * run.eager + k.sparse_seconds * work.sparse * run.waits
    host = run.microbatches * started / sizes["pipeline"]
    moved = 2 * work.mixed * _rows_here(run) / machine.host
    parts["exposed, host memory"] = run.offloaded * (moved - np.minimum(_BESIDE_HOST * moved, products + attention))
    body = body + parts["exposed, host memory"]
    parts["host"] = (body**4 + host**4) ** 0.25 - body
    waits = (sizes["pipeline"] - 1) / (run.microbatches * run.rounds)
    parts["pipeline bubble"] = (body + parts["host"]) * waits
    parts["optimizer"] = k.optimizer * held(work, run, optimizer=True) / (machine.bandwidth * k.memory)
    parts["other"] = k.rest * sum(parts.values())
    return parts


def _products(work: Work, run: Run, machine: Machine, k: Constants) -> Numbers:
    """Returns the seconds of all products, forward and backward: what computing, or reading, takes longer."""
    each, sizes = work.products, {axis: _column(size) for axis, size in run.sizes.items()}
    many = (each.matrices > 1) & (each.weighted > 0)  # Experts.
    spread, tensor = np.where(many, sizes[MATRIX_AXIS], 1.0), sizes["tensor"]
    tensor = np.where(many & _column(run.megatron), 1.0, tensor)
    here = np.maximum(1.0, each.matrices / spread)  # Matrices that a device has.
    copies = _column(run.devices) / (sizes["pipeline"] * tensor * spread)  # Groups of devices that share the rows.
    rows = each.rows * _column(run.rows) / (_column(run.microbatches) * copies * each.matrices)
    rows = rows * np.where(many, each.matrices / (here * spread), 1.0)
    inner = each.inner / np.where(each.split == INNER, tensor, 1.0)
    columns = each.columns / np.where(each.split == COLUMNS, tensor, 1.0)
    low = np.where((each.stacked > 0) & (each.weighted > 0), np.minimum(each.bits, _column(run.bits)), each.bits)
    by_bits = [_column(machine.float8 * k.float8), _column(machine.float4 * k.float4)]
    faster = np.select([low == 8, low == 4], by_bits, 1.0)
    reached = _column(k.reached * machine.peak) * faster * np.where(many, _column(k.grouped), 1.0)
    size = (rows * inner + inner * columns) * low / 8 + 2 * rows * columns
    reading = size / _column(machine.bandwidth * k.memory)
    again = (each.again != NEVER) & (_column(run.remat) >= np.where(each.again == WITH_ALL, FULL, SAVE_QKVO))
    half = _column(k.half_size)

    def once(summed: Numbers) -> Numbers:
        return np.maximum(2 * rows * inner * columns / reached * (1 + half / np.maximum(summed, 1.0)), reading)

    passes = once(inner) * (1 + again) + once(columns) + once(rows) * each.trained
    return np.sum(each.times * here * passes, -1) * run.microbatches / run.sizes["pipeline"]


def _rows_here(run: Run) -> Numbers:
    """Returns the rows of a batch for each device, if all were split evenly over all of them."""
    return run.rows / run.devices


def _kernels(work: Work, run: Run, machine: Machine, k: Constants) -> Numbers:
    each = work.kernels
    slower = np.sqrt(np.maximum(1.0, 128 / each.head_dim))
    passes = 3.5 + (_column(run.remat) >= FULL)
    scores = np.sum(np.where(each.recurrent > 0, 0.0, each.flops * slower) * passes, -1)
    states = np.sum(np.where(each.recurrent > 0, each.flops, 0.0) * (3 + (_column(run.remat) >= FULL)), -1)
    return _rows_here(run) * (scores / k.attention + states / k.recurrence) / machine.peak


def _memory_passes(work: Work, run: Run, machine: Machine, k: Constants) -> Numbers:
    again = np.select([run.remat == SAVE_DOTS, run.remat == SAVE_QKVO, run.remat == FULL], [0.3, 0.6, 1.0], 0.0)
    traffic = work.traffic * k.traffic * np.where(np.asarray(run.bits) < 16, k.rounding_traffic, 1.0)
    moved = work.moved * k.moved
    return _rows_here(run) * (1 + k.backward_traffic + again) * (traffic + moved) / (machine.bandwidth * k.memory)


def held(work: Work, run: Run, *, optimizer: bool = False) -> Numbers:
    """Returns the parameters that a device holds, or of which it holds the state of the optimizer."""
    return np.sum(_held(work, run, optimizer=optimizer), -1)


def _held(work: Work, run: Run, *, optimizer: bool = False, without: tuple[str, ...] = ()) -> Numbers:
    """Returns the parameters of each group that a device holds."""
    groups = work.parameters
    count = groups.number * groups.trained if optimizer else groups.number
    parts: Numbers = np.ones_like(groups.number)
    for i, axis in enumerate(MESH_AXES):
        if axis not in without:
            size = _column(run.sizes[axis])
            own = groups.grouped & _column(run.megatron) if axis == "tensor" else False
            parts = parts * np.where(groups.axes[..., i] & ~np.asarray(own), size, 1.0)
    if not optimizer:
        return count / parts
    all_parts = np.where(_column(run.megatron), np.maximum(parts, _column(run.devices)), parts)
    return count / all_parts


def _collectives(work: Work, run: Run, machine: Machine, k: Constants) -> dict[str, Numbers]:
    """Returns the seconds that collectives along each mesh axis would take if nothing else ran."""
    sizes, here = run.sizes, _rows_here(run)
    again = np.select([run.remat == SAVE_QKVO, run.remat == FULL], [0.25, 0.5], 0.0)
    whole = np.sum(
        np.where(work.parameters.axes[..., MESH_AXES.index("fsdp")], _held(work, run, without=("fsdp",)), 0.0), -1
    )
    weight_bytes = np.where(np.asarray(run.bits) < 16, 1.0, 2.0)
    sent_bytes = np.where(np.asarray(run.bits) < 16, 6.0, 8.0)
    replicated = np.where(run.megatron, 4.0 * held(work, run), 8.0 * held(work, run))
    sizes_of = {
        "tensor": 8 * here * sizes["tensor"] * work.joined * (1 + again),
        "seq": 3 * here * sizes["seq"] * np.sum(work.kernels.context, -1),
        "pipeline": 4 * here * sizes["pipeline"] * work.width * run.rounds / sizes["tensor"],
        MATRIX_AXIS: sent_bytes * here * work.sent,
        "fsdp": (2 * weight_bytes + 2) * whole * run.microbatches,
        "data": replicated * np.mean(work.parameters.trained > 0, -1),
    }
    found = {}
    for axis, size in sizes_of.items():
        split = sizes[axis] * (sizes[MATRIX_AXIS] if axis == "data" else 1)
        split = np.maximum(np.where(np.asarray(run.megatron) & (axis == "data"), split, sizes[axis]), 1.0)
        found[axis] = size * (1 - 1 / split) / (_bandwidth(axis, run, machine) * k.links)
    found[MATRIX_AXIS] = _exchange(sizes_of[MATRIX_AXIS], work, run, machine) / (k.links * k.exchange)
    return found


def _exchange(size: Numbers, work: Work, run: Run, machine: Machine) -> Numbers:
    """Returns the seconds, at full bandwidth, in which rows go to experts and back.

    Between domains a token goes once to each in which it has an expert, by the network of its own chip; there, and at
    home, fast links bring it to each expert.
    """
    spread = run.sizes[MATRIX_AXIS]
    inner = np.where(run.megatron, 1.0, run.sizes["seq"] * run.sizes["tensor"])
    near = np.clip(np.asarray(machine.domain) / inner, 1, spread)
    domains = spread / near
    choices = np.maximum(work.choices, 1e-9)
    visited = domains * (1 - (1 - 1 / domains) ** choices) / choices  # Of the experts of a token, by domain.
    far = size * visited * (1 - 1 / domains) / machine.network
    fast = machine.fast * np.maximum(machine.torus, 1)
    return size * (1 - 1 / near) / fast + far


def _bandwidth(axis: str, run: Run, machine: Machine) -> Numbers:
    """Returns the bytes/s of a device along a mesh axis."""
    inner: Numbers = 1
    for other in MESH_AXES[MESH_AXES.index(axis) + 1 :]:
        inner = inner * run.sizes[other]
    size = run.sizes[axis]
    members = np.clip(np.asarray(machine.domain) / inner, 1, size)
    switched = np.where(
        inner * size <= machine.domain, machine.fast, np.minimum(machine.fast, machine.network * members)
    )
    dims = np.maximum(machine.torus, 1)
    share = np.log(np.maximum(size, 2)) / np.log(np.maximum(machine.domain, 2))
    torus = machine.fast * np.clip(np.round(share * dims), 1, dims)
    torus = np.where(inner * size <= machine.domain, torus, machine.network)
    return np.where(machine.torus > 0, torus, switched)


class Memory(NamedTuple):
    """Bytes of a device."""

    state: Numbers  # Parameters, gradients, and the state of the optimizer.
    activations: Numbers

    @property
    def total(self) -> Numbers:
        """Both together."""
        return self.state + self.activations


def memory_of_step(work: Work, run: Run) -> Memory:
    """Returns an estimate of what a device needs: good enough to rank, and to tell what cannot fit."""
    parameters = held(work, run)
    trained = held(work, run, optimizer=True)
    state = np.where(run.megatron, 6 * parameters + 12 * trained, 4 * parameters + 12 * trained)
    sizes = run.sizes
    rows = run.rows * sizes["pipeline"] / (run.devices * run.microbatches)  # Of a microbatch, of a stage.
    # Beside the products' results, what else is kept: norms, activations and what experts get.
    short = np.where(np.asarray(run.bits) < 16, 0.6, 1.0)  # What is kept for products is kept as it is multiplied.
    every = short * (work.dotted + 0.2 * work.traffic + 0.3 * work.moved)
    kept = np.select(
        [run.remat == SAVE_ALL, run.remat == SAVE_DOTS, run.remat == SAVE_QKVO],
        [every, work.carried + short * work.dotted, work.carried + short * work.mixed],
        work.carried,
    )
    block = every / work.depth
    # A stage has as many microbatches under way as there are stages, and some more where it has several rounds.
    flight = np.minimum(run.microbatches, sizes["pipeline"] + (sizes["pipeline"] - 1) / run.rounds * (run.rounds > 1))
    stack = rows * (kept * flight / sizes["pipeline"] + block)
    last = rows * work.logits * 1.5 / sizes["pipeline"]
    whole = np.sum(np.where(work.parameters.layers, _held(work, run, without=("fsdp",)), 0.0), -1) / work.depth
    return Memory(state, stack + last + np.where(sizes["fsdp"] > 1, 4 * whole * sizes["pipeline"], 0.0))


def stacked(works: list[Work]) -> Work:
    """Returns the works of several models as one, whose fields have one entry for each."""

    def padded(tables: list[Any]) -> Any:
        longest = max(len(table[0]) for table in tables)

        def pad(field: np.ndarray, value: float) -> np.ndarray:
            more = [(0, longest - len(field))] + [(0, 0)] * (field.ndim - 1)
            return np.pad(field, more, constant_values=value)

        names = tables[0]._fields
        fill = {"times": 0, "flops": 0, "number": 0, "context": 0}
        return type(tables[0])(
            *(np.stack([pad(getattr(table, name), fill.get(name, 1)) for table in tables]) for name in names)
        )

    fields: list[Any] = [
        padded(list(column)) if isinstance(column[0], tuple) else np.array(column)
        for column in zip(*works, strict=True)
    ]
    return Work(*fields)


def _column(numbers: Numbers) -> Numbers:
    """Returns an array of runs with a dimension for the parts of a model after it."""
    return np.asarray(numbers)[..., None]
