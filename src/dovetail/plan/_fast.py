# SPDX-License-Identifier: Apache-2.0
"""The time of many runs by arithmetic, with the constants of a chip."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from dovetail.aot import inner_programs
from dovetail.config import ConfigError
from dovetail.data import Input
from dovetail.hardware import Hardware
from dovetail.module import Module, abstract
from dovetail.ops import by_definition
from dovetail.train import DTYPES, Trainer, abstract_batch, largest, loss_function

from ._cost import REMAT, Constants, Machine, Numbers, Run, step_parts
from ._measured import machine_of
from ._work import Work

_CHUNK = 2048  # Runs whose arrays stay in a cache of the processor.
_HOST = 16e9  # Bytes/s between a chip and the memory of its host: an assumption; no maker of TPUs publishes it.
_BESIDE = 0.8  # Of these transfers, what runs beside other work.
_REACHED = 0.66  # Where no published run is known.
_GPU = Constants(
    reached=_REACHED,
    half_size=366,
    grouped=1.0,
    float8=0.95,
    float4=0.62,
    attention=0.61,
    recurrence=0.3,
    memory=0.8,
    traffic=1.75,
    backward_traffic=1.6,
    rounding_traffic=1.35,
    moved=3.2,
    links=0.9,
    exchange=0.71,
    optimizer=34,
    hidden_tensor=0.41,
    hidden_seq=0.7,
    hidden_pipeline=0.8,
    hidden_expert=0,
    hidden_fsdp=0.9,
    hidden_data=0.8,
    layer_seconds=0.9e-3,
    sparse_seconds=2e-3,
    rest=0.02,
)
_TPU = _GPU._replace(
    half_size=300,
    grouped=0.74,
    attention=0.45,
    traffic=1.2,
    moved=1.7,
    links=0.76,
    exchange=1.0,
    hidden_tensor=0.85,
    layer_seconds=0,
    sparse_seconds=0,
    float8=0.61,
)


def constants_of(hardware: Hardware) -> Constants:
    """Returns what was fitted for chips of this kind."""
    known = _GPU if hardware.chip.torus is None else _TPU
    return known._replace(reached=hardware.chip.reached or _REACHED)


def spread_of(work: Work) -> float:
    """Returns the factor around a prediction in which 8 of 10 published steps lay."""
    return 1.48 if work.sparse or work.kernels.recurrent.any() else 1.18


class Chips:
    """Some hardware, as all predictions for it need it."""

    machine: Machine
    constants: Constants

    def __init__(self, hardware: Hardware) -> None:
        if not hardware.chip.peak.get("bfloat16") or not hardware.chip.hbm_bandwidth:
            raise ConfigError(
                f"{hardware.name}: the peak of {hardware.chip.vendor} or the bandwidth of its memory is not known, so "
                "no step can be predicted.\n  Use a chip with `peak` and `hbm_bandwidth` in the hardware catalogue."
            )
        self.hardware = hardware
        self.machine = machine_of(hardware, devices=hardware.chip.devices)
        self.constants = constants_of(hardware)

    def changed(self, *, machine: Mapping[str, Numbers] = {}, constants: Mapping[str, Numbers] = {}) -> "Chips":
        """Returns such hardware with some figures changed."""
        other = Chips(self.hardware)
        other.machine, other.constants = self.machine._replace(**machine), self.constants._replace(**constants)
        return other


def bits_of(cfg: Trainer.Config) -> int:
    """Returns in how many bits products in layers are computed, at most 16: as the traced program has them."""
    return _bits(cfg.model, cfg.input.set(batch_size=1), cfg.compute_dtype)


@functools.lru_cache(maxsize=128)
def _bits(cfg: Module.Config, data: Input.Config, dtype: str) -> int:
    model = cfg.build(path="model")
    loss = loss_function(model, dtype=DTYPES[dtype])
    key = jax.eval_shape(lambda: jax.random.key(0))
    with by_definition():
        program = jax.make_jaxpr(loss)(abstract(model), abstract_batch(largest(data.batch_specs())), key)
    return min(16, *_factors(program.jaxpr))


def _factors(jaxpr: Any) -> Iterator[int]:
    """Yields the bits of the narrower factor of each product of a program."""
    yield 16
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            yield 8 * min(var.aval.dtype.itemsize for var in eqn.invars)
        for inner in inner_programs(eqn.params):
            yield from _factors(inner)


def run_of(cfg: Trainer.Config) -> Run:
    """Returns the run of a config that `on_hardware` returned."""
    return Run(
        sizes={axis: float(size) for axis, size in cfg.mesh.sizes.items()},
        rows=float(cfg.input.batch_size),
        microbatches=float(cfg.num_microbatches * cfg.mesh.num_microbatches),
        rounds=float(cfg.mesh.rounds),
        remat=REMAT[cfg.remat or "save_all"],
        bits=float(bits_of(cfg)),
    )


def parts_of_step(work: Work, run: Run, chips: Chips, offloaded: Numbers = False) -> dict[str, Numbers]:
    """Returns the seconds of each part of a step; `offloaded`: what is kept of mixers goes to the host and back."""
    parts = step_parts(work, run, chips.machine, chips.constants)
    if np.any(offloaded):
        moved = 2 * work.mixed * run.rows / run.devices / _HOST
        beside = np.minimum(_BESIDE * moved, parts["products"] + parts["attention"])
        parts["exposed, host memory"] = np.where(offloaded, moved - beside, 0.0)
    return parts


def seconds_of(work: Work, run: Run, chips: Chips, offloaded: np.ndarray) -> np.ndarray:
    """Returns the seconds of a step for arrays of runs, as many at a time as are fast."""
    found = []
    for start in range(0, len(offloaded), _CHUNK):
        here = slice(start, start + _CHUNK)
        sizes = {axis: size[here] for axis, size in run.sizes.items()}
        some = run._replace(
            sizes=sizes,
            microbatches=run.microbatches[here],
            rounds=run.rounds[here],
            remat=run.remat[here],
            bits=run.bits[here],
        )
        found.append(sum(parts_of_step(work, some, chips, offloaded[here]).values()))
    return np.concatenate(found) if found else np.zeros(0)
