# SPDX-License-Identifier: Apache-2.0
"""How long a training step takes on chips that need not be there, from the traced program, specs and mesh alone.

Each part is timed by what limits it: products by the share of the peak that sizes like theirs reach, the rest by
memory, collectives by links, as far as other work does not hide them. No model is known by name.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax

import dovetail
from dovetail.aot import Operations, Product, config_path, operations
from dovetail.config import ConfigError
from dovetail.hardware import Hardware
from dovetail.module import abstract, specs
from dovetail.parallel import MESH_AXES, MeshLayout, flat_specs
from dovetail.train import DTYPES, Trainer, abstract_batch, largest, loss_function, size_of


class _Constants(NamedTuple):
    """What was fitted to published steps, by vendor; the share of the peak is in the hardware catalogue."""

    half_size: float  # A product that sums over so many numbers takes twice its time.
    attention: float  # Share of the peak.
    grouped: float  # Of what other products reach, those with several matrices do.
    traffic: float  # Bytes moved, for each that a perfect fusion would move.
    permuted: float  # The same of rows on their way to experts.
    links: float  # Share of their bandwidth.
    hidden: Mapping[str, float]  # By mesh axis: the share of collectives that can run beside other work.
    layer_seconds: float = 0.0  # What the host takes for a layer of a microbatch.


_MATRICES = "expert"  # The mesh axis over which the matrices of a product are spread.
_HIDDEN = {"seq": 0.7, _MATRICES: 0.0, "fsdp": 0.9, "data": 0.8}
_TPU = _Constants(300, 0.45, 0.74, 1.2, 1.7, 0.76, {"tensor": 0.85, **_HIDDEN})
_GPU = _Constants(366, 0.61, 1.0, 1.75, 3.2, 0.9, {"tensor": 0.41, **_HIDDEN}, layer_seconds=0.9e-3)
_MEMORY = 0.8  # Share of the bandwidth of memory.
_OPTIMIZER = 34  # Bytes moved for each parameter that a chip holds.
_REST = 0.02  # Of a step: what is in no part.
_REACHED = 0.66  # Where no published run is known.
_LINKS = 256e9  # Bytes/s between chips of a domain, where they are not known.
_AGAIN = {"full": 1.0, "save_qkvo": 0.6, "offload_qkvo": 0.6, "save_dots": 0.3, "save_all": 0.0}  # Of forward traffic.


class Prediction(NamedTuple):
    """A training step; seconds."""

    hardware: str
    unit: str
    step_seconds: float
    interval: tuple[float, float]  # 8 of 10 published steps lay in such a range.
    mfu: float  # By the rule of `count_training_flops`, of the peak in bfloat16.
    units_per_second_per_chip: float
    cost_per_trillion_units: float | None  # US dollars; None where no price is known.
    breakdown: Mapping[str, float]  # Adds up to the step.
    method: str
    assumptions: list[str]
    versions: Mapping[str, str]
    by_path: Mapping[str, float] = {}  # Seconds by config path; of the compiled program only.


def predict(cfg: Trainer.Config, hardware: Hardware) -> Prediction:
    """Returns the prediction for the config of a trainer, which `on_hardware` returned; nothing is compiled."""
    peak, memory = hardware.chip.peak.get("bfloat16"), hardware.chip.hbm_bandwidth
    if not peak or not memory:
        raise ConfigError(
            f"{hardware.name}: the peak of {hardware.chip.vendor} or the bandwidth of its memory is not known, so no "
            "step can be predicted.\n  Use a chip with `peak` and `hbm_bandwidth` in the hardware catalogue."
        )
    step = _Step(cfg, hardware, peak, memory)
    parts, size = step.parts(), size_of(cfg)
    seconds = sum(parts.values())
    rate, price = size.units / seconds, hardware.price
    spread = 1.48 if any(each.matrices > 1 for each in step.work.products) else 1.18
    return Prediction(
        hardware.name,
        size.unit,
        seconds,
        (seconds / spread, seconds * spread),
        size.flops_per_unit * rate / (hardware.num_chips * peak),
        rate / hardware.num_chips,
        None if price is None else 1e12 / rate / 3600 * price,
        parts,
        "traced",
        step.assumptions,
        {"dovetail": dovetail.__version__, "jax": jax.__version__},
    )


class _Step:
    """One step of a run on one chip."""

    def __init__(self, cfg: Trainer.Config, hardware: Hardware, peak: float, memory: float) -> None:
        self.cfg, self.hardware, self.memory = cfg, hardware, memory * _MEMORY
        self.known = _TPU if hardware.chip.platform == "tpu" else _GPU
        self.assumptions: list[str] = []
        reached = hardware.chip.reached
        if reached is None:
            reached = _REACHED
            self.assumptions.append(f"products reach {reached} of the peak: no published step on this chip is known")
        self.peak, self.reached = peak, peak * reached
        self.model = cfg.model.build(path="model")
        self.specs = specs(self.model)
        one = largest(cfg.input.set(batch_size=1).batch_specs())
        loss = loss_function(self.model, dtype=DTYPES[cfg.compute_dtype])
        key = jax.eval_shape(lambda: jax.random.key(0))
        self.work: Operations = operations(loss, abstract(self.model), abstract_batch(one), key)
        self.sizes = cfg.mesh.sizes
        self.rows = cfg.input.batch_size / hardware.num_chips  # Of the batch, for each chip.
        self.parts_of_batch = cfg.num_microbatches * cfg.mesh.num_microbatches
        self.policy = cfg.remat or "save_all"
        if cfg.remat is None:
            self.assumptions.append("nothing is computed again in the backward pass")

    def parts(self) -> dict[str, float]:
        """Returns the seconds of each part; together, the step."""
        products = sum(self._product(each) for each in self.work.products)
        attention = sum(self._kernel(each.flops * each.times, each.head_dim) for each in self.work.kernels)
        passes = 2.6 + _AGAIN[self.policy]
        traffic = sum(self.work.traffic.values()) * self.known.traffic
        traffic += sum(self.work.moved.values()) * self.known.permuted
        memory = self.rows * passes * traffic / self.memory
        body = products + attention + memory
        found = {"products": products, "attention": attention, "memory traffic": memory}
        left = body
        for axis, seconds in self._collectives().items():
            hidden = min(self.known.hidden[axis] * seconds, left)
            left -= hidden
            found[f"exposed, {axis}"] = seconds - hidden
            body += seconds - hidden if axis != "data" else 0.0
        layers = max((each.times for each in self.work.products), default=0)
        host = self.parts_of_batch * layers * self.known.layer_seconds / self.sizes["pipeline"]
        found["host"] = (body**4 + host**4) ** 0.25 - body
        stages, rounds = self.sizes["pipeline"], self.cfg.mesh.rounds
        waits = (stages - 1) / (self.cfg.mesh.num_microbatches * rounds) if stages > 1 else 0.0
        found["pipeline bubble"] = (body + found["host"]) * waits
        found["optimizer"] = _OPTIMIZER * self._held() / self.memory
        found["other"] = _REST * sum(found.values())
        return {name: seconds for name, seconds in found.items() if seconds > 0}

    def _product(self, each: Product) -> float:
        """Returns the seconds of a product, forward and backward: what computing, or reading, takes longer."""
        split = self.sizes[_MATRICES] if each.matrices > 1 else 1
        reached = self.reached * (self.known.grouped if each.matrices > 1 else 1.0)
        tensor = self.sizes["tensor"]
        rows = self.rows * each.rows * tensor / (self.parts_of_batch * max(1.0, each.matrices / split))
        rows *= self.sizes["pipeline"]  # A stage has fewer layers, and all rows go through it.
        runs = each.times / self.sizes["pipeline"] * self.parts_of_batch * max(1.0, each.matrices / split)
        inner, columns = each.inner, each.columns / tensor
        size = 2 * (rows * inner + inner * columns + rows * columns)
        flops = 2 * rows * inner * columns
        summed = [inner, each.columns, rows] + [inner] * self._computed_again(each)
        return runs * sum(max(flops / reached * (1 + self.known.half_size / k), size / self.memory) for k in summed)

    def _computed_again(self, each: Product) -> int:
        if each.times == 1 or self.policy in ("save_all", "save_dots"):
            return 0
        return int(self.policy == "full" or "mixer" not in each.scope.split("/"))

    def _kernel(self, flops: float, head_dim: int) -> float:
        again = 1.0 if self.policy == "full" else 0.0
        slower = math.sqrt(128 / head_dim) if head_dim < 128 else 1.0
        return self.rows * flops * (3.5 + again) * slower / (self.known.attention * self.peak)

    def _held(self) -> float:
        """Returns the parameters that a chip holds."""
        layout = MeshLayout(self.cfg.mesh)
        return sum(
            math.prod(spec.shape) / math.prod(layout.shards(axes) for axes in layout.stored_axes(spec))
            for _, spec in flat_specs(self.specs, "")
        )

    def _collectives(self) -> dict[str, float]:
        """Returns the seconds that collectives along each mesh axis would take alone, the first to be hidden first."""
        layout, sizes = MeshLayout(self.cfg.mesh), self.sizes
        gathered, owners = 0.0, set[str]()
        for path, spec in flat_specs(self.specs, "model"):
            stored = layout.stored_axes(spec)
            if any("fsdp" in axes for axes in stored):
                kept = [tuple(axis for axis in axes if axis != "fsdp") for axes in stored]
                gathered += math.prod(spec.shape) / math.prod(layout.shards(axes) for axes in kept)
            if spec.axes and spec.axes[-1] == "embed" and len(spec.shape) - spec.stack > 1:
                owners.add(path.rpartition(".")[0])
        ends = [each for each in self.work.products if config_path([each.scope], self.specs) in owners]
        again = 1 + _AGAIN[self.policy] / 2
        joined = sum(8 * each.rows * each.columns * each.times for each in ends if each.matrices == 1)
        sent = sum(8 * each.rows * each.columns * each.times for each in ends if each.matrices > 1)
        context = sum(3 * each.context_bytes * each.times for each in self.work.kernels)
        sizes_of = {
            "tensor": self.rows * sizes["tensor"] * joined * again,
            "seq": self.rows * sizes["seq"] * context,
            _MATRICES: self.rows * sent,
            "fsdp": 6 * gathered * self.parts_of_batch,
            "data": 8 * self._held(),
        }
        return {
            axis: size * (1 - 1 / sizes[axis]) / self._bandwidth(axis)
            for axis, size in sizes_of.items()
            if sizes[axis] > 1
        }

    def _bandwidth(self, axis: str) -> float:
        """Returns the bytes/s of a chip along a mesh axis."""
        chip = self.hardware.chip
        if not chip.links or not chip.link_bandwidth:
            note = f"links between chips bring {_LINKS / 1e9:.0f} GB/s: theirs are not known"
            self.assumptions += [note] if note not in self.assumptions else []
        fast = chip.links * chip.link_bandwidth if chip.links and chip.link_bandwidth else _LINKS
        inner = math.prod(self.sizes[each] for each in MESH_AXES[MESH_AXES.index(axis) + 1 :])
        here = self.hardware.slice_chips * chip.devices
        if inner * self.sizes[axis] <= here or not chip.network:
            return fast * self.known.links
        if chip.torus is not None:
            return chip.network * max(1, here // inner) / max(1, self.sizes["fsdp"])
        return min(fast, chip.network * max(1, here // inner)) * self.known.links
