# SPDX-License-Identifier: Apache-2.0
"""How a run is, as it says itself when it is asked: how far, how fast, and whether it goes on."""

import math
import os
import signal
import statistics
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.progress import Status, StatusServer, Watcher, recipe

from ._goodput import SUPERVISED, Goodput

_RECENT = 50  # Steps that pace and hangs are judged by.
_HANGS = 20.0  # A step hangs when it takes so many times the longest of late ...
_LEAST = 60.0  # ... and at least so many seconds;
_LONG = 900.0  # anything else, when it takes so many.
_RATE = "_per_second"


class Watched(Watcher):
    """Keeps what there is to tell. What costs something is done when somebody asks."""

    def __init__(self, goodput: Goodput, directory: Path, steps: int) -> None:
        self._goodput, self._directory, self._steps = goodput, directory, steps
        self._phases: list[str] = []
        self._step, self._first = 0, True
        self._values: Mapping[str, float] = {}
        self._problem = ""
        self._at = time.monotonic()
        self._intervals: deque[float] = deque(maxlen=_RECENT)

    def server(self, status: Status) -> StatusServer | None:
        """Returns what serves this; None where it is off, or a supervisor does it."""
        if not status.on or SUPERVISED in os.environ:
            return None
        actions = {"stop": _sends(signal.SIGTERM), "profile": _sends(signal.SIGUSR2)}
        return StatusServer(status, self.snapshot, actions=actions, directory=self._directory)

    def metrics(self, values: Mapping[str, float]) -> None:
        """What was logged last."""
        self._values = values

    def started(self, name: str) -> None:
        self._phases.append(name)
        self._at = time.monotonic()

    def ended(self, name: str, seconds: float | None) -> None:
        self._phases.pop()
        self._at, self._first = time.monotonic(), True

    def begun(self, step: int) -> None:
        pass

    def advanced(self, done: int, total: int, waited: float) -> None:
        at = time.monotonic()
        if not self._first:
            self._intervals.append(at - self._at)
        self._step, self._steps, self._at, self._first = done, total, at, False

    def failed(self, error: BaseException) -> None:
        self._problem = f"failed: {type(error).__name__}: {error}"[:2000]

    async def snapshot(self) -> dict[str, Any]:
        """Returns what there is to tell at the moment."""
        quiet, values, phases = time.monotonic() - self._at, dict(self._values), list(self._phases)
        kind = self._goodput.kind
        pace = statistics.median(self._intervals) if self._intervals else None
        loss = values.get("loss")
        here = {"process": 0, "slot": "", "heartbeat_seconds": 0.0, "quiet_seconds": round(quiet, 3)}
        return {
            "run": str(self._directory),
            "recipe": recipe(),
            "phase": phases[-1] if phases else kind,
            "problem": self._problem or self._hanging(quiet, phases[-1] if phases else "", kind),
            "step": self._step,
            "steps": self._steps,
            "loss": loss if loss is None or math.isfinite(loss) else None,
            "rate": {name.removesuffix(_RATE): rate for name, rate in values.items() if name.endswith(_RATE)},
            "seconds_left": None if pace is None else round(pace * (self._steps - self._step), 1),
            "goodput": self._goodput.account().named(),
            "processes": [{**here, "step": self._step}],
            "restarts": 0,
            "failures": [],
        }

    def _hanging(self, quiet: float, phase: str, kind: str) -> str:
        """Returns why it looks as if the run hangs; empty if it does not."""
        longest = max(self._intervals, default=None)
        stepping = not phase and kind in ("step", "data_wait") and longest is not None
        limit = max(_LEAST, _HANGS * longest) if stepping and longest is not None else _LONG
        what = f"in {phase!r}" if phase else f"after step {self._step} ({kind})"
        return f"nothing has changed for {quiet:.0f} s {what}, of {limit:.0f} s" if quiet > limit else ""


def _sends(number: signal.Signals) -> Any:
    return lambda: os.kill(os.getpid(), number)
