# SPDX-License-Identifier: Apache-2.0
"""What limits a run: the single changes that would gain most, of the run or of its chips; its time by config path."""

from collections.abc import Iterator
from typing import NamedTuple

from dovetail.hardware import Hardware
from dovetail.parallel import MESH_AXES, Mesh
from dovetail.train import Trainer

from ._cost import step_parts
from ._estimate import describe, estimate
from ._fast import Chips
from ._predict import run_of
from ._search import divides
from ._work import MATRIX_AXIS, Work, work_of, works_by_path

_POLICIES = ("save_all", "save_dots", "save_qkvo", "full")  # From the fastest to the smallest.
_PLACED = ("products", "attention", "memory traffic")  # Parts of which it is known where they are.


class Change(NamedTuple):
    """A change, and what it would make of a step."""

    name: str
    kind: str  # Of what: `run`, or `chips`.
    overrides: tuple[str, ...]  # That make it; empty where no config can.
    seconds: float  # Of a step that has the work of the unchanged one.
    gain: float  # The share of the time that it saves; negative if it takes longer.
    fits: bool  # By the estimate of memory.


def what_if(cfg: Trainer.Config, hardware: Hardware) -> list[Change]:
    """Returns single changes of a config that `on_hardware` returned, those that gain most first."""
    chips, work = Chips(hardware), work_of(cfg)
    now, fits = _seconds(cfg, work, chips), estimate(cfg, hardware).fits
    found = []
    for name, changed, overrides, share in _of_the_run(cfg):
        if divides(changed):
            seconds = _seconds(changed, work, chips) * share
            found.append(Change(name, "run", overrides, seconds, 1 - seconds / now, estimate(changed, hardware).fits))
    for name, changed in _of_the_chips(work, chips):
        seconds = _seconds(cfg, work, changed)
        found.append(Change(name, "chips", (), seconds, 1 - seconds / now, fits))
    return sorted(found, key=lambda change: -change.gain)


def _seconds(cfg: Trainer.Config, work: Work, chips: Chips) -> float:
    return float(sum(step_parts(work, run_of(cfg), chips.machine, chips.constants).values()))


def _of_the_run(cfg: Trainer.Config) -> Iterator[tuple[str, Trainer.Config, tuple[str, ...], float]]:
    """Yields name, config, overrides, and the share of its step that has the work of the unchanged one."""

    def changed(name: str, share: float = 1.0, **fields: object) -> tuple[str, Trainer.Config, tuple[str, ...], float]:
        return name, cfg.set(**fields), tuple(f"{path}={value}" for path, value in fields.items()), share

    for mesh in _neighbours(cfg):
        names = [
            name for name in (*MESH_AXES, "microbatches", "rounds") if getattr(mesh, name) != getattr(cfg.mesh, name)
        ]
        overrides = tuple(f"mesh.{name}={getattr(mesh, name)}" for name in names)
        yield f"mesh {mesh.text()}", cfg.set(mesh=mesh), overrides, 1.0
    policy = "save_qkvo" if cfg.remat == "offload_qkvo" else cfg.remat or "save_all"
    at = _POLICIES.index(policy)
    for other in {max(0, at - 1), min(len(_POLICIES) - 1, at + 1)} - {at}:
        yield changed(f"remat {_POLICIES[other]}", remat=_POLICIES[other])
    parts = cfg.num_microbatches
    yield changed(f"{2 * parts} microbatches", num_microbatches=2 * parts)
    if parts > 1 and parts % 2 == 0:
        yield changed(f"{parts // 2} microbatches", num_microbatches=parts // 2)
    rows = 2 * cfg.input.batch_size
    yield "a batch of twice the rows", cfg.set(input=cfg.input.set(batch_size=rows)), (f"input.batch_size={rows}",), 0.5


def _neighbours(cfg: Trainer.Config) -> Iterator[Mesh]:
    """Yields meshes with half the size along one axis, and twice the size along another."""
    mesh, several = cfg.mesh, describe(cfg).experts > 1
    for less in MESH_AXES:
        if getattr(mesh, less) % 2:
            continue
        for more in MESH_AXES:
            if more == less or (more == MATRIX_AXIS and not several):
                continue
            sizes = {less: getattr(mesh, less) // 2, more: 2 * getattr(mesh, more)}
            stages = sizes.get("pipeline", mesh.pipeline)
            staged = {"microbatches": mesh.microbatches, "rounds": mesh.rounds} if stages == mesh.pipeline else {}
            yield mesh.set(**{"microbatches": None, "rounds": 1, **staged}, **sizes)


def _of_the_chips(work: Work, chips: Chips) -> Iterator[tuple[str, Chips]]:
    k = chips.constants
    for name, field in (
        ("twice the peak", "peak"),
        ("twice the bandwidth of memory", "bandwidth"),
        ("links twice as fast", "fast"),
        ("a network twice as fast", "network"),
    ):
        yield name, chips.changed(machine={field: 2 * getattr(chips.machine, field)})
    hidden = {name: 1.0 for name in k._fields if name.startswith("hidden_")}
    yield "perfect overlap of collectives", chips.changed(constants=hidden)
    yield "attention at the speed of products", chips.changed(constants={"attention": k.reached})
    if work.sparse and k.grouped < 1:
        yield "products of many matrices at the speed of others", chips.changed(constants={"grouped": 1.0})


def by_path(cfg: Trainer.Config, hardware: Hardware) -> dict[str, float]:
    """Returns the seconds of a step by config path, the most first; together, the step.

    Collectives, the wait of a pipeline and the host belong to no path, and have the names of their parts.
    """
    chips, work, run = Chips(hardware), work_of(cfg), run_of(cfg)
    whole = step_parts(work, run, chips.machine, chips.constants)
    found = {name: float(seconds) for name, seconds in whole.items() if name not in _PLACED}
    found["learner"] = found.pop("optimizer")
    for path, part in works_by_path(cfg):
        parts = step_parts(part, run, chips.machine, chips.constants)
        found[path] = found.get(path, 0.0) + float(sum(parts[name] for name in _PLACED))
    return dict(sorted(((name, t) for name, t in found.items() if t > 0), key=lambda item: -item[1]))
