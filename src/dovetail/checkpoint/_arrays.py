# SPDX-License-Identifier: Apache-2.0
"""The arrays of a step: copied and written in the background, read back, and proved to be the same."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail.progress import Count, counting
from dovetail.storage import reason

from ._dealt import Part, copied, placed, places_of, read_parts, share
from ._errors import CheckpointError, damaged
from ._fingerprint import to_text
from ._layout import Plan, place_of
from ._leaves import from_stored, sharding_of, stored_form, to_stored
from ._pack import Damaged, problem_with, write_pack
from ._step import Manifest
from ._step_files import StepFiles
from ._store import Store

NOT_ON_DISK = "All files are as they were written: the data changed on its way to them, or on its way back."


class Copied(NamedTuple):
    """What a process writes of a state, on the host."""

    plan: Plan
    pieces: Sequence[memoryview]
    written: Count  # Of the phase that it is saved in.

    def write(self, files: StepFiles, *, compress: bool) -> None:
        """Writes it, and waits until it is safe."""
        if self.pieces:
            write_pack(files, jax.process_index(), self.pieces, compress=compress, count=self.written)


def copy_to_host(leaves: Mapping[str, Array]) -> Copied:
    """Copies what this process writes to the host: the leaves may be donated or deleted as soon as this returns."""
    stored = {name: to_stored(leaf) for name, leaf in leaves.items()}
    plan = Plan(places_of(stored))
    pieces = copied(plan, stored)
    return Copied(plan, pieces, counting(sum(map(len, pieces)), "bytes"))


def load(
    store: Store, step: int, manifest: Manifest, wanted: Mapping[str, Any], together: Callable[..., Any]
) -> dict[str, Array]:
    """Returns the leaves in `wanted`, laid out as it says, not verified yet. All processes come here, and pass that."""
    infos, is_old = manifest.leaves, not manifest.places
    # Arrays without elements are not on disk.
    asked = {name: stored_form(leaf, infos[name], stand_ins=is_old) for name, leaf in wanted.items()}
    stored = {name: jnp.zeros(x.shape, x.dtype, device=x.sharding) for name, x in asked.items() if not x.size}
    asked = {name: x for name, x in asked.items() if x.size}

    def read() -> Any:
        return store.load_by_orbax(step, asked) if is_old else _read(store.files(step), manifest, asked)

    found: Any = together(lambda: _told(store, step, manifest, read), everywhere=True) if asked else {}
    if asked and not is_old:
        share(found)
        found = placed(found, asked)
    stored |= found
    return jax.block_until_ready({name: from_stored(stored[name], leaf, infos[name]) for name, leaf in wanted.items()})


def _read(files: StepFiles, manifest: Manifest, asked: Mapping[str, jax.ShapeDtypeStruct]) -> list[Part]:
    goal = Plan({name: place_of(x.shape, x.dtype, sharding_of(x)) for name, x in asked.items()})
    try:
        return read_parts(files, Plan(manifest.places), goal, jax.process_index(), jax.process_count())
    finally:
        files.close()


def _told(store: Store, step: int, manifest: Manifest, work: Callable[[], Any]) -> Any:
    """Returns what `work` does; if it fails, the files tell what that means."""
    try:
        return work()
    except Damaged as e:
        raise damaged(store.name(step), e.args) from e
    except Exception as e:  # Whatever reading meets: the system, Orbax and TensorStore.
        if files := damaged_files(store, step, manifest):
            raise damaged(store.name(step), files) from e
        why = f"although its files are as they were written:\n  {reason(e)}"
        raise CheckpointError(f"checkpoint {store.name(step)} cannot be read, {why}") from e


def damaged_files(store: Store, step: int, manifest: Manifest, process: int = 0, processes: int = 1) -> list[str]:
    """Returns what is wrong with which file. Reads all of them; of those with arrays, one process's share."""
    plan, files = Plan(manifest.places), store.files(step)
    try:
        found = [problem_with(files, each, plan.size_of(each)) for each in plan.writers[process::processes]]
    finally:
        files.close()
    return [*(store.damaged_files(step, manifest) if not process else ()), *filter(None, found)]


def differs(name: str, leaf: Array, sums: np.ndarray, manifest: Manifest) -> str:
    """Returns how a loaded leaf differs from what was saved, or nothing.

    Args:
        sums: The fingerprint, all processes together: of first replicas, and of all of them.
    """
    found, expected = to_text(sums[0]), manifest.leaves[name].fingerprint
    if found != expected:
        return f"{name!r} has fingerprint {found}, {expected} was saved."
    cell = leaf.sharding.shard_shape(leaf.shape)
    cells = math.prod(size // part for size, part in zip(leaf.shape, cell, strict=True) if part)
    replicas = np.uint32(leaf.sharding.num_devices // cells)
    return "" if (sums[1] == sums[0] * replicas).all() else f"{name!r} is not the same on all devices."


class Written(NamedTuple):
    """What a process, or several, have to tell when they have written their arrays."""

    sums: np.ndarray | None = None  # Their part of the fingerprints; None: one of them has failed.

    def to_bytes(self) -> bytes:
        """Returns it in a form that can be sent."""
        return b"" if self.sums is None else b"+" + self.sums.tobytes()

    @staticmethod
    def of(data: bytes) -> "Written":
        """Returns what `to_bytes` was called on."""
        sums = np.frombuffer(data, np.uint32, offset=1).reshape(-1, 2) if data else None
        return Written(sums)

    @staticmethod
    def joined(one: bytes, other: bytes) -> bytes:
        """Returns what two of them have to tell together."""
        a, b = Written.of(one).sums, Written.of(other).sums
        return Written(None if a is None or b is None else a + b).to_bytes()
