# SPDX-License-Identifier: Apache-2.0
"""The engine without a server: its step against the step of its device alone, and what the host does in a step.

Arguments, after the problem, which is not used: the directory of the model, and overrides as of `dovetail serve`.
"""

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from _problem import answer_each

from dovetail.config import override
from dovetail.serve import Draw, Engine, ModelDevice, Request
from dovetail.serve._device import Device, DeviceShape, Drawn, Group, Rows
from dovetail.serve.http import Serve
from dovetail.train import load_initial
from dovetail.zoo.recipes import finetune

_PROMPT, _STEPS, _TIMES = 128, 24, 3  # Tokens of a prompt, steps that are timed together, and how often.
_SLOTS, _WAIT = 64, 0.004  # Of the device that computes nothing: slots, and seconds of a step.


class _Idle(Device):
    """Computes nothing, and takes a while for it: what is left is the work of the host."""

    def __init__(self) -> None:
        self.shape = DeviceShape(
            slots=_SLOTS,
            page=16,
            groups=(Group("pages", None, 64 * _SLOTS + 1),),
            snapshots=0,
            has_row_state=False,
            max_length=1024,
            vocab_size=50_000,
            rows=(1, 4, 16, _SLOTS),
            chunks=(16, 64, 256),
            max_logprobs=20,
        )

    def run(self, rows: Rows) -> Any:
        return Drawn(np.ones(len(rows.slots), np.int32))

    def fetch(self, started: Any) -> Drawn:
        time.sleep(_WAIT)
        return started

    def save(self, slot: int, snapshot: int) -> None:
        pass

    def count(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        pass

    def swap(self, params: Any) -> None:
        pass


def decoding_rows(shape: DeviceShape, count: int, place: int) -> Rows:
    """Returns a call that reads a token of each of so many sequences, all of them this long."""
    num = next(size for size in shape.rows if size >= count)
    used = np.arange(num) < count
    slots = np.where(used, np.arange(num), shape.slots).astype(np.int32)
    held, tables = -(-(_PROMPT + _STEPS) // shape.page), dict[str, np.ndarray]()
    for group in shape.groups:  # As an engine would fill it: what lies behind the sequence points to page 0.
        tables[group.name] = table = np.zeros((num, shape.row_pages), np.int32)
        table[:count, :held] = np.arange(count * held).reshape(count, held) % (group.pages - 1) + 1
    return Rows(
        ids=np.ones((num, 1), np.int32),
        slots=slots,
        source=slots,
        fresh=np.zeros(num, bool),
        start=np.where(used, place, 0).astype(np.int32),
        count=used.astype(np.int32),
        follows=used,
        tables=tables,
        draws=used,
    )


def bare_step(device: Device, count: int) -> float:
    """Returns the seconds of a step that the device makes when it is told at once what comes next."""
    steps = [decoding_rows(device.shape, count, _PROMPT + i) for i in range(_STEPS)]
    under_way, times = device.run(steps[0]), list[float]()
    for rows in steps[1:]:
        following = device.run(rows)
        device.fetch(under_way)
        times.append(time.perf_counter())
        under_way = following
    device.fetch(under_way)
    return (time.perf_counter() - times[0]) / (_STEPS - 1)


def engine_step(engine: Engine, count: int, rng: random.Random) -> float:
    """Returns the seconds of a step that the engine makes for so many requests."""
    lengths = [*[_STEPS + 2 * count] * (count - 1), _STEPS]  # The last one starts last, and has others beside it.
    streams = [engine.submit(_request(rng, _PROMPT, length, engine.shape.vocab_size)) for length in lengths]
    _read_all(streams)
    first, ended = streams[-1].first, streams[-1].ended
    assert first is not None
    assert ended is not None
    return (ended - first) / (_STEPS - 1)


def host_step(engine: Engine, rng: random.Random) -> float:
    """Returns the seconds of a step in which the engine is busy, with all slots in use."""
    before = engine.stats()
    _read_all([engine.submit(_request(rng, 16, 256, engine.shape.vocab_size)) for _ in range(_SLOTS)])
    after = engine.stats()
    return (after.host_seconds - before.host_seconds) / (after.steps - before.steps)


def _request(rng: random.Random, prompt: int, length: int, vocab: int) -> Request:
    tokens = tuple(rng.randrange(20, vocab) for _ in range(prompt))
    return Request(tokens=tokens, max_tokens=length, draw=Draw(temperature=0.0))


def _read_all(streams: Sequence[Any]) -> None:
    """Reads answers as a server does, in an event loop."""

    async def read(stream: Any) -> None:
        async for progress in stream:
            if progress.error:
                raise SystemExit(f"serve_engine: {progress.error}")

    async def read_all() -> None:
        await asyncio.gather(*map(read, streams))

    asyncio.run(read_all())


def main() -> None:
    serving = override(Serve(), sys.argv[3:]).serving
    device, rng = ModelDevice(serving, load_initial(finetune(f"hf:{sys.argv[2]}"))), random.Random(0)
    counts = [count for count in (1, 8) if count <= device.shape.slots]
    with Engine.Config().build(device=device) as engine, Engine.Config().build(device=_Idle()) as idle:

        def step() -> dict[str, object]:
            found: dict[str, object] = {"host": host_step(idle, rng)}
            for count in counts:  # Nobody else uses the device meanwhile: the engine waits for requests.
                both = [(bare_step(device, count), engine_step(engine, count, rng)) for _ in range(_TIMES)]
                bare, whole = (statistics.median(each) for each in zip(*both, strict=True))
                found |= {f"bare {count}": bare, f"engine {count}": whole}
            return found

        answer_each(step)


if __name__ == "__main__":
    main()
