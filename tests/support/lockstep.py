# SPDX-License-Identifier: Apache-2.0
"""A program to supervise, without JAX: processes that make steps together, save, and fail as they are told.

    python -m support.lockstep SOCKET      (a zygote; its workers take the arguments DIRECTORY STEPS FAULTS)

FAULTS is a JSON list of `{"start": 1, "rank": 0, "step": 5, "do": "kill"}`: what a process does after it has made a
step. Without "start", it does so in each.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dovetail.launch import RESUMABLE, serve
from dovetail.progress import advanced, begun, failed, phase

SAVE_EVERY, SECONDS = 5, 0.01


def run(arguments: Sequence[str]) -> int:
    """Makes steps; returns the exit code."""
    directory, steps, faults = Path(arguments[0]), int(arguments[1]), json.loads(arguments[2])
    rank, count, start = (int(os.environ[name]) for name in ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "DOVETAIL_START"))
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    mine = [each for each in faults if each["rank"] == rank and each.get("start", start) == start]
    waited, slow = 0.0, 0.0
    with phase("restoring"):
        saved = directory / "saved"
        step = int(saved.read_text()) if saved.exists() else 0
        _meet(directory, f"{start}.restored", rank, count)
    while step < steps:
        begun(step + 1)
        time.sleep(slow)
        since = time.monotonic()
        stop = _meet(directory, f"{start}.{step + 1}", rank, count, "stop" if asked else "")
        waited += time.monotonic() - since
        time.sleep(SECONDS)
        step += 1
        advanced(step, steps, waited)
        if rank == 0 and (step % SAVE_EVERY == 0 or stop or step == steps):
            _write(saved, str(step))
            print(f"step {step} of {steps}, {count} processes", flush=True)
        if stop:
            return RESUMABLE
        for fault in mine:
            if fault["step"] == step:
                slow = _do(fault["do"]) or slow
    return 0


def _do(what: str) -> float | None:
    """Fails as it is told; returns by how many seconds its part of a step takes longer from now on."""
    match what.split():
        case ["slow", seconds]:
            return float(seconds)
        case ["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["stop"]:
            os.kill(os.getpid(), signal.SIGSTOP)
        case ["hang"]:
            time.sleep(1000)
        case ["crash"]:
            try:
                raise ArithmeticError("the flux is gone")
            except ArithmeticError as e:
                failed(e)
                raise
        case ["exit", code]:
            os._exit(int(code))
        case ["report", seconds, code]:
            time.sleep(float(seconds))
            failed(ArithmeticError("two and two are five"))
            os._exit(int(code))
        case ["wait", path]:
            while not Path(path).exists():
                time.sleep(0.01)


def _write(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text)
    new.rename(path)


def _meet(directory: Path, name: str, rank: int, count: int, said: str = "") -> bool:
    """Waits for the others; whether one of them has said something. If one fails, the others wait for ever."""
    _write(directory / f"{name}.{rank}", said)
    while True:
        there = [directory / f"{name}.{each}" for each in range(count)]
        if all(each.exists() for each in there):
            return any(each.read_text() for each in there)
        time.sleep(0.002)


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])), run))
