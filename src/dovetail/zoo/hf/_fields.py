# SPDX-License-Identifier: Apache-2.0
"""What a field of config.json means in a model's config, in both directions. A family has a table of these."""

import abc
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax

from dovetail.config import REQUIRED, ConfigError, FunctionConfig, config_for
from dovetail.nn import DenseLinear
from dovetail.ops import clamped_swiglu, erf_gelu, gated, squared_relu

from ._tree import Tree


class Fields:
    """The fields of a config.json. It remembers which were read."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where, self.values = where, values
        self.read: set[str] = set()

    def get(self, names: str, default: Any = REQUIRED) -> Any:
        """Returns a field, or its default; `a|b` is a field with two names, of which files may have either."""
        value = self.raw(names, default)
        if _has_odd_number(value):
            raise self.refused(names, f"expected finite numbers, of at most {_MOST:,}")
        return value

    def raw(self, names: str, default: Any = REQUIRED) -> Any:
        """Returns a field as `get` does, whatever is in it."""
        found = [name for name in names.split("|") if name in self.values]
        self.read |= set(names.split("|"))
        if len({repr(self.values[name]) for name in found}) > 1:
            raise self.refused(found[0], f"is not equal to {found[1]}")
        if found:
            return self.values[found[0]]
        if default is REQUIRED:
            raise ConfigError(f"{self.where}: has no field {names.partition('|')[0]!r}, which its model needs.")
        return default(self) if callable(default) else default

    def number(self, names: str, default: Any = REQUIRED) -> Any:
        """Returns a field that is a number."""
        value = self.get(names, default)
        if not is_number(value):
            raise self.refused(names, "expected a number")
        return value

    def count(self, names: str, default: Any = REQUIRED, *, least: int = 1) -> int:
        """Returns a field that is a whole number."""
        value = self.get(names, default)
        if type(value) is not int or value < least:
            raise self.refused(names, f"expected a whole number of at least {least}")
        return value

    def flag(self, names: str, default: bool) -> bool:
        """Returns a field that is true or false; null is as good as nothing."""
        value = self.get(names, default)
        if value is not None and not isinstance(value, bool):
            raise self.refused(names, "expected true or false")
        return default if value is None else value

    def refused(self, names: str, why: str) -> ConfigError:
        """Returns the error for a value that cannot be used."""
        name = next((each for each in names.split("|") if each in self.values), names.partition("|")[0])
        shown = repr(self.values.get(name))
        return ConfigError(f"{self.where}: {name} is {shown if len(shown) < 80 else shown[:77] + '...'}: {why}.")


_MOST = 2**53  # As a float, too, such a number is exact.


def is_number(value: Any) -> bool:
    """Whether a value is a number to compute with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not _has_odd_number(value)


def _has_odd_number(value: Any) -> bool:
    """Whether a number is in a value with which arithmetic would fail, or have no end."""
    if isinstance(value, list | dict):
        return any(map(_has_odd_number, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int | float) and not abs(value) <= (
        _MOST if isinstance(value, int) else sys.float_info.max
    )


class Field(abc.ABC):
    """A field of config.json, or several that belong together."""

    @abc.abstractmethod
    def read(self, fields: Fields, tree: Tree) -> None:
        """Sets what the fields say in a tree."""

    @abc.abstractmethod
    def write(self, tree: Tree) -> dict[str, Any]:
        """Returns the fields that say what is in a tree; a ConfigError without a place if none can."""

    def told(self, names: Collection[str]) -> Sequence[str]:
        """Returns the fields that say what one of these fields of our configs is, for errors."""
        return ()


class Codec:
    """The same value on both sides."""

    def read(self, value: Any) -> Any:
        """Returns what a field of config.json is in a config; a ValueError says why it cannot be."""
        return value

    def write(self, value: Any) -> Any:
        """Undoes `read`; a ValueError for what no field says."""
        return value


class Value(Field):
    """One field, at one path or at several that are always the same."""

    def __init__(
        self, name: str, *paths: str, default: Any = REQUIRED, null: Any = REQUIRED, codec: Codec | None = None
    ) -> None:
        self.name, self.paths, self.codec = name, paths, codec or Codec()
        self.default, self.null = default, null  # What it is in files without it, and what null stands for, if it may.

    def read(self, fields: Fields, tree: Tree) -> None:
        if not any(name in fields.values for name in self.name.split("|")) and not any(map(tree.has, self.paths)):
            return  # Such as the heads of a model without attention.
        raw = fields.get(self.name, self.default)
        if raw in (None, "auto"):
            raw = self.null(fields) if callable(self.null) else self.null
            if raw is REQUIRED:
                raise fields.refused(self.name, "expected a value")
        try:
            value = self.codec.read(raw)
            if type(value) is int and value < 1 and any(tree.counts(path) for path in self.paths):
                raise ValueError("expected a whole number of at least 1")
            if is_number(value) and value < 0 and any(path.endswith(".eps") for path in self.paths):
                raise ValueError("expected a number of at least 0")
            for path in self.paths:
                tree.set(path, value)
        except (ValueError, TypeError) as e:
            raise fields.refused(self.name, str(e)) from e

    def write(self, tree: Tree) -> dict[str, Any]:
        name = self.name.partition("|")[0]
        found = [(path, value) for path in self.paths if (value := tree.get(path, REQUIRED)) is not REQUIRED]
        if not found:
            return {}
        path, value = found[0]  # That the others are equal shows when the fields are read again.
        try:
            return {name: self.codec.write(value)}
        except ValueError as e:
            raise ConfigError(f"{path}: {e}") from e

    def told(self, names: Collection[str]) -> Sequence[str]:
        return self.name.split("|") if any(path.rpartition(".")[2] in names for path in self.paths) else ()


class Fixed(Field):
    """A field that must have one value, which is all that our model of the family computes; it is its default, too."""

    def __init__(self, name: str, *values: Any) -> None:
        self.name, self.allowed = name, values

    def read(self, fields: Fields, tree: Tree) -> None:
        if (value := fields.get(self.name, self.allowed[0])) not in self.allowed:
            wanted = " or ".join(repr(each) for each in self.allowed)
            raise fields.refused(self.name, f"is not implemented here, only {wanted}, which {value!r} is not")

    def write(self, tree: Tree) -> dict[str, Any]:
        return {self.name: self.allowed[0]}


class Names(Codec):
    """A name on one side, a value on the other. Of names that mean the same, the first is written."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self.values = values

    def read(self, value: Any) -> Any:
        if not isinstance(value, str | bool) or value not in self.values:
            raise ValueError(f"is not implemented here, only {', '.join(map(str, self.values))}")
        return self.values[value]

    def write(self, value: Any) -> Any:
        for name, known in self.values.items():
            if known == value:
                return name
        raise ValueError(f"{value!r} has no name there")


_FUNCTIONS = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "gelu_new": jax.nn.gelu,
    "gelu_fast": jax.nn.gelu,
    "gelu": erf_gelu,
    "relu": jax.nn.relu,
    "relu2": squared_relu,
}
ACTIVATION = Names(_FUNCTIONS)


class _GatedCodec(Codec):
    """The activation of a gate; some names may mean others in a family."""

    def __init__(self, **meant: str) -> None:
        self.meant = meant

    def read(self, value: Any) -> Any:
        function = ACTIVATION.read(self.meant.get(value, value) if isinstance(value, str) else value)
        return config_for(gated) if function is jax.nn.silu else config_for(gated, function)

    def write(self, value: Any) -> Any:
        if isinstance(value, FunctionConfig):
            for name in _FUNCTIONS:
                if self.read(name) == value or config_for(gated, _FUNCTIONS[name]) == value:
                    return name
        raise ValueError(f"{value!r} has no name there")


GATED = _GatedCodec()
GATED_TANH = _GatedCodec(gelu="gelu_pytorch_tanh")


class Scaled(Codec):
    """A number on one side, a function of it on the other."""

    def __init__(self, read: Callable[[float], float], write: Callable[[float], float]) -> None:
        self._read, self._write = read, write

    def read(self, value: Any) -> Any:
        if not is_number(value) or not value > 0 or not 0 < self._read(value) < math.inf:
            raise ValueError("expected a number above 0")
        return self._read(value)

    def write(self, value: Any) -> Any:
        found = self._write(value)
        near = (round(found), round(found, 6), found, math.nextafter(found, 0), math.nextafter(found, math.inf))
        return next((each for each in near if each > 0 and self._read(each) == value), found)


RECIPROCAL = Scaled(lambda x: 1 / x, lambda x: 1 / x)
INVERSE_ROOT = Scaled(lambda x: x**-0.5, lambda x: x**-2.0)
ROOT = Scaled(lambda x: x**0.5, lambda x: x**2)


class Present(Codec):
    """A flag on one side; on the other, a part if it is set and None if not."""

    def __init__(self, part: Any, *, when: bool = True) -> None:
        self.part, self.when = part, when

    def read(self, value: Any) -> Any:
        if not isinstance(value, bool):
            raise ValueError("expected true or false")
        return self.part if value is self.when else None

    def write(self, value: Any) -> Any:
        return (value is not None) is self.when


def times(name: str, factor: int) -> Callable[[Fields], int]:
    """Returns what gives a multiple of another field."""
    return lambda fields: factor * fields.number(name)


def tied(*, default: bool = False) -> Value:
    """`tie_word_embeddings`: whether the embedding makes the logits, and not a head of its own."""
    return Value("tie_word_embeddings", "head", default=default, codec=Present(DenseLinear.Config(), when=False))


class HeadDim(Field):
    """`head_dim`, of which null stands for the share of a head in the model's dim; that is written as a number."""

    def __init__(self, path: str = "layer.mixer", *, default: int | None = None) -> None:
        self.path, self.default = path, default

    def read(self, fields: Fields, tree: Tree) -> None:
        given = fields.get("head_dim", self.default)
        tree.set(f"{self.path}.head_dim", None if given is None else fields.count("head_dim", self.default))

    def write(self, tree: Tree) -> dict[str, Any]:
        heads, width = tree.get(f"{self.path}.num_heads"), tree.get(f"{self.path}.head_dim")
        return {} if heads is None else {"head_dim": width or tree.get("dim") // heads}


class ClampedGate(Field):
    """The activation of gpt-oss, with its two numbers."""

    def read(self, fields: Fields, tree: Tree) -> None:
        alpha, limit = fields.number("swiglu_alpha", 1.702), fields.number("swiglu_limit", 7.0)
        tree.set("layer.ffn.activation", config_for(clamped_swiglu, alpha=float(alpha), limit=float(limit)))

    def write(self, tree: Tree) -> dict[str, Any]:
        found = tree.get("layer.ffn.activation")
        alpha, limit = (getattr(found, name, value) for name, value in (("alpha", 1.702), ("limit", 7.0)))
        if found not in (config_for(clamped_swiglu), config_for(clamped_swiglu, alpha=alpha, limit=limit)):
            raise ConfigError(f"layer.ffn.activation: {found!r} has no name there")
        return {"swiglu_alpha": alpha, "swiglu_limit": limit}


class TimeStepLimit(Field):
    """`time_step_limit`: the shortest and the longest step of a state-space layer; from 0 to infinity is none."""

    def __init__(self, path: str = "layer.mixer") -> None:
        self.path = f"{path}.step_limit"

    def read(self, fields: Fields, tree: Tree) -> None:
        given = fields.raw("time_step_limit", None)
        given = [0.0, math.inf] if given is None else given
        if not isinstance(given, list) or len(given) != 2:
            raise fields.refused("time_step_limit", "expected two numbers")
        ends = [math.inf if each in ({"__float__": "Infinity"}, "Infinity", "inf") else each for each in given]
        if not all(each == math.inf or is_number(each) for each in ends) or not 0 <= ends[0] < ends[1]:
            raise fields.refused("time_step_limit", "expected two numbers, the second one larger")
        tree.set(self.path, None if ends == [0, math.inf] else (float(ends[0]), float(ends[1])))

    def write(self, tree: Tree) -> dict[str, Any]:
        ends = tree.get(self.path) or (0.0, math.inf)
        return {"time_step_limit": [{"__float__": "Infinity"} if each == math.inf else each for each in ends]}


class Expand(Field):
    """How many times as wide as the model a state-space layer is, which its heads say, too. Comes after them."""

    def __init__(self, name: str, path: str = "layer.mixer") -> None:
        self.name, self.path = name, path

    def read(self, fields: Fields, tree: Tree) -> None:
        expand, width = fields.number(self.name, 2), self._width(tree)
        if width is not None and width != expand * tree.get("dim"):
            raise fields.refused(self.name, f"its heads are {width} wide, not {expand} times {tree.get('dim')}")

    def write(self, tree: Tree) -> dict[str, Any]:
        width = self._width(tree)
        if width is None:
            return {}
        ratio = width / tree.get("dim")
        return {self.name: int(ratio) if ratio == int(ratio) else ratio}

    def _width(self, tree: Tree) -> int | None:
        heads, head_dim = tree.get(f"{self.path}.num_heads"), tree.get(f"{self.path}.head_dim")
        if head_dim is None:
            return None
        return 2 * tree.get("dim") if heads is None else heads * head_dim


class TopKMethod(Field):
    """`topk_method` of DeepSeek-V2: the best experts, or those of the best groups of experts."""

    def read(self, fields: Fields, tree: Tree) -> None:
        method, _, _ = (fields.get(name, default) for name, default in _METHOD)
        if method not in ("greedy", "group_limited_greedy"):
            raise fields.refused("topk_method", "is not implemented here, only greedy and group_limited_greedy")
        grouped = method != "greedy"
        tree.set("layer.ffn.router.num_groups", fields.count("n_group") if grouped else 1)
        tree.set("layer.ffn.router.top_groups", fields.count("topk_group") if grouped else 1)

    def write(self, tree: Tree) -> dict[str, Any]:
        groups, best = tree.get("layer.ffn.router.num_groups", 1), tree.get("layer.ffn.router.top_groups", 1)
        method = "greedy" if groups == 1 else "group_limited_greedy"
        return {"topk_method": method, "n_group": groups, "topk_group": best}


_METHOD = (("topk_method", "greedy"), ("n_group", None), ("topk_group", None))


_ROUTED = "layer.ffn:MoEFeedForward.hidden_dim"


class Shared(Field):
    """The width of the shared expert, as a number of routed ones. Comes after the width of those."""

    def __init__(self, name: str, path: str, default: int) -> None:
        self.name, self.path, self.default = name, path, default

    def read(self, fields: Fields, tree: Tree) -> None:
        tree.set(self.path, fields.count(self.name, self.default) * tree.get(_ROUTED, 0))

    def write(self, tree: Tree) -> dict[str, Any]:
        shared, routed = tree.get(self.path), tree.get(_ROUTED)
        if shared is None:
            return {}
        if shared % routed:
            raise ConfigError(f"{self.path}: {shared} is no multiple of {routed}, the hidden_dim of an expert")
        return {self.name: shared // routed}


_MOST_LAYERS = 1000


class Layers(Field):
    """How many layers there are; all are as the first of the template until other fields say more."""

    def __init__(self, name: str = "num_hidden_layers") -> None:
        self.name = name

    def read(self, fields: Fields, tree: Tree) -> None:
        count = fields.count(self.name)
        if count > _MOST_LAYERS:
            raise fields.refused(self.name, f"expected at most {_MOST_LAYERS:,} layers")
        tree.layers = [tree.layers[0]] * count

    def write(self, tree: Tree) -> dict[str, Any]:
        return {self.name: len(tree.layers)}
