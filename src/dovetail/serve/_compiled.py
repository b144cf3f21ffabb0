# SPDX-License-Identifier: Apache-2.0
"""A served model on its devices: programs compiled, parameters placed, rows as programs take them."""

import concurrent.futures
import os
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from dovetail.module import merged
from dovetail.nn import packed_params, quantised_params
from dovetail.progress import counting

from ._apart import layers_apart, params_apart
from ._device import Rows
from ._programs import Key, ServedModel


def compiled(model: ServedModel, keys: Iterable[Key]) -> dict[Key, Callable[..., Any]]:
    """Returns programs; XLA compiles several at once, as it uses one thread for most of its work."""
    keys = list(keys)
    count, running = counting(len(keys), "programs"), dict[Key, concurrent.futures.Future[Any]]()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for key in keys:
            running[key] = pool.submit(model.traced(key).lower().compile)
            running[key].add_done_callback(lambda _: count.advance())
        return {key: each.result() for key, each in running.items()}


def placed(model: ServedModel, params: Any) -> Any:
    """Returns parameters of a run as the programs take them."""
    if model.rounds:
        params = quantised_params(model.source.build(), params)  # Before they are copied in full.
    if model.serving.apart:
        params = params_apart(model.source, params, layers_apart(model.source).build())
    if model.packs:
        params = packed_params(model.program.model, jax.tree.map(lambda x: x, params))
    params = jax.tree.map(lambda x, like: x.astype(like.dtype), params, model.params)
    places = model.program.shardings
    return params if places is None else jax.device_put(params, merged(places.params, places.run_state))


def row_arrays(rows: Rows) -> dict[str, np.ndarray]:
    """Returns what the layers are told of rows, besides their tokens and tables."""
    return {name: getattr(rows, name) for name in ("slots", "source", "fresh", "start", "count", "follows")}
