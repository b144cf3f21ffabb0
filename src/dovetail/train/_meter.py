# SPDX-License-Identifier: Apache-2.0
"""How fast a run goes: units per second, their share of what the machine can do, and what the host adds."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.hardware import chip_of


class Peak(NamedTuple):
    """What the devices of a run could do at best: what its `mfu` is a share of."""

    flops: float | None  # Operations per second, of all devices together; None: not known.
    text: str  # What it is, for people.


def peak_of(devices: Sequence[Any], dtype: str) -> Peak:
    """Returns the peak of devices for products of a dtype: from the catalogue of hardware, or of a CPU as measured."""
    kind, count = devices[0].device_kind, len(devices)
    if devices[0].platform == "cpu":
        flops = measured_peak() * jax.process_count()
        return Peak(flops, f"{flops / 1e9:,.0f} GFLOP/s, float32 products as measured here")
    chip = chip_of(kind)
    if chip is None:
        return Peak(None, f"not known: no chip of the hardware catalogue calls itself {kind!r}, so there is no mfu")
    found = dtype if dtype in chip.peak else "bfloat16"  # Of float32 there is no figure; others use this one, too.
    flops = count * chip.peak[found] / chip.devices
    return Peak(flops, f"{flops / 1e12:,.0f} TFLOP/s, {found} products of {count} x {kind}")


class Meter:
    """Measures from one reading to the next; time for evaluation and saving is left out by `restart`.

    `unit` is what throughput is counted in, as the input of the run declares it; `data_wait` gives the seconds in which
    devices have waited for a batch, ever.
    """

    def __init__(self, unit: str, peak: Peak, data_wait: Callable[[], float] = lambda: 0.0) -> None:
        self._unit, self._peak, self._data_wait = unit, peak.flops, data_wait
        self._started = False
        self.waited = 0.0  # Seconds for the devices, ever.
        self.restart()

    def restart(self) -> None:
        """Starts to measure now."""
        self._start, self._device, self._units, self._flops, self._steps = time.perf_counter(), 0.0, 0.0, 0.0, 0
        self._waited_for_data = self._data_wait()

    @contextlib.contextmanager
    def device(self) -> Iterator[None]:
        """Around what hands work to the device or waits for it; the rest of the time is the host's own."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self._device += seconds
        self.waited += seconds

    def add(self, units: float, flops_per_unit: float) -> None:
        """Counts a finished step."""
        if not self._started:  # The first one compiles.
            self._started = True
            self.restart()
        else:
            self._units += units
            self._flops += units * flops_per_unit
            self._steps += 1

    def read(self) -> dict[str, float]:
        """Returns the figures since the last reading, if a step was finished since."""
        if not self._steps:
            return {}
        seconds = time.perf_counter() - self._start
        rate, flops, host = self._units / seconds, self._flops / seconds, (seconds - self._device) / self._steps
        waited = min((self._data_wait() - self._waited_for_data) / seconds, 1.0)
        self.restart()
        share = {} if self._peak is None else {"mfu": flops / self._peak}
        return {f"{self._unit}s_per_second": rate, **share, "host_ms": host * 1e3, "data_wait": waited}


def measured_peak(size: int = 1024, seconds: float = 0.3) -> float:
    """Returns the operations per second of float32 matrix products that this machine reaches, on all its cores."""
    square = jnp.ones((size, size))
    product = jax.jit(jnp.dot)
    product(square, square).block_until_ready()
    best, start = 0.0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        began = time.perf_counter()
        product(square, square).block_until_ready()
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best
