# SPDX-License-Identifier: Apache-2.0
"""A fault injector: flips one bit of what one device has, of the state, of gradients or of a batch.

`FlippedStep` is a compiled step whose gradients can be flipped, on one device, in one of the times that it is made:
which one goes in as a field of the batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from dovetail.train import Program
from dovetail.train import _step as step_module

FIELD = "flip"  # Number of the leaf (-1: none), of the device, of the element, of the bit.
NONE = (-1, 0, 0, 0)


def flipped(array: jax.Array, device: int, element: int, bit: int) -> jax.Array:
    """Returns an array of which one device has one bit otherwise; devices and elements are counted by its shards."""
    parts = []
    for place, shard in enumerate(array.addressable_shards):
        data = np.array(shard.data)
        if place == device % len(array.addressable_shards):
            data = flipped_on_host(data, element, bit)
        parts.append(jax.device_put(data, shard.device))
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def flipped_on_host(data: np.ndarray, element: int, bit: int) -> np.ndarray:
    """Returns an array in which one bit of an element is flipped."""
    words = np.array(data).reshape(-1).view(np.uint8)
    words[(element * data.itemsize + bit // 8) % words.size] ^= np.uint8(1 << bit % 8)
    return words.view(data.dtype).reshape(data.shape)


class FlippedStep:
    """The step of a program, compiled; the gradients of the n-th call from now on have the n-th of `flips`."""

    def __init__(self, program: Program, state: Any, monkeypatch: Any) -> None:
        inner = step_module.gradients_of

        def gradients_of(*args: Any, **kwargs: Any) -> Any:
            gradients = inner(*args, **kwargs)

            def flipping(params: Any, batch: Mapping[str, Any], *rest: Any) -> Any:
                plain = {name: value for name, value in batch.items() if name != FIELD}
                found, grads = gradients(params, plain, *rest)
                return found, _flip(program, grads, batch[FIELD])

            return flipping

        self._everywhere, self.flips, self.calls = program.devices.everywhere, list[Sequence[int]](), 0
        with monkeypatch.context() as patch:
            patch.setattr(step_module, "gradients_of", gradients_of)
            patch.setattr("dovetail.train._program.train_step", step_module.train_step)
            (spec,) = program.batches
            places = {**program.devices.batch_shardings(spec), FIELD: self._everywhere}
            batch = {
                name: jax.ShapeDtypeStruct(field.shape, field.dtype, sharding=places[name])
                for name, field in spec.fields.items()
            }
            batch[FIELD] = jax.ShapeDtypeStruct((4,), "int32", sharding=places[FIELD])
            self._compiled = program.compile(jax.jit(program._step(spec), **program._options()), state, batch)

    def __call__(self, state: Any, batch: Mapping[str, Any]) -> Any:
        self.calls += 1
        flip = self.flips.pop(0) if self.flips else NONE
        return self._compiled(state, {**batch, FIELD: jax.device_put(np.array(flip, np.int32), self._everywhere)})


def _flip(program: Program, grads: Any, flip: jax.Array) -> Any:
    mesh, leaves = program.devices.mesh, jax.tree.leaves(grads)
    assert mesh is not None
    specs = [sharding.spec for sharding in jax.tree.leaves(program.shardings.params)]

    def on_each(flip: jax.Array, *parts: jax.Array) -> tuple[jax.Array, ...]:
        here = jax.lax.axis_index(mesh.axis_names) == flip[1]
        return tuple(one(flip, here & (flip[0] == i), part) for i, part in enumerate(parts))

    def one(flip: jax.Array, here: jax.Array, part: jax.Array) -> jax.Array:
        words = jax.lax.bitcast_convert_type(part, jnp.uint32).reshape(-1)
        place = flip[2] % words.size
        bit = jnp.where(here, jnp.uint32(1) << flip[3].astype(jnp.uint32), jnp.uint32(0))
        words = words.at[place].set(words[place] ^ bit)
        return jax.lax.bitcast_convert_type(words.reshape(part.shape), jnp.float32)

    mapped = jax.shard_map(
        on_each, mesh=mesh, in_specs=(PartitionSpec(), *specs), out_specs=tuple(specs), check_vma=False
    )
    return jax.tree.unflatten(jax.tree.structure(grads), mapped(flip, *leaves))
