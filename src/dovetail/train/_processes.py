# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run tell each other while it trains."""

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def is_first() -> bool:
    """Whether this process writes what is written once."""
    return jax.process_index() == 0


def all_values(value: Any) -> list[Any]:
    """Returns the values, JSON data, of all processes. All have to call it, at the same place."""
    if jax.process_count() == 1:
        return [value]
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(data.size, np.int32))
    padded = np.zeros(int(np.max(sizes)), np.uint8)
    padded[: data.size] = data
    everyone = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(bytes(each[:size])) for each, size in zip(everyone, np.asarray(sizes).tolist(), strict=True)]


def asked_to_stop(step: int) -> bool:
    """Whether one of the processes was asked to stop; all of them hear of it at the same step."""
    return jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step)
