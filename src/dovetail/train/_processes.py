# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run agree on while it trains."""

import os

import jax
from jax.experimental import multihost_utils

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
