# SPDX-License-Identifier: Apache-2.0
"""The leaves of a state: their paths, which of them can be saved, in what form, and whether they fit a model."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.sharding import Sharding, SingleDeviceSharding
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, KeyPath, SequenceKey

from dovetail.config import ConfigError

from ._errors import bullets

ROOT = "(root)"
_NAME = re.compile(r"[^\W\d]\w*\Z")
# In steps of format 1: types that TensorStore cannot write (orbax-checkpoint 0.12.8), and those that stand in for them.
_STAND_INS = {"uint2": jnp.uint8, "uint4": jnp.uint8, "float8_e4m3": jnp.uint8}


@dataclasses.dataclass(frozen=True)
class LeafInfo:
    """What a checkpoint knows of a leaf besides its data."""

    shape: tuple[int, ...]
    dtype: str
    fingerprint: str = ""
    key_impl: str | None = None  # Of PRNG keys: the generator.

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON data, without those that are None."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "LeafInfo":
        """Returns what `to_json` was called on; a ValueError or TypeError if it cannot have been."""
        info = LeafInfo(**{**data, "shape": tuple(data["shape"])})
        texts = (info.dtype, info.fingerprint, info.key_impl or "")
        if not all(type(size) is int and size >= 0 for size in info.shape) or not all(map(_is_text, texts)):
            raise ValueError(f"{data!r:.80} does not describe an array")
        return info


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def path_of(keys: KeyPath) -> str:
    """Returns the path of a leaf as configs and modules spell it.

    >>> path_of((DictKey("params"), SequenceKey(3), GetAttrKey("weight"), DictKey("a/b")))
    "params[3].weight['a/b']"
    """
    path = ""
    for key in keys:
        match key:
            case GetAttrKey(name=part) | DictKey(key=part) | SequenceKey(idx=part) | FlattenedIndexKey(key=part):
                pass
            case _:
                part = str(key)
        if isinstance(part, str) and _NAME.match(part):
            path = f"{path}.{part}" if path else part
        else:
            path = f"{path}[{part!r}]"
    return path or ROOT


def flatten(state: Any) -> dict[str, Any]:
    """Returns the leaves of `state` by path."""
    leaves: dict[str, Any] = {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        path = path_of(keys)
        if path in leaves:
            raise ConfigError(f"{path}: two leaves of this state have the same path. Rename one of them.")
        leaves[path] = leaf
    return leaves


def check_savable(leaves: Mapping[str, Any]) -> None:
    """Raises one error that lists the leaves that are not arrays JAX can save from here."""
    problems = [f"{path!r} {problem}" for path, leaf in leaves.items() if (problem := _problem(leaf))]
    if problems:
        raise ConfigError(f"this state cannot be saved:{bullets(problems)}\n  Nothing was written.")
    if not any(leaf.size for leaf in leaves.values()):
        raise ConfigError("this state cannot be saved: it holds no numbers.\n  Nothing was written.")


def _problem(leaf: Any) -> str | None:
    if not isinstance(leaf, Array):
        kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
        return f"is of type {kind}, not a jax.Array: use jnp.asarray, or leave it out."
    if isinstance(leaf, Tracer):
        return "is traced: save outside of jit."
    if leaf.is_deleted():
        return "was donated or deleted: save the state that the step returned."
    if jax.process_count() > 1 and leaf.is_fully_addressable:
        return "is on the devices of one process only: give it a NamedSharding over the mesh."
    return None


def describe(leaf: Any) -> LeafInfo:
    """Returns shape and dtype of an array or a `jax.ShapeDtypeStruct`; for PRNG keys in an array, the generator too."""
    is_keys = isinstance(leaf, Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return LeafInfo(tuple(leaf.shape), str(leaf.dtype), key_impl=str(jax.random.key_impl(leaf)) if is_keys else None)


def to_stored(leaf: Array) -> Array:
    """Returns a leaf in a form that can be written: PRNG keys as numbers."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def stored_form(leaf: Any, info: LeafInfo, *, stand_ins: bool) -> jax.ShapeDtypeStruct:
    """Returns what to ask for to read a leaf in its stored form, on the devices that `leaf` names."""
    shape, dtype = info.shape, _STAND_INS.get(info.dtype, leaf.dtype) if stand_ins else leaf.dtype
    if info.key_impl:
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(shape, leaf.dtype))
        shape, dtype = data.shape, data.dtype
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding_of(leaf))


def from_stored(stored: Array, leaf: Any, info: LeafInfo) -> Array:
    """Returns a leaf as it was before it was stored, laid out as `leaf` is."""
    if info.key_impl:
        return jax.device_put(jax.random.wrap_key_data(stored, impl=info.key_impl), sharding_of(leaf))
    return stored if stored.dtype == leaf.dtype else _recode(stored, leaf.dtype, sharding_of(leaf))


def _recode(x: Array, dtype: Any, sharding: Sharding) -> Array:
    same_size = jnp.dtype("float8_e4m3") in (x.dtype, jnp.dtype(dtype))
    convert = jax.lax.bitcast_convert_type if same_size else jax.lax.convert_element_type
    return jax.jit(convert, static_argnums=1, out_shardings=sharding)(x, jnp.dtype(dtype))


def sharding_of(leaf: Any) -> Sharding:
    """Returns where a leaf is to be: as it says, or the default device."""
    return getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.devices()[0])


def mismatches(stored: Mapping[str, LeafInfo], wanted: Mapping[str, Any], *, partial: bool) -> list[str]:
    """Returns a sentence for each leaf that is missing, unexpected (unless `partial`), or of another shape or type."""
    problems = []
    for path in [*wanted, *(path for path in stored if path not in wanted and not partial)]:
        if path not in stored:
            problems.append(f"{path!r} is in this model, not on disk.")
        elif path not in wanted:
            problems.append(f"{path!r} is on disk, not in this model.")
        else:
            found, asked = stored[path], describe(wanted[path])
            texts = [str(i.shape) for i in (found, asked)], [i.dtype for i in (found, asked)]
            differ = [pair for pair in texts if pair[0] != pair[1]]
            if differ:
                here, there = (" ".join(side) for side in zip(*differ, strict=True))
                problems.append(f"{path!r} is {here} on disk, {there} in this model.")
            elif problem := _layout_problem(wanted[path]):
                problems.append(f"{path!r} {problem}")
    return problems


def _layout_problem(leaf: Any) -> str | None:
    try:
        sharding_of(leaf).shard_shape(tuple(leaf.shape))
    except ValueError as e:
        return f"of shape {tuple(leaf.shape)} cannot be sharded as asked: {e}"
    return None


def check_fits(where: str, stored: Mapping[str, LeafInfo], wanted: Mapping[str, Any], *, partial: bool) -> None:
    """Raises one error that lists what does not fit."""
    if problems := mismatches(stored, wanted, partial=partial):
        if len(problems) == 1:
            raise ConfigError(f"checkpoint {where}: {problems[0]}\n  Nothing was restored.")
        count = f"{len(problems)} leaves do not fit this model"
        raise ConfigError(f"checkpoint {where}: {count}:{bullets(problems)}\n  Nothing was restored.")


def check_abstract(wanted: Mapping[str, Any]) -> None:
    """Raises one error that lists the leaves that do not say what to restore."""
    problems = []
    for path, leaf in wanted.items():
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            problems.append(f"{path!r} is {leaf!r}: use a jax.ShapeDtypeStruct with a sharding, or an array.")
        elif jax.process_count() > 1 and getattr(leaf, "sharding", None) is None:
            problems.append(f"{path!r} has no sharding, which it needs where there are several processes.")
    if problems:
        raise ConfigError(f"this state cannot be restored:{bullets(problems)}")
