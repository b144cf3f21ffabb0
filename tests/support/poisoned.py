# SPDX-License-Identifier: Apache-2.0
"""An input with bad batches, and a run on it that takes seconds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.optim import EMA, ConstantSchedule, Learner
from dovetail.train import JsonLines, Spikes, Trainer

from .objectives import Captions, Matching


class Poisoned(Captions):
    """Images with captions, of which some batches, counted from 1, are far from all others, and some are not there."""

    class Config(Captions.Config):
        bad: tuple[int, ...] = ()
        not_finite: tuple[int, ...] = ()
        without: tuple[int, ...] = ()

    def row(self, number: int) -> Mapping[str, Any]:
        batch, place = divmod(number, self.cfg.batch_size)
        for left_out in sorted(self.cfg.without):
            batch += batch >= left_out - 1
        row = super().row(batch * self.cfg.batch_size + place)
        factor = 100.0 if batch + 1 in self.cfg.bad else np.nan if batch + 1 in self.cfg.not_finite else 1.0
        return {**row, "caption": row["caption"] * factor}


def poisoned_run(directory: Path, *, spikes: Spikes.Config | None = None, **fields: Any) -> Trainer.Config:
    """A trainer of 14 steps that saves every 4. Nothing is a spike before 4 steps had an update."""
    names = ("bad", "not_finite", "without")
    batches = {name: fields.pop(name) for name in names if name in fields}
    return Trainer.Config(
        model=Matching.Config(),
        learner=Learner.Config(schedule=ConstantSchedule.Config(peak=1e-2), ema=EMA.Config(decay=0.9)),
        input=Poisoned.Config(batch_size=8, **batches),
        steps=14,
        directory=str(directory / "run"),
        observers=(JsonLines.Config(),),
        log_every=1,
        save_every=4,
        spikes=spikes or Spikes.Config(window=8, warmup=4),
    ).set(**fields)
