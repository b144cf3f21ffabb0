# SPDX-License-Identifier: Apache-2.0
"""The run that `tools/chaos.py` breaks: a small model, rows that say their number, and processes that fail when told.

Each process writes down which rows it was given at which step, and looks at each step for a file that tells it to
crash, to hang, to be slow, or that its clock jumps. CHAOS_STEP_SECONDS in its environment makes a host slow for good.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dovetail.config import REQUIRED
from dovetail.data import BatchSpec, Field, Input, NumberedInput
from dovetail.optim import EMA, ConstantSchedule, Learner
from dovetail.train import JsonLines, Terminal, Trainer
from dovetail.zoo.families import llama

ROWS, LENGTH, DIGITS, BASE = 8, 16, 4, 256
_FIELDS = {"tokens": "int32", "targets": "int32", "weights": "float32", "segments": "int32", "positions": "int32"}


class Rows(NumberedInput):
    """Random tokens that follow from the number of the row, which the first ones spell."""

    class Config(NumberedInput.Config):
        def batch_specs(self) -> tuple[BatchSpec, ...]:
            shape = (self.batch_size, LENGTH)
            fields = {name: Field(shape, dtype, ("batch", "seq")) for name, dtype in _FIELDS.items()}
            return (BatchSpec(fields, "token", self.batch_size * LENGTH),)

    def row(self, number: int) -> Mapping[str, Any]:
        tokens = np.random.Generator(np.random.Philox(key=number)).integers(0, BASE, LENGTH + 1)
        tokens[:DIGITS] = [number // BASE**digit % BASE for digit in range(DIGITS)]
        rest = {"weights": np.ones(LENGTH), "segments": np.ones(LENGTH), "positions": np.arange(LENGTH)}
        return {"tokens": tokens[:-1], "targets": tokens[1:], **rest}


def numbers(batch: Mapping[str, np.ndarray]) -> list[int]:
    """Returns the numbers of the rows in a batch."""
    return [int(sum(int(token) * BASE**digit for digit, token in enumerate(row[:DIGITS]))) for row in batch["tokens"]]


class WatchedInput(Input):
    """Another input, whose batches are written down, and which fails when it is told to."""

    class Config(Input.Config):
        inner: Input.Config = REQUIRED
        control: str = ""  # A directory: what was given, and what to do.
        may_change: ClassVar[frozenset[str]] = frozenset({"control"})

        def batch_specs(self) -> tuple[BatchSpec, ...]:
            return self.inner.batch_specs()

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self._inner: Input = cfg.inner.build(path="input.inner")

    @property
    def is_endless(self) -> bool:
        return self._inner.is_endless

    def iterator(self, *, shard_index: int = 0, shard_count: int = 1) -> Any:
        return _Watched(self._inner.iterator(shard_index=shard_index, shard_count=shard_count), Path(self.cfg.control))


class _Watched:
    def __init__(self, inner: Any, control: Path) -> None:
        rank, start = os.environ.get("JAX_PROCESS_ID", "0"), os.environ.get("DOVETAIL_START", "0")
        self._inner, self._fault = inner, control / f"fault.{rank}"
        self._given = control / f"given.{start}.{rank}"
        self._slow = 0

    def __getattr__(self, name: str) -> Any:
        """All else is that of the other one."""
        return getattr(self._inner, name)

    def __iter__(self) -> "_Watched":
        return self

    def __next__(self) -> Any:
        if self._fault.exists():
            what = self._fault.read_text()
            self._fault.unlink(missing_ok=True)
            self._do(what)
        if self._slow:
            self._slow -= 1
            time.sleep(0.05)
        time.sleep(float(os.environ.get("CHAOS_STEP_SECONDS", "0")))
        batch = next(self._inner)
        with self._given.open("a") as file:
            file.write(json.dumps([self._inner.get_state()["step"], numbers(batch)]) + "\n")
        return batch

    def _do(self, what: str) -> None:
        match what.split():
            case ["crash"]:
                raise ArithmeticError("a fault that was injected")
            case ["hang"]:
                time.sleep(10_000)
            case ["slow"]:
                self._slow = 40
            case ["clock", seconds]:
                # As if somebody had set the clock of this host. Nothing else can be meant by it here.
                real, jump = time.time, float(seconds)
                time.time = lambda: real() + jump
            case _:
                raise ValueError(f"does not know {what!r}")


def run() -> Trainer.Config:
    """Returns the run: dropout, a moving average, all that could spoil a resumed run."""
    model = llama(vocab_size=260, dim=16, num_layers=2, num_heads=4, num_kv_heads=2, hidden_dim=32, tied=True)
    return Trainer.Config(
        model=model.set_in("stack.layer.dropout.rate", 0.1),
        learner=Learner.Config(schedule=ConstantSchedule.Config(peak=1e-3), ema=EMA.Config(decay=0.9)),
        input=WatchedInput.Config(batch_size=ROWS, inner=Rows.Config(batch_size=ROWS)),
        steps=100,
        directory="runs/chaos",
        observers=(Terminal.Config(), JsonLines.Config()),
        log_every=10,
        save_every=4,
    )
