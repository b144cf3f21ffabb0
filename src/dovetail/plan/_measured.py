# SPDX-License-Identifier: Apache-2.0
"""Steps that were measured elsewhere, and what has to be assumed to predict them."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dovetail.hardware import Hardware
from dovetail.train import Trainer

from ._cost import FULL, REMAT, SAVE_ALL, Constants, Machine, Run, memory_of_step, step_parts
from ._work import Work, work_of

_USABLE = 0.92  # Of the memory of a chip.


class Stated(NamedTuple):
    """What is published of a layout."""

    sizes: Mapping[str, int]  # Of mesh axes; -1: what is left. `rounds` is that of the pipeline.
    rows_at_once: int | None  # Of a microbatch, on the devices that share them.
    parts: int  # Microbatches, where `rows_at_once` is not known.
    remat: str | None


class Measured(NamedTuple):
    """A measured step."""

    cfg: Trainer.Config
    hardware: Hardware
    stated: Stated | None  # None: nothing is published of the layout.
    bits: int  # Of the factors of products in layers.
    megatron: bool
    flops: float  # For each token, as reported; 0: not reported.
    watts: float | None  # Of a chip, where it is not the usual one.
    seconds: float
    system: str
    model: str
    source: str
    precision: str
    notes: list[str]


class Rebuilt(NamedTuple):
    """A measured step as what its time is computed from."""

    measured: Measured
    work: Work
    run: Run
    machine: Machine
    assumed_mesh: bool
    assumptions: list[str]

    @property
    def is_sparse(self) -> bool:
        """Whether there are experts or recurrences."""
        return self.kind != "dense"

    @property
    def kind(self) -> str:
        """What the model is made of."""
        if self.work.kernels.recurrent.any():
            return "hybrid"
        return "MoE" if self.work.sparse else "dense"


def machine_of(hardware: Hardware, *, devices: int = 1) -> Machine:
    """Returns the machine as a device sees it, of which a chip has so many."""
    chip = hardware.chip
    torus = len(hardware.shape) if chip.torus is not None else 0
    links = chip.links or 0
    fast = 2 * (chip.link_bandwidth or 0) if torus else links * (chip.link_bandwidth or 0)
    return Machine(
        peak=chip.peak.get("bfloat16", 0.0) / devices,
        bandwidth=(chip.hbm_bandwidth or 0.0) / devices,
        fast=(fast or UNKNOWN_LINKS) / devices,
        network=(chip.network or UNKNOWN_LINKS) / devices,
        domain=(hardware.slice_chips if torus else chip.domain or hardware.num_chips) * devices,
        torus=torus,
    )


UNKNOWN_LINKS = 256e9  # Bytes/s between chips of a domain, where they are not known.


def rebuilt(measured: Measured, k: Constants) -> Rebuilt:
    """Returns a measured step with a layout: what is stated, else the fastest that fits."""
    work, machine = work_of(measured.cfg), machine_of(measured.hardware)
    notes = list(measured.notes)
    rows, chips = measured.cfg.input.batch_size, measured.hardware.num_chips
    limit = _USABLE * (measured.hardware.chip.hbm_bytes or np.inf)
    if measured.flops and measured.flops < 0.75 * _training_flops(work) / measured.cfg.input.seq_len:
        if not work.sparse:
            notes.append("only adapters are trained: two thirds of the operations are reported")
            work = frozen(work)
    if measured.stated is None:
        candidates = _candidates(work, measured, chips, rows)
        notes.append("the mesh is not given: the fastest that fits")
    else:
        candidates = _stated(measured, measured.stated, chips, rows)
        if measured.stated.remat is None:
            notes.append("what is computed again is not given: as little as memory allows")
    run = _fastest(work, candidates, machine, k, limit)
    return Rebuilt(measured, work, run, machine, measured.stated is None, notes)


def _training_flops(work: Work) -> float:
    products = work.products
    return float(
        6 * np.sum(products.rows * products.inner * products.columns * products.times) + 3 * np.sum(work.kernels.flops)
    )


def frozen(work: Work) -> Work:
    """Returns the work of a model whose matrices are not trained: no gradients of them, and no state."""
    products = work.products
    return work._replace(
        products=products._replace(trained=np.where(products.stacked > 0, 0.0, products.trained)),
        parameters=work.parameters._replace(trained=np.zeros_like(work.parameters.count)),
    )


def _run(sizes: Mapping[str, float], rows: int, parts: float, remat: int, measured: Measured, rounds: float = 1) -> Run:
    names = ("pipeline", "data", "fsdp", "expert", "seq", "tensor")
    whole = {axis: float(sizes.get(axis, 1)) for axis in names}
    return Run(whole, float(rows), float(parts), float(rounds), remat, float(measured.bits), measured.megatron)


def _stated(measured: Measured, stated: Stated, chips: int, rows: int) -> list[Run]:
    sizes = {axis: max(1, size) for axis, size in stated.sizes.items() if size != -1}
    tensor, stages, seq = (sizes.get(axis, 1) for axis in ("tensor", "pipeline", "seq"))
    groups = chips / (tensor * stages * seq)  # That share the rows of a batch.
    experts = float(sizes.get("expert", 1))
    if stated.sizes.get("fsdp") == -1:
        slices = measured.hardware.slices if measured.hardware.chip.torus else 1
        fsdp = groups / slices / experts
    elif "fsdp" in sizes:
        fsdp = max(1.0, sizes["fsdp"] / (experts if sizes["fsdp"] >= experts else 1))
    else:
        fsdp = 1.0
    if sizes.get("fsdp", 0) > groups or (sizes.get("fsdp") and measured.megatron):
        fsdp = min(fsdp, groups)
    data = groups / (fsdp * experts)
    parts = stated.parts
    if stated.rows_at_once:
        parts = max(1, round(rows / (groups * stated.rows_at_once)))
    elif stages > 1:
        parts = max(parts, stages)
    whole = {"pipeline": stages, "data": data, "fsdp": fsdp, "expert": experts, "seq": seq, "tensor": tensor}
    policies = range(4) if stated.remat is None else [REMAT[stated.remat]]
    return [_run(whole, rows, parts, remat, measured, sizes.get("rounds", 1)) for remat in policies]


def _candidates(work: Work, measured: Measured, chips: int, rows: int) -> list[Run]:
    """Returns layouts over `data`, `fsdp` and, on GPUs, `expert`."""
    found = []
    experts = [1]
    if work.sparse and measured.hardware.chip.torus is None:
        experts = [n for n in (1, 2, 4, 8) if chips % n == 0]
    for expert in experts:
        rest = chips // expert
        for fsdp in (n for n in range(1, rest + 1) if (rest % n == 0 and (n & (n - 1)) == 0) or n == rest):
            for parts in (1, 2, 4, 8, 16):
                for remat in range(SAVE_ALL, FULL + 1):
                    if rows % (chips * parts) == 0 or parts == 1:
                        sizes = {"expert": expert, "fsdp": fsdp, "data": rest / fsdp}
                        found.append(_run(sizes, rows, parts, remat, measured))
    return found


def _fastest(work: Work, runs: list[Run], machine: Machine, k: Constants, limit: float) -> Run:
    """Returns the fastest that fits, or the smallest where none does."""
    totals = [float(memory_of_step(work, run).total) for run in runs]
    fitting = [run for run, total in zip(runs, totals, strict=True) if total <= limit]
    if not fitting:
        return runs[int(np.argmin(totals))]
    return min(fitting, key=lambda run: float(sum(step_parts(work, run, machine, k).values())))
