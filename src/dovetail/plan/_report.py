# SPDX-License-Identifier: Apache-2.0
"""What the real compiler says of the training step of a recipe, on chips that need not be there."""

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from dovetail.aot import (
    Collective,
    Compilation,
    Hlo,
    collectives,
    compile_for,
    config_path,
    copied_bytes,
    count_compiled_flops,
    count_kernel_flops,
    described_devices,
    is_kept,
    versions,
)
from dovetail.hardware import Hardware, gpu_topology, tpu_topology
from dovetail.module import specs
from dovetail.ops import Choice, kernel_choices
from dovetail.progress import phase
from dovetail.train import Program, Trainer, size_of

from . import _cache
from ._estimate import GIB, usable_bytes
from ._pictures import compile_picture
from ._timeline import Passage

_KINDS = ("parameters", "optimizer", "activations", "temporaries")


class Report(NamedTuple):
    """A compiled training step. Sizes are of one chip, in GiB; FLOPs are of all chips in one step."""

    hardware: str
    chips: int
    mesh: Mapping[str, int]
    remat: str | None
    num_microbatches: int
    unit: str  # In which the input counts, in the singular: a token.
    units_per_step: int
    parameters: int
    fits: bool
    hbm_per_chip_gib: float
    hbm_limit_gib: float | None
    hbm: Mapping[str, float]  # By kind; `other` is code, what is lost between buffers, and what has no name.
    hbm_by_path: Mapping[str, Mapping[str, float]]
    host_per_chip_gib: float
    model_flops: float  # By the rule of `count_training_flops`: attention as far as the mask lets it.
    full_model_flops: float  # With all scores of attention.
    hardware_flops: float  # What the compiled program does, kernels included.
    copied_gib: float  # What a chip copies in a step just to lay it out differently.
    collectives: list[dict[str, Any]]
    kernels: list[dict[str, Any]]
    compile_seconds: float
    versions: Mapping[str, str]
    suggestions: list[dict[str, Any]] = []
    timeline: Sequence[Passage] = []  # The step in its order, where it was asked for.

    def _repr_svg_(self) -> str:
        """What a notebook shows."""
        return compile_picture("", self).svg


class Lowered(NamedTuple):
    """A training step for some hardware, ready for its compiler."""

    cfg: Trainer.Config
    hardware: Hardware
    program: Program
    traced: Any  # `jax.stages.Traced`
    lowered: Any  # `jax.stages.Lowered`
    choices: list[Choice]


def lower_step(cfg: Trainer.Config, hardware: Hardware) -> Lowered:
    """Traces the training step of the config of a trainer, which `on_hardware` returned."""
    program = Program(cfg, described_devices(hardware))
    with phase("tracing"), kernel_choices() as choices, _without_lines():
        traced = program.traced()
        return Lowered(cfg, hardware, program, traced, traced.lower(), choices)


@contextlib.contextmanager
def _without_lines() -> Iterator[None]:
    """Leaves files and lines out of programs: where in the code they come from makes them no other programs."""
    config: Any = jax.config  # It does not declare its fields.
    before = config.jax_traceback_in_locations_limit
    config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        config.update("jax_traceback_in_locations_limit", before)


def compile_step(step: Lowered) -> Report:
    """Compiles a training step, and reports on it."""
    return report_on(step, compile_lowered(step, use_cache=False)[0])


def compile_lowered(step: Lowered, *, use_cache: bool = True) -> tuple[Compilation, bool]:
    """Returns what the compiler made of a training step, and whether it was kept from before.

    Without `use_cache` it is compiled in any case, and then kept for others.
    """
    hardware, mesh = step.hardware, step.program.devices.mesh
    order = [] if mesh is None else [device.id for device in mesh.devices.flat]
    options = dict(step.cfg.compiler_options.get(hardware.chip.platform, {}))
    about = {"tpu": tpu_topology, "cuda": gpu_topology}.get(hardware.chip.platform, lambda hardware: hardware.name)
    name = _cache.key(step.lowered, options, [about(hardware), order], versions(hardware))
    kept = _cache.load(name) if use_cache else None
    if kept is not None:
        return kept, True
    with phase(f"compiling for {hardware.name}"):
        found = compile_for(step.lowered)
    _cache.store(name, found)
    return found, False


def report_on(step: Lowered, found: Compilation) -> Report:
    """Returns the report on a compiled training step."""
    cfg, hardware = step.cfg, step.hardware
    text, devices = Hlo(found.text), cfg.mesh.num_devices
    memory, by_path = _memory(found, step.program, hardware)
    total = sum(memory.values())
    usable = usable_bytes(hardware)
    limit = None if usable is None else usable / GIB
    size = size_of(cfg)
    flops = count_compiled_flops(text) + count_kernel_flops(step.traced.jaxpr.jaxpr)
    return Report(
        hardware=hardware.name,
        chips=hardware.num_chips,
        mesh={axis: size for axis, size in cfg.mesh.sizes.items() if size > 1},
        remat=cfg.remat,
        num_microbatches=cfg.num_microbatches,
        unit=size.unit,
        units_per_step=size.units,
        parameters=size.parameters,
        fits=not found.refused and (limit is None or total <= limit),
        hbm_per_chip_gib=total,
        hbm_limit_gib=limit,
        hbm=memory,
        hbm_by_path=by_path,
        host_per_chip_gib=found.memory.host * hardware.chip.devices / GIB,
        model_flops=size.flops_per_unit * size.units,
        full_model_flops=size.full_flops_per_unit * size.units,
        hardware_flops=float(flops * devices),
        copied_gib=copied_bytes(text) / GIB,
        collectives=collective_rows(collectives(found.text, cfg.mesh.sizes)),
        kernels=kernel_rows(step.choices),
        compile_seconds=found.seconds,
        versions=versions(hardware),
    )


def _memory(
    found: Compilation, program: Program, hardware: Hardware
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Returns GiB by kind, and by path and kind."""
    tree = specs(program.model)
    by_path: dict[str, Counter[str]] = defaultdict(Counter)
    state = program.abstract_state()
    for kind, part in (("parameters", state.params), ("optimizer", state.learner)):
        for keys, leaf in jax.tree_util.tree_leaves_with_path(part):
            prefix = "state.params" if kind == "parameters" else "state.params" + _after_slot(keys)
            name = prefix + jax.tree_util.keystr(keys) if kind == "parameters" else prefix
            by_path[config_path([name], tree)][kind] += _bytes(leaf)
    for buffer in found.memory.live:
        kind = "activations" if is_kept(buffer.op_names) else "temporaries"
        by_path[config_path(buffer.op_names, tree) or "other"][kind] += buffer.bytes
    scale = hardware.chip.devices / GIB
    memory = {kind: sum(counts[kind] for counts in by_path.values()) * scale for kind in _KINDS}
    named = sum(memory.values())
    memory["other"] = max(0.0, found.memory.total * scale - named)
    ordered = sorted(by_path.items(), key=lambda item: -sum(item[1].values()))
    return memory, {path: {kind: n * scale for kind, n in counts.items() if n} for path, counts in ordered}


def _after_slot(keys: tuple[Any, ...]) -> str:
    """Returns the path of the parameter that an array of the optimizer is for: what comes after its own names."""
    names = [key for key in keys if isinstance(key, jax.tree_util.DictKey)]
    return jax.tree_util.keystr(tuple(names))


def _bytes(leaf: Any) -> int:
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    return math.prod(shape) * leaf.dtype.itemsize


def collective_rows(found: list[Collective]) -> list[dict[str, Any]]:
    """Returns the collectives by kind, axes and whether they run beside other work; bytes are of a step."""
    totals: dict[tuple[str, str, bool], list[int]] = defaultdict(lambda: [0, 0])
    for each in found:
        total = totals[each.kind, "+".join(each.axes), each.asynchronous]
        total[0] += each.count
        total[1] += each.count * each.bytes
    rows = sorted(totals.items(), key=lambda item: -item[1][1])
    return [
        {"kind": kind, "axis": axis, "count": count, "bytes": size, "async": asynchronous}
        for (kind, axis, asynchronous), (count, size) in rows
    ]


def kernel_rows(choices: list[Choice]) -> list[dict[str, Any]]:
    """Returns which kernels were chosen where, and why not others, by path."""
    return [
        {"path": each.path, "kernel": each.kernel, "refused": dict(each.refused)}
        for each in sorted(choices, key=lambda each: each.path)
    ]
