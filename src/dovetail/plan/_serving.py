# SPDX-License-Identifier: Apache-2.0
"""What serving a recipe takes on chips that need not be there: what fits, and how fast it could be at best.

Memory, collectives and copies are those of the compiled programs. Bytes and operations of a step are counted from what
is declared (parameters, state, and the definitions of products), since a compiled program does not say what its
kernels read. Times are rooflines: no step can be faster, and a real one is slower.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax.interpreters.partial_eval import dce_jaxpr

from dovetail.aot import (
    Hlo,
    collectives,
    compile_for,
    copied_bytes,
    count_training_flops,
    described_devices,
    versions,
)
from dovetail.config import ConfigError
from dovetail.hardware import Hardware
from dovetail.module import specs
from dovetail.ops import Choice, kernel_choices
from dovetail.parallel import BatchShape, Mesh, divisors, fits
from dovetail.progress import phase
from dovetail.serve import Key, ServedModel, Serving
from dovetail.train import Trainer

from ._estimate import GIB, usable_bytes
from ._report import collective_rows, kernel_rows

_ANY = 2**62  # Bytes: as much as is wanted.
# How often its bytes go through the links of a chip.
_PASSES = {"all-reduce": 2}


class ServingStep(NamedTuple):
    """A program that each step of serving runs. Bytes are of one chip, FLOPs of all chips."""

    what: str  # "decode", a token of each sequence; or "prefill", a chunk of a prompt.
    rows: int
    tokens: int  # Of a row.
    context: int  # Tokens that a row sees.
    weight_bytes: float
    state_bytes: float  # Read and written.
    flops: float
    collectives: list[dict[str, Any]]
    memory_ms: float | None  # What the memory takes for the bytes; None: its speed is not known.
    compute_ms: float | None  # What the matrix units take for the operations.
    links_ms: float | None  # What all links of a chip take for what collectives bring, if nothing hides it.
    hbm_per_chip_gib: float  # Weights, state and temporaries, as the compiler lays them out.
    copied_gib: float  # What a chip copies just to lay it out differently.
    compile_seconds: float

    @property
    def least_ms(self) -> float | None:
        """The time that the slower of memory and matrix units takes."""
        known = [each for each in (self.memory_ms, self.compute_ms) if each is not None]
        return max(known) if len(known) == 2 else None


class ServingReport(NamedTuple):
    """A served model. Sizes are of one chip, in GiB."""

    hardware: str
    chips: int
    mesh: Mapping[str, int]
    dtype: str
    parameters: int
    fits: bool
    reason: str  # Why it does not fit.
    hbm_limit_gib: float | None
    weights_gib: float
    room_gib: float | None  # For the state of sequences: the share `memory` of what weights leave.
    state_gib: float
    slots: int
    page: int
    max_length: int
    tokens: int  # That there are pages for, of all sequences together.
    token_bytes: float  # Of state, on one chip.
    row_bytes: float  # Of a sequence, besides those of its tokens.
    prompt: int  # Tokens of the prompt that `ms_to_first_token` is for.
    ms_per_token: float | None  # If all slots are in use, and each sequence is as long as can be.
    ms_to_first_token: float | None  # Of a prompt alone, with nothing in the cache.
    steps: list[ServingStep]
    kernels: list[dict[str, Any]]
    versions: Mapping[str, str]


def serving_mesh(cfg: Trainer.Config, hardware: Hardware | None = None) -> Mesh:
    """Returns the mesh to serve on: layers are split over as many devices as divide them, and fast links join.

    More devices, along `data`, would do the same work again: rather run an engine on each group. A step of decoding
    reads all weights that a chip has, so that each should have few; and what a mesh for training gathers in each step
    would have to be gathered for every token.

    Args:
        hardware: None: as many devices as the mesh of the run has.
    """
    tree = specs(cfg.model.build(path="model"))
    devices, slices = cfg.mesh.num_devices, 1
    if hardware is not None:
        devices, slices = hardware.num_devices, hardware.slices
    inner = devices // slices
    found = cfg.mesh
    for tensor in divisors(inner):
        split = {"data": inner // tensor, "tensor": tensor, "fsdp": 1, "expert": 1, "seq": 1, "pipeline": 1}
        if hardware is None or hardware.chip.torus is not None:
            mesh = cfg.mesh.set(**split, across_slices={"data": slices} if slices > 1 else {})
        else:
            mesh = cfg.mesh.set(**split | {"data": devices // tensor}, across_slices={})
        if fits(mesh, tree, BatchShape(rows=0)):
            found = mesh
    return found


def compiled_serving(cfg: Trainer.Config, serving: Serving, hardware: Hardware) -> ServingReport:
    """Returns the report on the config of a trainer, on the mesh that it has, as `Serving` says."""
    return _Served(cfg, serving, hardware).report()


class _Served:
    """A model on hardware, and what is known of it before anything is compiled."""

    def __init__(self, cfg: Trainer.Config, serving: Serving, hardware: Hardware) -> None:
        self._cfg, self._hardware = cfg, hardware
        self._devices = described_devices(hardware)
        self._limit = usable_bytes(hardware)
        self._choices: list[Choice] = []
        with phase("tracing"):
            self.model = ServedModel(cfg, serving, self._devices, room=_ANY)
        self._weights = _shard_bytes(self.model.params) * hardware.chip.devices
        self.room = None if self._limit is None else max(0, self._limit - self._weights) * serving.memory
        self.reason = ""
        if self.room is not None and self._state_bytes() > self.room:
            self._shrink(serving)

    def _shrink(self, serving: Serving) -> None:
        """Takes as many pages as there is room for, or says why that is none."""
        assert self.room is not None
        share = self._state_bytes() / sum(spec.nbytes for spec in self.model.store(1).kept.values())
        try:
            self.model = ServedModel(self._cfg, serving, self._devices, room=int(self.room / share))
        except ConfigError as e:
            self.reason = str(e)

    def _state_bytes(self) -> float:
        """Returns what a chip keeps of sequences."""
        return sum(self._shard(path) for path in self.model.store(1).kept) * self._hardware.chip.devices

    def _shard(self, path: str) -> float:
        """Returns the bytes of a piece of state on a device."""
        spec, places = self.model.store(1).kept[path], self.model.state_shardings()
        shape = spec.shape if places is None else places[path].shard_shape(spec.shape)
        return spec.nbytes * math.prod(shape) / math.prod(spec.shape)

    def _moved(self, rows: int, time: int, context: int) -> float:
        """Returns the bytes of state that a device reads and writes in a step."""
        total, shape = 0.0, self.model.shape
        windows, pages = (
            {group.name: getattr(group, field) for group in shape.groups} for field in ("window", "pages")
        )
        for path in self.model.store(1).kept:
            group = self.model.store(1).group(path)
            if group is None:  # By row: read and written.
                total += 2 * rows * self._shard(path) / (shape.slots + shape.snapshots)
            else:
                seen = context if windows[group] is None else min(context, windows[group] + time - 1)
                total += rows * (seen + time) * self._shard(path) / (pages[group] * shape.page)
        return total

    def report(self) -> ServingReport:
        """Compiles the programs, unless nothing fits."""
        model, hardware, shape = self.model, self._hardware, self.model.shape
        chunk, prompt = shape.chunks[-1], max(1, shape.max_length // 2)
        steps: list[ServingStep] = []
        if not self.reason:
            steps.append(self._step("decode", shape.slots, 1, shape.max_length))
            steps.append(self._step("prefill", 1, chunk, prompt))
        scale = hardware.chip.devices
        store = model.store(1)
        page = sum(self._shard(path) for path in store.kept if store.group(path))
        tokens = (max((group.pages for group in shape.groups), default=1) - 1) * shape.page
        times = [step.least_ms for step in steps]
        first = None if not times or times[1] is None else times[1] * -(-prompt // chunk)
        held = max((step.hbm_per_chip_gib for step in steps), default=0.0)
        limit = None if self._limit is None else self._limit / GIB
        return ServingReport(
            hardware=hardware.name,
            chips=hardware.num_chips,
            mesh={axis: size for axis, size in self._cfg.mesh.sizes.items() if size > 1},
            dtype=self._cfg.compute_dtype,
            parameters=sum(spec.size for spec in jax.tree.leaves(specs(model.program.model))),
            fits=not self.reason and (limit is None or held <= limit),
            reason=self.reason,
            hbm_limit_gib=limit,
            weights_gib=self._weights / GIB,
            room_gib=None if self.room is None else self.room / GIB,
            state_gib=self._state_bytes() / GIB,
            slots=shape.slots,
            page=shape.page,
            max_length=shape.max_length,
            tokens=tokens,
            token_bytes=page * scale / (tokens + shape.page),
            row_bytes=model.row_bytes and self._moved(1, 0, 0) / 2 * scale,
            prompt=prompt,
            ms_per_token=times[0] if times else None,
            ms_to_first_token=first,
            steps=steps,
            kernels=kernel_rows(self._choices),
            versions=versions(hardware),
        )

    def _step(self, what: str, rows: int, time: int, context: int) -> ServingStep:
        hardware, chip = self._hardware, self._hardware.chip
        with phase("tracing"), kernel_choices() as choices:
            layers, head = (self.model.traced(key) for key in _keys(rows, time))
        self._choices += [choice for choice in choices if choice not in self._choices]
        with phase(f"compiling {what} for {hardware.name}"):
            both = [compile_for(traced.lower()) for traced in (layers, head)]
        found = [each for part in both for each in collectives(part.text, self._cfg.mesh.sizes)]
        weights = self._weights_read(layers, head, rows * time) * chip.devices
        # The layers, and beside them the weights of the head.
        held = both[0].memory.total * chip.devices + self._weights - self._weights_of(layers) * chip.devices
        state = self._moved(rows, time, context) * chip.devices
        flops = float(self._flops(rows, time, context))
        peak = chip.peak.get(self._cfg.compute_dtype)
        links = chip.links * chip.link_bandwidth if chip.links and chip.link_bandwidth else None
        sent = sum(each.count * each.bytes * _PASSES.get(each.kind, 1) for each in found) * chip.devices
        return ServingStep(
            what=what,
            rows=rows,
            tokens=time,
            context=context,
            weight_bytes=weights,
            state_bytes=state,
            flops=flops,
            collectives=collective_rows(found),
            memory_ms=_ms(weights + state, chip.hbm_bandwidth),
            compute_ms=_ms(flops, peak and peak * hardware.num_chips),
            links_ms=_ms(sent, links),
            hbm_per_chip_gib=held / GIB,
            copied_gib=sum(copied_bytes(Hlo(part.text)) for part in both) * chip.devices / GIB,
            compile_seconds=sum(part.seconds for part in both),
        )

    def _weights_read(self, layers: Any, head: Any, tokens: int) -> float:
        """Returns the bytes of parameters that a device reads; of those that are looked up by token, a row for each."""
        leaves = jax.tree.leaves(self.model.params)
        used = [_used(traced, len(leaves)) for traced in (layers, head)]
        axes = {id(leaf): spec for leaf, spec in self._specs()}
        total = 0.0
        for leaf, *by in zip(leaves, *used, strict=True):
            spec, size = axes.get(id(leaf)), _shard_bytes(leaf)
            if any(by) and not by[1] and spec is not None and "vocab" in spec.axes:
                size = min(size, size * tokens / spec.shape[spec.axes.index("vocab")])
            total += size if any(by) else 0
        return total

    def _weights_of(self, traced: Any) -> float:
        """Returns the bytes of parameters that a program is given on a device."""
        leaves = jax.tree.leaves(self.model.params)
        return sum(_shard_bytes(leaf) for leaf, used in zip(leaves, _used(traced, len(leaves)), strict=True) if used)

    def _specs(self) -> Any:
        """Yields the shape of each parameter with its spec; the tree of shapes has state of the run besides."""

        def walk(tree: Any, shapes: Any) -> Any:
            for name, below in tree.items():
                if isinstance(below, dict):
                    yield from walk(below, shapes[name])
                else:
                    yield shapes[name], below

        return walk(specs(self.model.program.model), self.model.params)

    def _flops(self, rows: int, time: int, context: int) -> int:
        """Returns the operations of a step by definition, where each token of it sees so many."""
        serving = self.model.serving.set(max_length=max(context, 2), tokens=None, apart=False, chunks=(max(2, time),))
        with phase("counting"):
            model = ServedModel(self._cfg, serving, self._devices, room=_ANY)
            total = 0
            for key in _keys(rows, time):
                params, *others = model.inputs(key)
                none = jax.tree.map(lambda _: False, params)
                function, _ = model.function(key)
                with model.program.devices.ambient():
                    total += count_training_flops(function, params, none, *others).flops
        return total


def _keys(rows: int, time: int) -> tuple[Key, Key]:
    """Returns the programs of a step: the layers, and the head with the choice of a token."""
    return Key("layers", rows, time), Key("greedy", rows)


def _used(traced: Any, count: int) -> list[bool]:
    """Returns which of the first inputs of a program its results depend on."""
    jaxpr = traced.jaxpr.jaxpr
    return dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1][:count]


def _shard_bytes(tree: Any) -> float:
    """Returns what a device has of arrays."""
    total = 0.0
    for leaf in jax.tree.leaves(tree):
        shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
        total += math.prod(shape) * leaf.dtype.itemsize
    return total


def _ms(amount: float, rate: float | None) -> float | None:
    return amount / rate * 1e3 if rate else None
