# SPDX-License-Identifier: Apache-2.0
"""From a compiled training step to the seconds that it takes: by part, and by config path.

The schedule says what runs when, and what runs beside other work. What an instruction takes, the compiler for TPUs says
in cycles, and that for GPUs in microseconds, as far as they can know without the chips. Products, kernels and what is
sent between chips they cannot know well, so those follow their sizes.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from dovetail.aot import (
    Cost,
    Groups,
    Hlo,
    Instruction,
    Spent,
    config_path,
    copied,
    kernel_calls,
    moved_bytes,
    products_of,
    schedule,
    training_flops_by_scope,
)
from dovetail.module import abstract, specs
from dovetail.train import DTYPES, Trainer, abstract_batch, largest, loss_function

from ._constants import constants_of, is_known
from ._cost import HOST_BANDWIDTH
from ._links import Links
from ._report import Lowered
from ._timeline import Passage, timeline

# Of the peak, attention that the mask lets through: forward, backward. Of a TPU by the instructions of the kernel
# (blocks of 1024 and 512, a fifth of them in vain), of GPUs as fitted to published steps.
_ATTENTION = {"tpu": (0.51, 0.78)}
_LAUNCH = 3e-6  # Seconds in which a host starts an operation of a GPU.
_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "partition-id", "after-all", "opt-barrier")
_NO_WORK = ("AllocateBuffer", "AssumeGatherIndicesInBound", "Sharding", "annotate_device_placement")
_SMALL = 4096  # Elements: what is smaller says nothing of a kernel.
_MICROSECONDS = re.compile(r'"exec_time_us":([\d.e+\-]+)')
_ATTENDS = re.compile("mha|attention")  # In the names of kernels.
_NOTHING = 1e-7  # Seconds: a model that gives less has no opinion.
_HOST = "S(5)"  # Of XLA's memory spaces: the host's.


class Timed(NamedTuple):
    """The seconds of a step."""

    parts: Mapping[str, float]  # They add up to the step.
    by_path: Mapping[str, float]  # The same by config path; `other` is what has none.
    assumptions: list[str]
    timeline: list[Passage]


def compiled_parts(step: Lowered, text: str) -> Timed:
    """Returns the seconds of a compiled step.

    Args:
        text: of the program that the compiler made of it, with the compiler's own costs (`compiled.as_text()`).
    """
    costs = _Costs(step, Hlo(text))
    spent, stretches = schedule(costs.program, costs.of)
    tree = specs(step.program.model)
    parts, by_path = defaultdict[str, float](float), defaultdict[str, float](float)
    for each in spent:
        path = _path(each, costs.program, tree)
        part = "optimizer" if path == "learner" and each.part == "memory traffic" else each.part
        parts[part] += each.seconds
        by_path[path or "other"] += each.seconds
    parts["host"] += _host(spent) if step.hardware.chip.platform == "cuda" else 0.0
    mesh = step.cfg.mesh
    stages = mesh.sizes["pipeline"]
    if stages > 1:  # A stage computes in vain while others fill up; the schedule has that too.
        wait = (stages - 1) / (mesh.num_microbatches * mesh.rounds)
        for part in [part for part in parts if part not in ("optimizer", "exposed, data")]:
            parts["pipeline bubble"] += parts[part] * wait / (1 + wait)
            parts[part] /= 1 + wait
    rest = sum(parts.values()) - sum(by_path.values())
    parts["other"] += costs.fitted.rest * sum(parts.values())
    by_path["other"] += rest + parts["other"]
    ordered = dict(sorted(by_path.items(), key=lambda item: -item[1]))
    return Timed(
        {name: seconds for name, seconds in parts.items() if seconds > 0},
        ordered,
        costs.assumptions(),
        timeline(stretches, tree),
    )


def _path(each: Spent, program: Hlo, tree: Any) -> str:
    own = each.instruction
    found = config_path([own.op_name], tree)
    names = (inner.op_name for called in own.called for inner in program.below(called))
    return found or config_path(names, tree)


def _host(spent: list[Spent]) -> float:
    """Returns the time for which a GPU waits because what it runs ends before the host has started the next."""
    own = (each for each in spent if not each.part.startswith("exposed"))
    return sum(max(0.0, each.runs * _LAUNCH - each.seconds) for each in own)


class _Costs:
    """What instructions take, on one kind of chip."""

    def __init__(self, step: Lowered, program: Hlo) -> None:
        self.program, self.hardware = program, step.hardware
        chip = step.hardware.chip
        self.platform, self.fitted = chip.platform, constants_of(chip)
        self.attention = _ATTENTION.get(chip.platform, (self.fitted.attention,) * 2)
        self.peaks = {dtype: peak / chip.devices for dtype, peak in chip.peak.items()}
        self.memory = (chip.hbm_bandwidth or math.inf) / chip.devices * self.fitted.memory
        self.clock, self.reached, self.known = chip.clock, self.fitted.reached, is_known(chip)
        self.groups = Groups(step.cfg.mesh.sizes)
        mesh = step.program.devices.mesh
        self.links = Links(step.hardware, [] if mesh is None else list(mesh.devices.flat))
        self.kernels = {_key(each.shapes): each.flops for each in kernel_calls(step.traced.jaxpr.jaxpr)}
        self.seen = _shares(step.cfg)
        self.tree = specs(step.program.model)
        self.without: Counter[str] = Counter()
        self.used: dict[str, bool] = defaultdict(bool)

    def of(self, each: Instruction) -> Cost | None:
        """Returns what an instruction takes."""
        if each.opcode in _FREE:
            return None
        inner = [each, *(below for called in each.called for below in self.program.below(called))]
        if each.opcode.endswith("-start") or each.opcode != "fusion" or each.name.startswith("async-collective"):
            for below in inner:
                sent = self.groups.sent(below)
                if sent is not None:
                    self.used["collectives"] = True
                    seconds, channel = self.links.seconds(sent)
                    return Cost(f"exposed, {sent.axes[0] if sent.axes else 'other'}", seconds, channel)
        if each.opcode.endswith("-start"):
            return self._copy(each)
        if each.opcode == "custom-call":
            return self._custom_call(each)
        products = list(products_of(each, self.program))
        if products:
            return Cost("products", self._products(each, products))
        return Cost("memory traffic", self._traffic(each))

    def assumptions(self) -> list[str]:
        """Returns what the seconds rest on."""
        origin = "as fitted to published steps" if self.known else "a guess: no published step on this chip is known"
        reach = f"{self.reached:.2g} of the peak ({origin})"
        if self.platform == "tpu" and self.used["cycles"]:
            found = [f"products take the geometric mean of the compiler's cycles and {reach}"]
        elif self.platform == "tpu":
            found = [f"products reach {reach}: the program does not say their cycles"]
        else:
            found = [
                f"products reach {reach}: without a GPU the compiler cannot try tiles, and its own times say little"
            ]
        if self.used["attention"]:
            forward, backward = self.attention
            found.append(
                f"attention reaches {forward} of the peak forward, {backward} backward, without what is masked"
            )
        if self.used["host"]:
            found.append(f"the memory of the host is read and written at {HOST_BANDWIDTH / 1e9:.0f} GB/s a chip each")
        found.append(f"all else moves its bytes at {self.fitted.memory} of the memory's bandwidth")
        if self.without:
            kinds = ", ".join(f"{name} ({count} times)" for name, count in self.without.most_common())
            found.append(f"no time is known for, and none counted: {kinds}")
        return found

    def _copy(self, each: Instruction) -> Cost:
        """Returns what it takes to copy something, or a slice of it, beside other work."""
        size = copied(each, self.program)
        if _HOST in each.shape:
            self.used["host"] = True
            written = each.opcode.startswith("dynamic-update") or _HOST in each.shape.partition("}")[0]
            return Cost("host", size / HOST_BANDWIDTH, "to the host" if written else "from the host")
        return Cost("memory traffic", size / self.memory, "memory")

    def _custom_call(self, each: Instruction) -> Cost | None:
        target = each.attribute(r'custom_call_target="([^"]*)"') or ""
        if target in _NO_WORK:
            return None
        products = list(products_of(each, self.program))
        if products:
            return Cost("products", self._products(each, products))
        shapes = [self._dims(name) for name in each.operands]
        flops = self.kernels.get(_key(shapes), 0) or _cudnn_flops(target, shapes)
        if flops:
            return self._kernel(each, flops)
        if self.platform == "cuda" or "tpu_custom_call" not in target:
            return Cost("memory traffic", moved_bytes(each, self.program) / self.memory)
        self.without[target] += 1
        return None

    def _kernel(self, each: Instruction, flops: int) -> Cost:
        peak = self.peaks["bfloat16"]
        path = config_path([each.op_name], self.tree)
        if path not in self.seen and not _ATTENDS.search(f"{each.op_name} {each.rest[-2000:]}"):
            return Cost("products", flops / (self.reached * self.fitted.grouped * peak))
        self.used["attention"] = True
        backward = "transpose(" in each.op_name
        reached = self.attention[backward]
        return Cost("attention", flops * self.seen.get(path, 1.0) / (reached * peak))

    def _products(self, each: Instruction, products: list[tuple[Instruction, int, int]]) -> float:
        """Returns the seconds of an instruction that multiplies matrices, with what is fused into it."""
        half = self.fitted.half_size if self.platform == "cuda" else 0.0
        computing = sum(
            flops / (self.reached * self._peak(product)) * (1 + half / inner) for product, flops, inner in products
        )
        said = self._cycles(each)
        if said is not None:
            self.used["cycles"] = True
            return math.sqrt(said * computing) if computing > 0.1 * said else said
        return max(computing, moved_bytes(each, self.program) / self.memory)

    def _peak(self, product: Instruction) -> float:
        operands = (self.program.instructions.get(name) for name in product.operands[:2])
        kinds = {each.shape[:2] for each in operands if each is not None}
        if len(kinds) != 1 or not (kind := kinds.pop()).endswith("8"):
            return self.peaks["bfloat16"]
        integers = kind.startswith("s")
        eight = (
            peak for dtype, peak in self.peaks.items() if dtype.endswith("8") and dtype.startswith("i") == integers
        )
        return next(eight, self.peaks["bfloat16"])

    def _cycles(self, each: Instruction) -> float | None:
        """Returns the seconds that the compiler for TPUs says that an instruction takes."""
        cycles = each.attribute(r'"estimated_cycles":"(\d+)"')
        return None if cycles is None or self.clock is None else int(cycles) / self.clock

    def _traffic(self, each: Instruction) -> float:
        """Returns the seconds of what is no product: its bytes, or what the compiler says if that is less.

        Their estimates are for choosing between programs. Those of a TPU can be ten times what the bytes of a sum
        take, those of a GPU a thousand times. Where they are below, less is moved than the shapes say.
        """
        size = moved_bytes(each, self.program)
        times = [float(time) * 1e-6 / self.fitted.memory for time in _MICROSECONDS.findall(each.rest)]
        cycles = self._cycles(each)
        times += [] if cycles is None else [cycles]
        return min([size / self.memory, *(time for time in times if time > _NOTHING)])

    def _dims(self, name: str) -> tuple[int, ...]:
        found = self.program.instructions.get(name)
        return found.dims if found is not None else ()


def _key(shapes: Any) -> tuple[tuple[int, ...], ...]:
    """Returns by what a kernel in the traced program is found in the compiled one: the shapes of its large operands."""
    return tuple(sorted(shape for shape in map(tuple, shapes) if math.prod(shape) >= _SMALL))


def _cudnn_flops(target: str, shapes: list[tuple[int, ...]]) -> int:
    """Returns the operations of cuDNN's attention, all scores counted: `[B, T, H, K]` queries and keys."""
    if "fmha" not in target or len(shapes) < 2 or len(shapes[0]) != 4:
        return 0
    (rows, queries, heads, dim), keys = shapes[0], shapes[1][1]
    products = 5 if "Backward" in target else 2
    return products * 2 * rows * queries * keys * heads * dim


def _shares(cfg: Trainer.Config) -> dict[str, float]:
    """Returns by config path what part of all scores of attention the mask lets through."""
    model = cfg.model.build(path="model")
    one = abstract_batch(largest(cfg.input.set(batch_size=1).batch_specs()))
    loss = loss_function(model, dtype=DTYPES[cfg.compute_dtype])
    key = jax.eval_shape(lambda: jax.random.key(0))
    params, tree = abstract(model), specs(model)
    trained = jax.tree.map(lambda _: True, params)
    work = training_flops_by_scope(lambda params, *args: loss(params, *args)[0], params, trained, one, key)
    masked, full = Counter[str](), Counter[str]()
    for scope, each in work.items():
        if each.flops != each.full:
            path = config_path([scope], tree)
            masked[path] += each.flops
            full[path] += each.full
    return {path: masked[path] / full[path] for path in full}
