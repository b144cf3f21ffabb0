# SPDX-License-Identifier: Apache-2.0
"""What needs JAX, in a process of its own: the server starts in a moment, and stays up whatever happens there.

`python -m dovetail.board WHAT PLACE [HARDWARE]` prints JSON: of `config` the config of the newest checkpoint in a
directory of checkpoints, of `memory` what a run takes by module, and a prediction for hardware. The config is data:
code of the user's own that it names is not loaded.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

TOKEN = "DOVETAIL_BOARD_TOKEN"  # The environment may have it.
_SECONDS = 60.0
_MOST = 64 << 20  # Bytes of an answer.


class Unavailable(Exception):
    """Something cannot be computed; the message says why."""


class Children:
    """Runs one child at a time."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds, self._turn, self._lock = seconds, threading.Lock(), threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._command = [sys.executable, "-m", "dovetail.board"]

    def ask(self, *arguments: str) -> Any:
        """Returns what a child prints; raises `Unavailable` with what it says, or when it takes too long."""
        if not self._turn.acquire(timeout=self._seconds):
            raise Unavailable("Another answer is being computed, and takes long. Ask again later.")
        try:
            return self._asked(arguments)
        finally:
            self._turn.release()

    def _asked(self, arguments: Sequence[str]) -> Any:
        environment = {name: value for name, value in os.environ.items() if name != TOKEN} | {"JAX_PLATFORMS": "cpu"}
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self._lock:
            if self._is_closed:
                raise Unavailable("The board ends.")
            command = [*self._command, *arguments]
            child = subprocess.Popen[bytes](command, env=environment, start_new_session=True, **pipes)
            self._running = child
        try:
            out, error = child.communicate(timeout=self._seconds)
        except subprocess.TimeoutExpired as e:
            self._kill(child)
            child.communicate()
            raise Unavailable(f"It took more than {self._seconds:g} seconds, and was ended.") from e
        finally:
            with self._lock:
                self._running = None
        if child.returncode == 2:
            raise Unavailable(error.decode(errors="replace").strip()[-2000:])
        if child.returncode or len(out) > _MOST:
            said = error.decode(errors="replace").strip().rpartition("\n")[2][:500]
            raise Unavailable(f"It failed (exit code {child.returncode}): {said or 'it said nothing.'}")
        return json.loads(out)

    def close(self) -> None:
        """Ends what runs."""
        with self._lock:
            self._is_closed = True
            if self._running is not None:
                self._kill(self._running)

    def _kill(self, child: subprocess.Popen[bytes]) -> None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            child.kill()


def answer(arguments: Sequence[str]) -> Any:
    """Returns what a child prints."""
    from dovetail.checkpoint import load_config
    from dovetail.config import ConfigError, from_json, to_text

    what, place, *rest = arguments
    stored = load_config(place)
    try:
        cfg = from_json(stored.config)
    except ConfigError as e:
        raise ConfigError(f"The config of step {stored.step} cannot be built here: {e}") from e
    if what == "config":
        return {"step": stored.step, "config": to_text(cfg)}
    return {"step": stored.step, **_memory(cfg, rest[0] if rest else None)}


def _memory(cfg: Any, on: str | None) -> dict[str, Any]:
    from dovetail.train import parts_of

    parts = parts_of(cfg)
    named = [
        {
            "path": path,
            "parameters": part.parameters,
            "parameter_bytes": part.parameter_bytes,
            "optimizer_bytes": part.optimizer_bytes,
        }
        for path, part in parts.items()
        if part.parameter_bytes or part.optimizer_bytes
    ]
    return {"parts": named, "predicted": _whole(cfg, parts) | (_predicted(cfg, on) if on else {})}


def _whole(cfg: Any, parts: Any) -> dict[str, Any]:
    """Returns what all devices together hold, whatever they are."""
    from dovetail.plan import row_activations

    devices = cfg.mesh.num_devices
    parameters = sum(part.parameter_bytes for part in parts.values())
    rows = cfg.input.batch_size / cfg.num_microbatches
    return {
        "devices": devices,
        "parameter_bytes": parameters,
        "gradient_bytes": parameters,
        "optimizer_bytes": sum(part.optimizer_bytes for part in parts.values()),
        "activation_bytes": round(row_activations(cfg) * rows),
    }


def _predicted(cfg: Any, on: str) -> dict[str, Any]:
    """Returns what is predicted for hardware, from the traced program."""
    from dovetail.hardware import hardware
    from dovetail.plan import estimate, on_hardware, predict

    found = hardware(on)
    placed = on_hardware(cfg, found.name)
    step, memory = predict(placed, found), estimate(placed, found)
    limit = {} if memory.limit_gib is None else {"chip_limit_bytes": round(memory.limit_gib * 2**30)}
    return {
        "hardware": found.name,
        "step_seconds": step.step_seconds,
        "step_seconds_interval": list(step.interval),
        "mfu": step.mfu,
        f"{step.unit}s_per_second": step.units_per_second_per_chip * found.num_chips,
        "chip_state_bytes": round(memory.state_gib * 2**30),
        "chip_activation_bytes": round(memory.activations_gib * 2**30),
        **limit,
        "assumptions": list(step.assumptions),
    }
