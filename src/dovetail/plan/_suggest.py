# SPDX-License-Identifier: Apache-2.0
"""What would make a run fit: the cheapest changes, each tried with the real compiler."""

import math
from collections.abc import Iterator
from typing import Any

from dovetail.config import override
from dovetail.hardware import Hardware
from dovetail.parallel import divisors
from dovetail.train import Trainer

from ._report import compile_lowered, lower_step, report_on

_TRIES = 5  # Programs that are compiled at most.


def suggestions(cfg: Trainer.Config, hardware: Hardware) -> list[dict[str, Any]]:
    """Returns changes of a config that does not fit, with what they make of it. The last one fits, if any does."""
    found: list[dict[str, Any]] = []
    for changes in _changes(cfg):
        step = lower_step(override(cfg, changes), hardware)
        report = report_on(step, compile_lowered(step)[0])
        found.append({"changes": changes, "fits": report.fits, "hbm_per_chip_gib": report.hbm_per_chip_gib})
        if report.fits or len(found) == _TRIES:
            break
    return found


def _changes(cfg: Trainer.Config) -> Iterator[list[str]]:
    """Yields changes, the cheapest first: compute again, then split the batch, then split the state further."""
    smallest = [] if cfg.remat == "full" else ["remat=full"]
    if cfg.remat not in ("save_qkvo", "offload_qkvo", "full"):
        yield ["remat=save_qkvo"]
    if smallest:
        yield smallest
    sizes = cfg.mesh.sizes
    rows = cfg.input.batch_size // math.prod(sizes[axis] for axis in ("data", "fsdp", "expert"))
    more = [parts for parts in divisors(rows) if parts > cfg.num_microbatches]
    for parts in (more[len(more) // 2 :: len(more)] + more[-1:]) if more else []:
        yield [*smallest, f"num_microbatches={parts}"]
    if sizes["data"] > 1:
        last = [f"num_microbatches={more[-1]}"] if more else []
        yield [*smallest, *last, "mesh.data=1", "mesh.across_slices={}", f"mesh.fsdp={sizes['data'] * sizes['fsdp']}"]
