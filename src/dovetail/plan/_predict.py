# SPDX-License-Identifier: Apache-2.0
"""How long a training step takes on chips that need not be there, from the traced program, specs and mesh alone."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax

import dovetail
from dovetail.config import ConfigError
from dovetail.hardware import Hardware
from dovetail.train import Trainer, size_of

from ._constants import constants_of, interval_of, is_known
from ._cost import HOST_BANDWIDTH, REMAT, Run, step_parts
from ._measured import UNKNOWN_LINKS, machine_of
from ._pictures import prediction_picture
from ._timeline import Passage
from ._work import work_of


class Prediction(NamedTuple):
    """A training step; seconds."""

    hardware: str
    unit: str
    step_seconds: float
    interval: tuple[float, float]  # 8 of 10 published steps lay in such a range.
    mfu: float  # By the rule of `count_training_flops`, of the peak in bfloat16.
    full_mfu: float  # The same with all scores of attention, as others count.
    units_per_second_per_chip: float
    cost_per_trillion_units: float | None  # US dollars; None where no price is known.
    breakdown: Mapping[str, float]  # Adds up to the step.
    method: str
    assumptions: list[str]
    versions: Mapping[str, str]
    by_path: Mapping[str, float] = {}  # Seconds by config path; of the compiled program only.
    timeline: Sequence[Passage] = []  # The step in its order; of the compiled program only.

    def _repr_svg_(self) -> str:
        """What a notebook shows."""
        return prediction_picture("", self).svg

    def slowed(self, factor: float) -> "Prediction":
        """Returns the prediction with all times multiplied by a factor, and what follows from them."""
        (low, high), cost = self.interval, self.cost_per_trillion_units
        return self._replace(
            step_seconds=self.step_seconds * factor,
            interval=(low * factor, high * factor),
            mfu=self.mfu / factor,
            full_mfu=self.full_mfu / factor,
            units_per_second_per_chip=self.units_per_second_per_chip / factor,
            cost_per_trillion_units=None if cost is None else cost * factor,
            breakdown={name: part * factor for name, part in self.breakdown.items()},
            by_path={path: part * factor for path, part in self.by_path.items()},
            timeline=[each.slowed(factor) for each in self.timeline],
        )


def predict(cfg: Trainer.Config, hardware: Hardware) -> Prediction:
    """Returns the prediction for the config of a trainer, which `on_hardware` returned; nothing is compiled."""
    check_predictable(hardware)
    work = work_of(cfg)
    parts = step_parts(
        work, run_of(cfg), machine_of(hardware, devices=hardware.chip.devices), constants_of(hardware.chip)
    )
    found = {name: float(seconds) for name, seconds in parts.items() if seconds > 0}
    sparse = bool(work.sparse or work.kernels.recurrent.any())
    return prediction(cfg, hardware, found, "traced", _assumptions(cfg, hardware), sparse=sparse)


def is_predictable(hardware: Hardware) -> bool:
    """Whether enough is known of a chip."""
    return bool(hardware.chip.peak.get("bfloat16") and hardware.chip.hbm_bandwidth)


def check_predictable(hardware: Hardware) -> None:
    """Raises if too little is known of a chip."""
    if not is_predictable(hardware):
        raise ConfigError(
            f"{hardware.name}: the peak of {hardware.chip.vendor} or the bandwidth of its memory is not known, so no "
            "step can be predicted.\n  Use a chip with `peak` and `hbm_bandwidth` in the hardware catalogue."
        )


def prediction(
    cfg: Trainer.Config,
    hardware: Hardware,
    parts: Mapping[str, float],
    method: str,
    assumptions: list[str],
    *,
    sparse: bool,
) -> Prediction:
    """Returns what follows from the seconds of the parts of a step."""
    size, seconds = size_of(cfg), sum(parts.values())
    rate, price, peak = size.units / seconds, hardware.price, hardware.num_chips * hardware.chip.peak["bfloat16"]
    spread = interval_of("sparse" if sparse else "dense")
    return Prediction(
        hardware=hardware.name,
        unit=size.unit,
        step_seconds=seconds,
        interval=(seconds / spread, seconds * spread),
        mfu=size.flops_per_unit * rate / peak,
        full_mfu=size.full_flops_per_unit * rate / peak,
        units_per_second_per_chip=rate / hardware.num_chips,
        cost_per_trillion_units=None if price is None else 1e12 / rate / 3600 * price,
        breakdown=parts,
        method=method,
        assumptions=assumptions,
        versions={"dovetail": dovetail.__version__, "jax": jax.__version__},
    )


def run_of(cfg: Trainer.Config) -> Run:
    """Returns how a config lays a model out."""
    mesh = cfg.mesh
    return Run(
        sizes={axis: float(size) for axis, size in mesh.sizes.items()},
        rows=float(cfg.input.batch_size),
        microbatches=float(cfg.num_microbatches * mesh.num_microbatches),
        rounds=float(mesh.rounds),
        remat=REMAT[cfg.remat or "save_all"],
        bits=16.0,  # At most; those of the traced program count.
        offloaded=bool(cfg.remat and cfg.remat.startswith("offload")),
    )


def _assumptions(cfg: Trainer.Config, hardware: Hardware) -> list[str]:
    chip, found = hardware.chip, []
    if not is_known(chip):
        reached = constants_of(chip).reached
        found.append(f"products reach {reached:.2g} of the peak: no published step on this chip is known")
    if not (chip.links and chip.link_bandwidth) and hardware.num_chips > 1:
        found.append(f"links between chips bring {UNKNOWN_LINKS / 1e9:.0f} GB/s: theirs are not known")
    if cfg.remat is None:
        found.append("nothing is computed again in the backward pass")
    if cfg.remat and cfg.remat.startswith("offload"):
        found.append(f"the memory of the host is read and written at {HOST_BANDWIDTH / 1e9:.0f} GB/s a chip")
    if cfg.compute_dtype == "float32":
        found.append("products in float32 are as fast as in bfloat16")
    return found
