# SPDX-License-Identifier: Apache-2.0
"""The loss on data that is held out."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from dovetail.config import REQUIRED, ConfigError
from dovetail.data import Input
from dovetail.progress import phase

from ._evaluator import Evaluated, Evaluator, Findings
from ._fields import check_bounds


class HeldOutLoss(Evaluator):
    """The loss and the metrics of the objective over all of an input, and how much of it there is.

    Auxiliary losses are not in it.
    """

    class Config(Evaluator.Config):
        input: Input.Config = REQUIRED

    def __init__(self, cfg: Config, *, files: Mapping[str, bytes] | None = None, **kwargs: Any) -> None:
        super().__init__(cfg, files=files, **kwargs)
        path, of_run = f"{self._path}.input", self.program.cfg.input
        data = cfg.input.completed(path, of_run)
        # What the input of the run has read is not read again.
        self.input: Input = data.build(path=path, files=files if data.shares_files(of_run) else None)
        if self.input.is_endless:
            raise ConfigError(
                f"{path}: its data has no end, and so would an evaluation. Use a data set that ends, as with\n"
                f"  {path}.dataset.epochs=1."
            )
        self.program.check_input(path, data)
        check_bounds(self.program.cfg.model, self.input, path)
        self._step = self.program.eval_step()
        self._batches: int | None = None  # Once they have been counted.

    def run(self, at: Evaluated) -> Findings:
        sums: dict[str, np.ndarray] = {}
        batches, units = self.program.devices.batches(self.input), 0.0
        with phase("evaluating", self._batches, unit="batches") as passed:
            for batch in batches:
                found, count = jax.device_get(self._step(at.params, batch, batches.spec, at.step))
                for name, pair in {"loss": (found.sum, found.weight), **found.metrics}.items():
                    sums[name] = sums.get(name, np.zeros(2)) + np.asarray(pair, np.float64)
                units += float(count)
                passed.advance()
        self._batches = int(passed.done)
        if not sums or not sums["loss"][1]:
            raise ConfigError(f"{self._path}.input: there is nothing to evaluate on: the weight of all of it is 0.")
        means = {name: float(total / weight) if weight else 0.0 for name, (total, weight) in sums.items()}
        return Findings({**means, f"{batches.spec.unit}s": units})
