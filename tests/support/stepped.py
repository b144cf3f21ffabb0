# SPDX-License-Identifier: Apache-2.0
"""An engine that goes on when it is told to, on a fake device, so that a test knows what happens when."""

import numpy as np

from dovetail.serve import Engine
from dovetail.serve._request import Draw, Request

from .fake_device import FakeDevice

GREEDY = Draw(temperature=0)


class Stepped:
    """An engine without a thread, which goes on when it is told to."""

    def __init__(self, shape, device=None, **fields):
        self.device = device or FakeDevice(shape)
        self.engine = Engine.Config(**fields).build(device=self.device)
        self.engine._state = "running"

    def submit(self, tokens, max_tokens=4, **fields):
        fields.setdefault("draw", GREEDY)
        return self.engine.submit(Request(tokens=tuple(tokens), max_tokens=max_tokens, **fields))

    def step(self, times=1):
        for _ in range(times):
            if self.engine._inbox or self.engine._answers or self.engine._calls:
                self.engine._turn()

    def finish(self, *streams):
        for _ in range(3000):
            if not self.engine._open and not self.engine._calls:
                return [stream.result(0) for stream in streams]
            self.step()
        raise AssertionError(f"never ends: {self.engine.stats()}")


def prompt(length, seed=0):
    return tuple(np.random.default_rng(seed).integers(0, 50, length).tolist())


class Even:
    """A grammar: three even tokens."""

    def __init__(self, count=0):
        self.count = count

    def mask(self):
        return np.array([0x55555555, 0x55555555], np.uint32).view(np.int32)

    def accept(self, token):
        assert token % 2 == 0
        self.count += 1

    def is_done(self):
        return self.count == 3

    def copy(self):
        return Even(self.count)
