# SPDX-License-Identifier: Apache-2.0
"""`PublishedWeights`: the weights in a directory of Hugging Face, read onto any mesh, a layer at a time."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail.config import ConfigError
from dovetail.progress import counting

from .._leaves import LeafInfo, sharding_of
from ._rows import WeightMap, check_stored, weight_map
from ._safetensors import TensorDirectory

Slices = tuple[slice, ...]
_SMALL_BYTES = 1 << 20  # Of a part that is put together on the host: on a device, each shape is a program to compile.


class PublishedWeights:
    """The parameters of a model, from a directory in the format of Hugging Face.

    Args:
        rows: the table of the family, as in `weight_map`.
        stack: the config of the layers of the model.
        shapes: of all parameters of the model, by path.
        partial: whether the model may have more parameters, such as those of adapters, which the table does not fill.
    """

    def __init__(
        self,
        directory: str,
        rows: Iterable[str],
        stack: Any,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        partial: bool = False,
    ) -> None:
        self._where = str(directory)
        self._files = TensorDirectory(Path(directory).expanduser())
        try:
            found = weight_map(rows, stack, shapes, partial=partial)
            self._map: WeightMap = check_stored(self._where, found, self._files.tensors)
            self._check_copies()
        except BaseException:
            self._files.close()
            raise
        self._shapes = dict(shapes)

    def leaves(self) -> dict[str, LeafInfo]:
        """Returns shape and dtype of each parameter: that of the files, one with room for all if they mix several.

        64 bits are 32 here, as everywhere in JAX unless it is told otherwise.
        """
        dtypes: dict[str, Any] = {}
        for (path, _), piece in self._map.pieces.items():
            for name in piece.names:
                own = jax.dtypes.canonicalize_dtype(self._files.tensors[name].dtype)
                dtypes[path] = own if dtypes.get(path, own) == own else np.dtype(np.float32)
        return {path: LeafInfo(shape, str(dtypes[path])) for path, shape in self._shapes.items() if path in dtypes}

    def read(self, wanted: Mapping[str, Any]) -> dict[str, Array]:
        """Returns parameters on the shardings and in the dtypes of `wanted`, which has shapes as `jax` does.

        Each device gets its part layer by layer: in the host's memory is one tensor of one layer, not a model. Small
        parts are put together there.
        """
        sizes = {path: math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize for path, leaf in wanted.items()}
        count, found = counting(sum(sizes.values()), "bytes"), dict[str, Array]()
        for path, leaf in wanted.items():
            found[path] = self._array(path, leaf, lambda share, size=sizes[path]: count.advance(size * share))
        return found

    def close(self) -> None:
        """Closes the files."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_copies(self) -> None:
        """Raises if a tensor that must equal another does not."""
        for name, like in self._map.copies.items():
            if name in self._files.tensors:
                found, expected = self._files.view(name), self._files.view(like)
                equal = found.shape == expected.shape and np.array_equal(found, expected)
                self._files.release(name)
                self._files.release(like)
                if not equal:
                    raise ConfigError(
                        f"{self._where}: {name} is not equal to {like}, but config.json says that both are one\n"
                        "  (tie_word_embeddings). Set that to false if the model has both. Nothing was loaded."
                    )

    def _array(self, path: str, leaf: Any, advance: Callable[[float], None]) -> Array:
        sharding, shape = sharding_of(leaf), tuple(leaf.shape)
        parts: dict[tuple[tuple[int, int], ...], Array] = {}
        made: list[Array] = []
        indices = sharding.addressable_devices_indices_map(shape)
        number = len({tuple(map(str, index or ())) for index in indices.values()})
        for device, index in indices.items():
            bounds = tuple(part.indices(size)[:2] for part, size in zip(index or (), shape, strict=True))
            if bounds not in parts:
                parts[bounds] = self._part(path, bounds, leaf.dtype, device, lambda share: advance(share / number))
            made.append(jax.device_put(parts[bounds], device))
        return jax.make_array_from_single_device_arrays(shape, sharding, made)

    def _part(
        self, path: str, bounds: tuple[tuple[int, int], ...], dtype: Any, device: Any, advance: Callable[[float], None]
    ) -> Array:
        """Returns the part of a parameter that a device has; `advance` is told of each share of it."""
        depth = next(len(index) for name, index in self._map.pieces if name == path)
        inner = tuple(slice(*each) for each in bounds[depth:])
        if math.prod(end - start for start, end in bounds) * jnp.dtype(dtype).itemsize <= _SMALL_BYTES:
            small = self._small(path, bounds, depth, jnp.dtype(dtype))
            advance(1.0)
            return jax.device_put(small, device)
        with jax.default_device(device):
            if not depth:
                whole = _cast(self._layer(path, (), inner, device), jnp.dtype(dtype))
                advance(1.0)
                return whole
            made = jnp.zeros([end - start for start, end in bounds], dtype)
            layers = list(itertools.product(*(range(*each) for each in bounds[:depth])))
            for index in layers:
                at = [i - start for i, (start, _) in zip(index, bounds[:depth], strict=True)]
                made = _filled(made, self._layer(path, index, inner, device), np.asarray(at, np.int32))
                made.block_until_ready()  # Else the host is ahead, with more layers in its memory.
                advance(1 / len(layers))
            return made

    def _small(self, path: str, bounds: tuple[tuple[int, int], ...], depth: int, dtype: np.dtype) -> np.ndarray:
        """Returns a part of a parameter, in the memory of the host."""
        inner = tuple(slice(*each) for each in bounds[depth:])
        made = np.empty([end - start for start, end in bounds], dtype)
        for index in itertools.product(*(range(*each) for each in bounds[:depth])):
            found, order = self._map.raw((path, index), inner, self._files.view)
            layer = found.astype(jax.dtypes.canonicalize_dtype(found.dtype))
            at = tuple(i - start for i, (start, _) in zip(index, bounds[:depth], strict=True))
            made[at] = (layer if order is None else layer.transpose(order)).astype(dtype)
            for name in self._map.pieces[path, index].names:
                self._files.release(name)
        return made

    def _layer(self, path: str, index: tuple[int, ...], part: Slices, device: Any) -> Array:
        """Returns a part of a parameter of one layer, on a device."""
        found, order = self._map.raw((path, index), part, self._files.view)
        layer = jax.device_put(found, device)
        if order is not None:
            layer = _transposed(layer, order)
        layer.block_until_ready()  # It may be a view of the file until then.
        for name in self._map.pieces[path, index].names:
            self._files.release(name)
        return layer


@functools.partial(jax.jit, static_argnums=1)
def _transposed(x: Array, order: tuple[int, ...]) -> Array:
    # Alone: as a part of what follows, it would be computed element by element.
    return jnp.transpose(x, order)


@functools.partial(jax.jit, static_argnums=1)
def _cast(x: Array, dtype: Any) -> Array:
    return x.astype(dtype)


@functools.partial(jax.jit, donate_argnums=0)
def _filled(whole: Array, layer: Array, at: Array) -> Array:
    """Returns the array with one layer of it set, in its own memory."""
    lifted = layer.astype(whole.dtype).reshape((1,) * (whole.ndim - layer.ndim) + layer.shape)
    start = [*(at[i] for i in range(at.shape[0])), *[0] * layer.ndim]
    return jax.lax.dynamic_update_slice(whole, lifted, start)
