# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run agree on while it trains."""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import multihost_utils

from dovetail.progress import note

from ._goodput import SUPERVISED

_REACHED = "DOVETAIL_REACHED"


def asked_to_stop(step: int) -> bool:
    """Whether one of the processes was asked to stop; all of them hear of it at the same step."""
    return jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step)


def steps_lost(step: int) -> int:
    """Returns how many steps after one the supervisor had seen done before it started these processes."""
    return max(int(os.environ.get(_REACHED, "0")) - step, 0)


def is_supervised() -> bool:
    """Whether a supervisor has started this process, and ends it if need be."""
    return SUPERVISED in os.environ


@contextlib.contextmanager
def interruptible() -> Iterator[list[bool]]:
    """Yields a list that is filled when the user presses Ctrl-C or the system asks to stop; a second time, it stops."""
    asked: list[bool] = []

    def ask(number: int, frame: Any) -> None:
        if asked and number == signal.SIGTERM and is_supervised():
            return  # From the engine and from the supervisor, which ends what takes too long.
        if asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        asked.append(True)
        note("\nStopping after this step, to save it. Press Ctrl-C again to stop at once.", always=True)

    if jax.process_count() == 1:
        handlers: dict[int, Any] = {signal.SIGINT: ask, signal.SIGTERM: ask}
    else:  # JAX hears SIGTERM, and `asked_to_stop` brings it to all; Ctrl-C is an error, before which they save.
        handlers = {signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
