# SPDX-License-Identifier: Apache-2.0
"""The state of all sequences of an engine: rows for slots and snapshots, and pages; what a call reads and writes of it.

Shape letters: R rows of a call, N pages of a row.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.module import SizedState, State, StateSpecs
from dovetail.parallel import MeshLayout

_PAGES, _ROW_PAGES = "pages", "row_pages"


@dataclasses.dataclass(frozen=True)
class Store:
    """How declared state is kept. It knows names of sizes: "batch", "pages" and "row_pages", and no kind of layer."""

    specs: StateSpecs  # As a call has them: "batch" is its rows.
    total: StateSpecs  # The same for all rows that there are.

    @property
    def has_row_state(self) -> bool:
        """Whether a sequence has state that is not in pages."""
        return any(_is_by_row(spec) for spec in self.specs.values())

    @property
    def kept(self) -> StateSpecs:
        """What is kept between calls: tables are given to each."""
        return {path: spec for path, spec in self.total.items() if _size(spec, _ROW_PAGES) is None}

    def group(self, path: str) -> str | None:
        """Returns which group of pages a piece of state is in; None: it is by row."""
        return _size(self.specs[path], _PAGES)

    def page_bytes(self, group: str) -> int:
        """Returns the bytes of one page of a group, in all layers, on all devices together."""
        found = [spec for spec in self.specs.values() if _size(spec, _PAGES) == group]
        return sum(spec.nbytes // spec.shape[spec.dim(group) or 0] for spec in found)

    def row_bytes(self) -> int:
        """Returns the bytes of a row of what is not in pages."""
        return sum(
            spec.nbytes // spec.shape[spec.dim("batch") or 0] for spec in self.specs.values() if _is_by_row(spec)
        )

    def make(self) -> State:
        """Returns the state before the first call."""
        return {path: spec.make() for path, spec in self.kept.items()}

    def shardings(self, layout: MeshLayout | None, mesh: Any) -> Any:
        """Returns where each array lies: rows are on every device, so that any call finds those it wants."""
        if layout is None or mesh is None:
            return None

        def place(spec: SizedState) -> Any:
            axes = tuple(None if axis == "batch" else axis for axis in spec.spec.axes)
            return jax.sharding.NamedSharding(mesh, layout.activation_partition(spec.shape, axes))

        return {path: place(spec) for path, spec in self.kept.items()}

    def rows(self, state: State, source: Array, fresh: Array, tables: Mapping[str, Array]) -> State:
        """Returns the state of a call: rows `source`, those that are `fresh` as before their first token."""
        found: dict[str, Array] = {}
        for path, spec in self.specs.items():
            if (size := _size(spec, _ROW_PAGES)) is not None:
                table = tables[size.replace(_ROW_PAGES, _PAGES, 1)]
                found[path] = jnp.broadcast_to(table, spec.shape)
            elif (dim := spec.dim("batch")) is not None:
                old = jnp.take(state[path], source, axis=dim, mode="clip")
                begins = fresh.reshape([-1 if i == dim else 1 for i in range(old.ndim)])
                found[path] = jnp.where(begins, spec.make(), old)
            else:
                found[path] = state[path]
        return found

    def written(self, state: State, new: State, slots: Array) -> State:
        """Returns the state after a call; rows whose slot is beyond the last are dropped."""
        kept = dict(state)
        for path, spec in self.kept.items():
            dim = spec.dim("batch")
            if dim is None:
                kept[path] = new[path]
            else:
                at = (slice(None),) * dim + (slots,)
                kept[path] = state[path].at[at].set(new[path], mode="drop")
        return kept

    def copied(self, state: State, source: Array, target: Array) -> State:
        """Returns the state with one row copied to another."""
        kept = dict(state)
        for path, spec in self.kept.items():
            dim = spec.dim("batch")
            if dim is not None:
                row = jax.lax.dynamic_index_in_dim(state[path], source, dim, keepdims=True)
                kept[path] = jax.lax.dynamic_update_slice_in_dim(state[path], row, target, axis=dim)
        return kept


def _is_by_row(spec: SizedState) -> bool:
    return spec.dim("batch") is not None and _size(spec, _ROW_PAGES) is None


def _size(spec: SizedState, name: str) -> str | None:
    """Returns the name of the size of a spec that is this one, or this one for a window."""
    for size in spec.spec.shape:
        if isinstance(size, str) and (size == name or size.startswith(f"{name}[")):
            return size
    return None
