# SPDX-License-Identifier: Apache-2.0
"""What part of the time a run gets ahead, where chips fail or are taken away."""

import math
from typing import NamedTuple

# A chip-hour: 419 unexpected stops of 16,384 H100 in 54 days (Llama 3, arXiv:2407.21783).
FAILURES = 419 / (54 * 24 * 16_384)
_HOUR = 3600.0


class Goodput(NamedTuple):
    """How much is left of the time, and how often to save for that."""

    share: float  # Of the time: steps that are kept. 0: a run would never get ahead.
    checkpoint_every: float  # Seconds; infinite where nothing fails.


def goodput(chips: int, interruptions: float, checkpoint_seconds: float, recovery_seconds: float) -> Goodput:
    """Returns what is left with the best interval between checkpoints.

    A stop costs the recovery and, on average, half an interval; a checkpoint costs the seconds that steps wait for it.
    With `t` seconds between checkpoints the loss is `s / t + rate * (t / 2 + recovery)`, least at `sqrt(2 s / rate)`
    (Young, 1974).

    Args:
        chips: that have to work, all of them.
        interruptions: for each chip and hour.
        checkpoint_seconds: that steps wait for a checkpoint.
        recovery_seconds: from a stop until steps are made again.

    >>> found = goodput(100_000, 2.0e-5, 5.0, 300.0)
    >>> round(found.share, 2), round(found.checkpoint_every)
    (0.76, 134)
    """
    rate = interruptions * chips / _HOUR
    if not rate:
        return Goodput(1.0, math.inf)
    every = math.sqrt(2 * checkpoint_seconds / rate)
    waits = checkpoint_seconds / every if every else 0.0
    return Goodput(max(0.0, 1 - waits - rate * (every / 2 + recovery_seconds)), every)
