# SPDX-License-Identifier: Apache-2.0
"""Profiles: traces of a few steps, by the config or on request, with what leads from operations to config paths."""

import json
import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from dovetail.aot import Hlo, config_path
from dovetail.config import ConfigBase, ConfigError
from dovetail.module import Module, specs

from ._goodput import Goodput

PROFILE = "profile"  # In the directory of a run.
ABOUT = "about.json"  # Beside a trace.
_STEPS = re.compile(r"(\d+)(?:-(\d+))?")
_MOST = 100  # Steps of a profile: traces are large.
_ASKED = 3  # Steps of one that is asked for.

_log = logging.getLogger("dovetail")


class Profile(ConfigBase):
    """Which steps are traced, by the first process. SIGUSR2 asks any process for its next three steps."""

    steps: str | None = None  # As in "10-12", or "10".

    def range(self) -> range:
        """Returns the steps; raises if they are none."""
        if self.steps is None:
            return range(0)
        found = _STEPS.fullmatch(self.steps)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last < first + _MOST:
            raise ConfigError(
                f"profile.steps is {self.steps!r}, expected steps as in 10-12, counted from 1, at most {_MOST} of them."
            )
        return range(first, last + 1)


class Profiler:
    """Traces steps. The devices are waited for before the first and after the last, so that no other is in it."""

    def __init__(self, steps: range, directory: Path, model: Module, goodput: Goodput) -> None:
        self._steps, self._directory, self._model, self._goodput = steps, directory, model, goodput
        self._asked = threading.Event()
        self._last = 0  # Of the trace that is being made; 0: none is.

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hears SIGUSR2 meanwhile, and ends what is begun."""
        before = signal.signal(signal.SIGUSR2, lambda *_: self._asked.set())
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR2, before)
            if self._last:
                self._last = 0
                jax.profiler.stop_trace()

    def before(self, step: int, state: Any) -> None:
        """Starts a trace, if one is to start with a step that is about to be handed to the devices."""
        if self._last or not (step in self._steps or self._asked.is_set()):
            return
        self._last = self._steps[-1] if step in self._steps else step + _ASKED - 1
        self._asked.clear()
        self._first, where = step, f"step_{step}"
        if jax.process_count() > 1:
            where += f"_process_{jax.process_index()}"
        self._where = self._directory / PROFILE / where
        jax.block_until_ready(state)
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # Each call of a function would take longer than the step.
        try:
            self._where.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self._where), profiler_options=options)
        except (OSError, RuntimeError) as e:  # As when somebody else traces already.
            self._last, self._steps = 0, range(0)
            _log.warning("profile: none is made: %s", e)
        self._began = time.monotonic()

    def after(self, step: int, state: Any, compiled: Callable[..., Any]) -> None:
        """Ends a trace after its last step."""
        if not self._last or step < self._last:
            return
        jax.block_until_ready(state)
        seconds = time.monotonic() - self._began
        with self._goodput.spent("evaluation"):
            self._last = 0
            try:
                jax.profiler.stop_trace()
                about = {"first": self._first, "last": step, "seconds": seconds, **_paths(compiled, self._model)}
                (self._where / ABOUT).write_text(json.dumps(about), encoding="utf-8")
            except (OSError, RuntimeError) as e:
                _log.warning("profile: that of step %d cannot be written: %s", step, e)
            else:
                _log.warning("profile: `dovetail profile %s` prints it, xprof shows it", self._where)


def _paths(compiled: Any, model: Module) -> dict[str, Any]:
    """Returns the name of a compiled program, and the config path and the kind of each of its operations."""
    text = compiled.as_text()
    program, tree = Hlo(text), specs(model)
    name = re.match(r"HloModule ([\w.\-]+)", text)
    paths: dict[str, tuple[str, str]] = {}
    for each in program.instructions.values():
        names = [each.op_name]
        if each.opcode in ("fusion", "call"):  # What it was made of may say more than its own name.
            names += [inner.op_name for called in each.called for inner in program.below(called)]
        paths[each.name] = (config_path(names[:1], tree) or config_path(names[1:], tree), each.opcode)
    return {"module": name[1] if name else "", "operations": paths}
