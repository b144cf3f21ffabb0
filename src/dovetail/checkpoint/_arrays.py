# SPDX-License-Identifier: Apache-2.0
"""The arrays of a step: handed to Orbax by path, and proved to be the same when they come back."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._errors import CheckpointError, CorruptionError, ElsewhereError, bullets, reason
from ._fingerprint import to_text
from ._leaves import from_stored, stored_form, to_stored
from ._step import ARRAYS, Manifest, damaged_files

_SLICE_BYTES = 1 << 20  # Of a leaf that replicas share the writing of: each slice is a program to compile.
_SECONDS = 0.2  # Between two looks at whether another process has failed.


def start_writing(
    path: Path, leaves: Mapping[str, Array], *, compress: bool, in_vain: Callable[[], bool]
) -> Callable[[], None]:
    """Copies the leaves to the host and starts to write them; the result waits for the end, and raises its error.

    The leaves may be donated or deleted as soon as this returns. With several processes, Orbax waits minutes for one
    that has failed; `in_vain` is asked now and then whether one has.
    """
    from orbax.checkpoint import v1 as ocp  # Here, as below: it takes a while, and most commands do not need it.

    stored = {name: to_stored(leaf) for name, leaf in leaves.items() if leaf.size}
    context = ocp.Context()
    context.array.saving.use_compression = compress
    context.array.saving.min_slice_bytes_for_replica_parallel = _SLICE_BYTES
    # Else Orbax has threads that wait for directories, long after a failure to make them, and the process cannot end.
    context.asynchronous.create_directories_asynchronously = False
    with context:
        response = ocp.save_async(str(path / ARRAYS), stored)
    return response.result if jax.process_count() == 1 else lambda: _awaited(response.result, in_vain)


def _awaited(finish: Callable[[], None], in_vain: Callable[[], bool]) -> None:
    errors: list[Exception] = []

    def run() -> None:
        try:
            finish()
        except Exception as e:
            errors.append(e)

    thread = threading.Thread(target=run, name="arrays", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_SECONDS)
        if thread.is_alive() and in_vain():
            raise ElsewhereError
    if errors:
        raise errors[0]


def load(path: Path, manifest: Manifest, wanted: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the leaves in `wanted`, laid out as it says, not verified yet."""
    from orbax.checkpoint import v1 as ocp

    infos = manifest.leaves
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    try:
        asked = {name: stored_form(leaf, infos[name]) for name, leaf in wanted.items()}
        # Arrays without elements are not on disk.
        stored = {name: jnp.zeros(x.shape, x.dtype, device=x.sharding) for name, x in asked.items() if not x.size}
        to_read = {name: x for name, x in asked.items() if x.size}
        with context:
            stored |= ocp.load(str(path / ARRAYS), to_read) if to_read else {}
        return jax.block_until_ready(
            {name: from_stored(stored[name], leaf, infos[name]) for name, leaf in wanted.items()}
        )
    except Exception as e:  # Orbax and TensorStore raise whatever they meet: the files tell what it means.
        if files := damaged_files(path, manifest):
            raise CorruptionError(f"checkpoint {path} is damaged:{bullets(files)}") from e
        why = f"although its files are as they were written:\n  {reason(e)}"
        raise CheckpointError(f"checkpoint {path} cannot be read, {why}") from e


def verify(path: Path, manifest: Manifest, totals: Mapping[str, np.ndarray], replicas: Mapping[str, bool]) -> None:
    """Compares the fingerprints of loaded leaves with those that were taken when they were saved.

    Args:
        totals: The fingerprints, all processes together.
        replicas: Whether the replicas of a leaf in this process are the same.
    """
    problems = []
    for name, numbers in totals.items():
        found, expected = to_text(numbers), manifest.leaves[name].fingerprint
        if found != expected:
            problems.append(f"{name!r} has fingerprint {found}, {expected} was saved.")
        elif not replicas[name]:
            problems.append(f"{name!r} is not the same on all devices.")
    if problems:
        files = damaged_files(path, manifest)
        if not files:
            files = ["All files are as they were written: the data changed on its way to them, or on its way back."]
        raise CorruptionError(f"checkpoint {path} is damaged:{bullets(problems)}{bullets(files)}")
