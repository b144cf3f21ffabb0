# SPDX-License-Identifier: Apache-2.0
"""Fields that say what each layer is: its window, its mixer, whether it has experts or positions."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.config import ConfigError
from dovetail.module import Module
from dovetail.nn import NoRotary

from ._fields import Field, Fields
from ._tree import PerLayer, Tree

SLIDING, FULL = "sliding_attention", "full_attention"
_WINDOW = "layer.mixer.window"
Rule = Callable[[Fields, int], str]  # The type of a layer where no list says it.


def alternating(period: int, full: int) -> Rule:
    """A window in all layers but one of each `period`, the one at `full` among them."""
    return lambda fields, i: FULL if i % period == full else SLIDING


def every(names: str, default: int) -> Rule:
    """A window in all layers but each so-manieth, which a field says."""
    return lambda fields, i: SLIDING if (i + 1) % fields.count(names, default) else FULL


def full_every(names: str, default: int) -> Rule:
    """Attention in each so-manieth layer, which a field says, and a linear form of it in the others."""
    return lambda fields, i: "linear_attention" if (i + 1) % fields.count(names, default) else FULL


def where_no_rope(fields: Fields, i: int) -> str:
    """A window in the layers without rotary positions, where `use_sliding_window` is set."""
    on = fields.flag("use_sliding_window", False) and fields.get("sliding_window", None) is not None
    return SLIDING if on and not _has_rope(fields, i + 1)[i] else FULL


def after_first(fields: Fields, i: int) -> str:
    """A window in the layers from `max_window_layers` on, where `use_sliding_window` is set."""
    on = fields.flag("use_sliding_window", False) and fields.get("sliding_window", None) is not None
    return SLIDING if on and i >= fields.count("max_window_layers", 28, least=0) else FULL


def layer_types(fields: Fields, count: int, rule: Rule | None, known: Sequence[str]) -> list[str]:
    """Returns the type of each layer, from `layer_types` or, in files without it, by the rule of the family."""
    listed = fields.get("layer_types|layers_block_type", None)
    if listed is None:
        if rule is None:
            raise ConfigError(f"{fields.where}: has no field 'layer_types', which its model needs.")
        return [rule(fields, i) for i in range(count)]
    if not isinstance(listed, list) or len(listed) != count or any(each not in known for each in listed):
        raise fields.refused(
            "layer_types", f"expected {count} of {', '.join(known)}, which are all that there are here"
        )
    return listed


class Window(Field):
    """`sliding_window` alone: the same window in all layers, or none."""

    def __init__(self, default: int | None = None, *, switch: bool = False) -> None:
        self.default, self.switch = default, switch  # Whether `use_sliding_window` must be set, too.

    def read(self, fields: Fields, tree: Tree) -> None:
        window = _window(fields, self.default)
        off = self.switch and not fields.flag("use_sliding_window", False)
        tree.set(_WINDOW, None if off else window)

    def write(self, tree: Tree) -> dict[str, Any]:
        window = tree.get(_WINDOW)
        return {"sliding_window": window} | ({"use_sliding_window": window is not None} if self.switch else {})


class WindowTypes(Field):
    """`layer_types` and `sliding_window`: a window in some layers."""

    def __init__(self, rule: Rule | None = None, *, default: int | None = None, switch: bool = False) -> None:
        self.rule, self.default, self.switch = rule, default, switch

    def read(self, fields: Fields, tree: Tree) -> None:
        count = len(tree.layers)
        window = _window(fields, self.default)
        types = layer_types(fields, count, self.rule, (SLIDING, FULL))
        if self.switch and not fields.flag("use_sliding_window", False):
            window = None  # As transformers has it: the list alone does not make a window.
        if SLIDING in types and window is None and not self.switch:
            raise fields.refused("sliding_window", "some layers have a window, so it must be a number")
        tree.set(_WINDOW, PerLayer(window if kind == SLIDING else None for kind in types))

    def write(self, tree: Tree) -> dict[str, Any]:
        windows = [value for _, value in tree.values(_WINDOW)]
        sizes = {each for each in windows if each is not None}
        if len(sizes) > 1:
            raise ConfigError(f"{_WINDOW}: windows of several sizes, {sorted(sizes)}")
        size = next(iter(sizes), None if self.switch else self.default)
        found = {"layer_types": [FULL if each is None else SLIDING for each in windows], "sliding_window": size}
        return found | ({"use_sliding_window": bool(sizes)} if self.switch else {})


def _window(fields: Fields, default: int | None) -> int | None:
    window = fields.get("sliding_window", default)
    return None if window is None else fields.count("sliding_window", default)


Parts = Mapping[str, type[Module] | Module.Config]


class Kinds(Field, abc.ABC):
    """Which of several parts a layer has at a path: the base of fields that say so in their own ways.

    `parts` has the class of each kind, or its config; that of the template counts, if a layer there has one.
    """

    def __init__(self, path: str, parts: "Parts") -> None:
        self.path, self.parts = path, parts

    def kinds(self, tree: Tree) -> list[str]:
        """Returns the kind of each layer."""
        parts = reversed(list(self.parts.items()))  # Of kinds with two names, the first is the one to write.
        names = {type(part) if isinstance(part, Module.Config) else part.Config: kind for kind, part in parts}
        found = [names.get(type(value)) for _, value in tree.values(self.path)]
        if None in found or len(found) != len(tree.layers):
            raise ConfigError(f"{self.path}: a layer is none of {', '.join(self.parts)}")
        return [kind for kind in found if kind is not None]

    def read(self, fields: Fields, tree: Tree) -> None:
        there = {type(part): part for part in (layer.get_in(self.path.partition(".")[2]) for layer in tree.kinds)}
        kinds = self.listed(fields, len(tree.layers))
        made = {kind: part if isinstance(part, Module.Config) else part.Config() for kind, part in self.parts.items()}
        tree.set(self.path, PerLayer(there.get(type(made[kind]), made[kind]) for kind in kinds))

    @abc.abstractmethod
    def listed(self, fields: Fields, count: int) -> list[str]:
        """Returns the kind of each layer, from the fields."""


def _numbers(fields: Fields, name: str, count: int) -> list[int]:
    """Returns a field that lists layers; null is none of them."""
    listed = fields.get(name, None)
    listed = [] if listed is None else listed
    if not isinstance(listed, list) or any(type(i) is not int or not 0 <= i < count for i in listed):
        raise fields.refused(name, f"expected numbers of layers, from 0 to {count - 1}")
    return listed


class MixerTypes(Kinds):
    """`layer_types` says which mixer a layer has."""

    def __init__(self, parts: Parts, rule: Rule | None = None) -> None:
        super().__init__("layer.mixer", parts)
        self.rule = rule

    def listed(self, fields: Fields, count: int) -> list[str]:
        return layer_types(fields, count, self.rule, tuple(self.parts))

    def write(self, tree: Tree) -> dict[str, Any]:
        return {"layer_types": self.kinds(tree)}


class MixerAt(Kinds):
    """A list of the layers with attention; the others have the other mixer."""

    def __init__(self, name: str, attention: Any, other: Any) -> None:
        super().__init__("layer.mixer", {"attention": attention, "other": other})
        self.name = name

    def listed(self, fields: Fields, count: int) -> list[str]:
        at = _numbers(fields, self.name, count)
        return ["attention" if i in at else "other" for i in range(count)]

    def write(self, tree: Tree) -> dict[str, Any]:
        return {self.name: [i for i, kind in enumerate(self.kinds(tree)) if kind == "attention"]}


class FirstDense(Kinds):
    """`first_k_dense_replace`: the first layers have no experts."""

    def __init__(self, dense: Any, sparse: Any, default: int = 0) -> None:
        super().__init__("layer.ffn", {"dense": dense, "sparse": sparse})
        self.default = default

    def listed(self, fields: Fields, count: int) -> list[str]:
        first = fields.count("first_k_dense_replace", self.default, least=0)
        return ["dense" if i < first else "sparse" for i in range(count)]

    def write(self, tree: Tree) -> dict[str, Any]:
        kinds = self.kinds(tree)
        first = kinds.index("sparse") if "sparse" in kinds else len(kinds)
        if "dense" in kinds[first:]:
            raise ConfigError("layer.ffn: a layer without experts comes after one with experts")
        return {"first_k_dense_replace": first}


class SparseSteps(Kinds):
    """`decoder_sparse_step` and `mlp_only_layers`: experts in every so-manieth layer, and not in some."""

    def __init__(self, dense: Any, sparse: Any) -> None:
        super().__init__("layer.ffn", {"dense": dense, "sparse": sparse})

    def listed(self, fields: Fields, count: int) -> list[str]:
        step, dense = fields.count("decoder_sparse_step", 1), _numbers(fields, "mlp_only_layers", count)
        return ["dense" if i in dense or (i + 1) % step else "sparse" for i in range(count)]

    def write(self, tree: Tree) -> dict[str, Any]:
        dense = [i for i, kind in enumerate(self.kinds(tree)) if kind == "dense"]
        return {"decoder_sparse_step": 1, "mlp_only_layers": dense}


class WithExperts(Kinds):
    """A number of experts; with none, the layers have the shared feed-forward alone."""

    def __init__(self, name: str, dense: Any, sparse: Any, default: int) -> None:
        super().__init__("layer.ffn", {"dense": dense, "sparse": sparse})
        self.name, self.default = name, default

    def listed(self, fields: Fields, count: int) -> list[str]:
        return ["sparse" if fields.count(self.name, self.default, least=0) else "dense"] * count

    def write(self, tree: Tree) -> dict[str, Any]:
        kinds = set(self.kinds(tree))
        if len(kinds) > 1:
            raise ConfigError("layer.ffn: some layers have experts, and some have none")
        return {self.name: tree.get("layer.ffn.num_experts", 0)}


class LayerScale(Field):
    """The scale of scores in GPT-2: by the head dim or not, and by the number of the layer or not. After all sizes."""

    def read(self, fields: Fields, tree: Tree) -> None:
        scaled, by_layer = (fields.flag(name, default) for name, default in _SCALES)
        width = max(1, tree.get("dim") // tree.get("layer.mixer.num_heads"))  # That it divides is checked later.
        scale = width**-0.5 if scaled else 1.0
        tree.set("layer.mixer.scale", PerLayer(scale / (i + 1 if by_layer else 1) for i in range(len(tree.layers))))

    def write(self, tree: Tree) -> dict[str, Any]:
        scales = [scale for _, scale in tree.values("layer.mixer.scale")]
        if not scales:
            return {}
        return {"scale_attn_weights": scales[0] != 1.0, "scale_attn_by_inverse_layer_idx": len(set(scales)) > 1}


_SCALES = (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False))


class NoRope(Field):
    """`no_rope_layers`: a 1 for each layer with rotary positions, a 0 for each without. Comes after the rotary."""

    def read(self, fields: Fields, tree: Tree) -> None:
        count = len(tree.layers)
        listed = _has_rope(fields, count)
        if len(listed) > count:
            raise fields.refused("no_rope_layers", f"expected 0 or 1 for each of {count} layers")
        rotaries = [value for _, value in tree.values("layer.mixer.rotary")]
        pairs = zip(listed, rotaries, strict=True)
        tree.set("layer.mixer.rotary", PerLayer(rotary if on else NoRotary.Config() for on, rotary in pairs))

    def write(self, tree: Tree) -> dict[str, Any]:
        rotaries = [value for _, value in tree.values("layer.mixer.rotary")]
        return {"no_rope_layers": [int(not isinstance(rotary, NoRotary.Config)) for rotary in rotaries]}


def _has_rope(fields: Fields, count: int) -> list[int]:
    """Returns 0 or 1 for each layer, of which there are at least so many."""
    listed = fields.get("no_rope_layers", None)
    if listed is None:
        every = fields.count("no_rope_layer_interval", 4)
        return [int((i + 1) % every != 0) for i in range(count)]
    if not isinstance(listed, list) or len(listed) < count or any(each not in (0, 1) for each in listed):
        raise fields.refused("no_rope_layers", "expected 0 or 1 for each layer")
    return listed
