# SPDX-License-Identifier: Apache-2.0
"""All ways to run a recipe on some hardware that are worth a prediction: mesh, microbatches, remat."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dovetail.data import Input
from dovetail.hardware import Hardware
from dovetail.module import Module
from dovetail.nn import POLICIES, with_remat
from dovetail.parallel import divisors
from dovetail.progress import phase
from dovetail.train import Trainer, batch_shape

from ._cost import REMAT, Run
from ._estimate import Model, block_bytes, describe, kept_bytes, usable_bytes
from ._layouts import Layouts, all_sizes, layers_in_loops, layouts, parts_of, splits_layers

NAMES = tuple(POLICIES)  # Of what is kept for the backward pass.
_MICROBATCHES = 64  # The most that a batch is split into.
_STAGED = 8  # Microbatches of a pipeline, for each stage, at most.
_ROUNDS = 16
_GATHERED = 1024  # Devices behind switches that gather parameters from each other: the time of more is all latency.
_ROOM = 0.92  # Of what a program can have: the highest estimate.


class Candidates(NamedTuple):
    """Ways to run a recipe; each field has one entry for each."""

    sizes: Mapping[str, np.ndarray]
    microbatches: np.ndarray  # `num_microbatches`.
    staged: np.ndarray  # `mesh.microbatches`; 1 without a pipeline.
    rounds: np.ndarray
    remat: np.ndarray  # Places in `NAMES`.
    bytes: np.ndarray  # Of memory that a device needs, as estimated.

    def where(self, chosen: np.ndarray) -> "Candidates":
        """Returns some of them."""
        sizes = {axis: size[chosen] for axis, size in self.sizes.items()}
        return Candidates(sizes, *(field[chosen] for field in self[1:]))

    @property
    def offloaded(self) -> np.ndarray:
        """Which of them keep something in the memory of the host."""
        return self.remat == NAMES.index("offload_qkvo")

    def run(self, rows: int) -> Run:
        """Returns them as one run of arrays."""
        codes = np.array([REMAT[name] for name in NAMES])
        return Run(
            sizes={axis: size.astype(float) for axis, size in self.sizes.items()},
            rows=float(rows),
            microbatches=(self.microbatches * self.staged).astype(float),
            rounds=self.rounds.astype(float),
            remat=codes[self.remat],
            bits=16.0,
            offloaded=self.offloaded,
        )

    def config(self, at: int, base: Trainer.Config, hardware: Hardware) -> Trainer.Config:
        """Returns one of them as the config of a trainer; `base` is what the mesh rules made."""
        sizes = {axis: int(size[at]) for axis, size in self.sizes.items()}
        outer = _across_slices(sizes, hardware)
        inner = {axis: size // outer.get(axis, 1) for axis, size in sizes.items()}
        staged = int(self.staged[at]) if sizes["pipeline"] > 1 else None
        mesh = base.mesh.set(**inner, across_slices=outer, microbatches=staged, rounds=int(self.rounds[at]))
        return base.set(mesh=mesh, num_microbatches=int(self.microbatches[at]), remat=NAMES[self.remat[at]])


def _across_slices(sizes: Mapping[str, int], hardware: Hardware) -> dict[str, int]:
    slices = hardware.slices if hardware.chip.torus is not None else 1
    if slices == 1:
        return {}
    along = "pipeline" if sizes["pipeline"] > 1 else "data" if sizes["data"] % slices == 0 else "fsdp"
    return {along: slices}


def candidates(
    cfg: Trainer.Config,
    hardware: Hardware,
    fixed: Mapping[str, Any] = {},
    *,
    policies: Sequence[str] = NAMES,
    room: float = _ROOM,
) -> Candidates:
    """Returns all candidates that divide the model and its batch and whose estimate of memory a chip has.

    Args:
        cfg: what the mesh rules made.
        fixed: what may not be changed, by path, as in `{"remat": "full", "mesh.tensor": 8}`.
        policies: of what is kept for the backward pass.
        room: of the memory that a program can have, the highest estimate.
    """
    about = describe(cfg)
    loops = layers_in_loops(about.specs)
    batch = batch_shape(cfg.input.batch_specs())
    found = layouts(all_sizes(hardware.num_devices, about.experts, loops), about.specs, cfg.mesh.rules, batch)
    found = found.where(found.divides & _allowed(found.sizes, hardware, fixed))
    groups = parts_of(found.sizes, cfg.mesh.rules.activations["batch"])  # Of devices, that share the rows.
    splits = [
        (i, *split)
        for i in range(len(found.held))
        for split in _splits(int(groups[i]), int(found.sizes["pipeline"][i]), batch.rows, loops)
    ]
    named = [name for name in policies if fixed.get("remat", name) == name]
    ways = [(*split, NAMES.index(name)) for split in splits for name in named]
    mesh, microbatches, staged, rounds, remat = np.array(ways or np.zeros((0, 5)), np.int64).T
    chosen = np.ones(len(mesh), bool)
    for path, values in (("num_microbatches", microbatches), ("mesh.microbatches", staged), ("mesh.rounds", rounds)):
        if fixed.get(path) is not None:
            chosen &= values == fixed[path]
    laid = found.where(mesh)
    needed = _bytes(cfg, about, laid, microbatches * groups[mesh], staged, remat)
    limit = usable_bytes(hardware)
    most = np.inf if limit is None else room * limit / hardware.chip.devices
    all_of_them = Candidates(laid.sizes, microbatches, staged, rounds, remat, needed)
    return all_of_them.where(chosen & (needed <= most))


def _allowed(sizes: Mapping[str, np.ndarray], hardware: Hardware, fixed: Mapping[str, Any]) -> np.ndarray:
    """Returns which meshes have what is fixed, and lie on links and slices as published runs do.

    What a prediction leaves out is latency, so that it would split layers over a slow network, and gather parameters
    from ten thousand devices.
    """
    allowed = np.ones(len(sizes["data"]), bool)
    for axis, size in sizes.items():
        if f"mesh.{axis}" in fixed:
            allowed &= size == fixed[f"mesh.{axis}"]
    if hardware.chip.torus is None and hardware.chip.domain is not None:
        allowed &= sizes["tensor"] <= hardware.chip.domain * hardware.chip.devices
        allowed &= sizes["fsdp"] <= _GATHERED
    if hardware.chip.torus is not None and hardware.slices > 1:
        stages, replicas, shards = (sizes[axis] % hardware.slices == 0 for axis in ("pipeline", "data", "fsdp"))
        allowed &= np.where(sizes["pipeline"] > 1, stages, replicas | (shards & (sizes["data"] == 1)))
    return allowed


def _splits(groups: int, stages: int, rows: int, loops: Mapping[int, float]) -> Iterator[tuple[int, int, int]]:
    """Yields microbatches, those of a pipeline, and its rounds."""
    mine, odd = divmod(rows, groups)
    if odd:
        return
    if stages == 1:
        yield from ((parts, 1, 1) for parts in divisors(mine) if parts <= _MICROBATCHES)
        return
    for parts in divisors(mine):
        if stages <= parts <= _STAGED * stages:
            for rounds in range(1, _ROUNDS + 1):
                if splits_layers(loops, stages * rounds):
                    yield 1, parts, rounds


def _bytes(
    cfg: Trainer.Config, about: Model, laid: Layouts, parts: np.ndarray, staged: np.ndarray, remat: np.ndarray
) -> np.ndarray:
    """Returns the memory that each needs, what `estimate` says of one; `parts` are those of a batch at one time."""
    sizes = laid.sizes
    rows = cfg.input.batch_size / parts
    kept = np.zeros(len(NAMES))
    for i in sorted(set(remat.tolist())):
        kept[i] = _kept(cfg.model, cfg.input, cfg.compute_dtype, NAMES[i])
    with phase("tracing a block"):
        block = block_bytes(cfg.model, cfg.input, cfg.compute_dtype) if len(remat) else 0.0
    activations = rows / (sizes["seq"] * sizes["tensor"]) * (kept[remat] / sizes["pipeline"] + block / staged)
    return laid.held * (2 + about.slots) + 2 * laid.gathered + activations


def _kept(model: Module.Config, data: Input.Config, dtype: str, name: str) -> float:
    here = "full" if name == "offload_qkvo" else name  # What is offloaded is on the host.
    with phase(f"tracing what {name} keeps"):
        return kept_bytes(with_remat(model, here), data, dtype)  # type: ignore[arg-type]
