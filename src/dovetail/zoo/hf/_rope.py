# SPDX-License-Identifier: Apache-2.0
"""Rotary positions as config.json says them: `rope_parameters`, or `rope_theta` and `rope_scaling` in older files."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dovetail.config import ConfigError
from dovetail.nn import (
    DynamicRoPE,
    FrequencyRotary,
    LinearRoPE,
    Llama3RoPE,
    LongRoPE,
    NoRotary,
    PartialRotary,
    RoPE,
    Rotary,
    YaRN,
)
from dovetail.ops import yarn_magnitude

from ._fields import Field, Fields, is_number
from ._tree import PerLayer, Tree

_WINDOW = "layer.mixer.window"
_LENGTH, _ORIGINAL = "max_position_embeddings", "original_max_position_embeddings"
_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
# Names there, and in our configs; what is not given there has our default, unless `_needed` has it.
_FIELDS: dict[str, tuple[type[FrequencyRotary.Config], dict[str, str]]] = {
    "default": (RoPE.Config, {}),
    "linear": (LinearRoPE.Config, {"factor": "factor"}),
    "dynamic": (DynamicRoPE.Config, {"factor": "factor"}),
    "yarn": (
        YaRN.Config,
        {
            "factor": "factor",
            "beta_slow": "slow",
            "beta_fast": "fast",
            "truncate": "truncate",
            "attention_factor": "magnitude",
            _ORIGINAL: "original_length",
        },
    ),
    "longrope": (
        LongRoPE.Config,
        {
            "short_factor": "short",
            "long_factor": "long",
            "attention_factor": "magnitude",
            _ORIGINAL: "original_length",
        },
    ),
    "llama3": (
        Llama3RoPE.Config,
        {"factor": "factor", "low_freq_factor": "low", "high_freq_factor": "high", _ORIGINAL: "original_length"},
    ),
}
_LISTS = ("short_factor", "long_factor")


class Rope(Field):
    """The rotary of all layers; or, where `by_type`, one for each type of layer."""

    def __init__(
        self,
        path: str = "layer.mixer.rotary",
        *,
        theta: float = 10_000.0,
        partial: float | None = None,
        theta_names: str = "rope_theta",
        partial_names: str = "partial_rotary_factor",
        only_where: tuple[str, str] | None = None,
        without: Mapping[str, Any] | None = None,
        means: Mapping[str, str] | None = None,
        interleaved: bool | str = False,
        original_outside: bool = False,
    ) -> None:
        self.path, self.theta, self.partial, self.partial_names = path, theta, partial, partial_names
        self.theta_names = theta_names
        self.without = without or {}  # What a file without any of these fields means.
        self.means = {"su": "longrope", **(means or {})}  # Names of types that mean others.
        self.only_where = only_where  # A field, and what it must be for there to be positions at all.
        self.interleaved = interleaved  # Whether pairs are neighbours in this family; or the field that says it.
        self.original_outside = original_outside  # Whether the field beside `rope_parameters` wins over that in it.

    def read(self, fields: Fields, tree: Tree) -> None:
        found = self.rotary(fields, self._given(fields))
        if self.only_where is not None and fields.get(self.only_where[0], None) != self.only_where[1]:
            if fields.get(self.only_where[0], None) not in (None, "nope"):
                raise fields.refused(self.only_where[0], f"expected {self.only_where[1]!r}, 'nope' or null")
            found = NoRotary.Config()
        tree.set(self.path, found)

    def _given(self, fields: Fields) -> dict[str, Any]:
        name = "rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters"
        fields.read |= {"rope_scaling", "rope_parameters", "rope_theta", _LENGTH}
        both = {each: fields.get(each, None) for each in ("rope_scaling", "rope_parameters")}
        objects = {each: {} if value is None else _object(fields, each, value) for each, value in both.items()}
        return objects[name] or dict(self.without)

    def rotary(self, fields: Fields, given: Mapping[str, Any]) -> Rotary.Config:
        """Returns the config that an object of parameters describes."""
        where = "rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters"
        given = dict(given)
        outside = fields.get(self.theta_names, self.theta)
        theta = given.pop("rope_theta", outside)
        if not is_number(theta) or not (outside is None or is_number(outside)):
            raise fields.refused(self.theta_names, f"the base of rotary positions is {theta!r}, expected a number")
        outside = fields.get(self.partial_names, None)
        if outside is not None and not is_number(outside):
            raise fields.refused(self.partial_names, "expected a number")
        partial = given.pop("partial_rotary_factor", self.partial if outside is None else outside)
        if self.partial is None and partial not in (None, 1):
            raise ConfigError(f"{fields.where}: partial_rotary_factor is {partial!r}: not implemented for this family.")
        if partial is not None and not is_number(partial):
            raise fields.refused(self.partial_names, f"the share of dims with positions is {partial!r}")
        kind = given.pop("rope_type", given.pop("type", "default"))
        given.pop("type", None)
        kind = self.means.get(kind, kind) if isinstance(kind, str) else kind
        if kind not in _TYPES:
            raise fields.refused(where, f"its rope_type {kind!r} is not implemented here, only {', '.join(_TYPES)}")
        pairs = fields.get(self.interleaved, True) if isinstance(self.interleaved, str) else self.interleaved
        if not isinstance(pairs, bool):
            raise fields.refused(str(self.interleaved), "expected true or false")
        found = {"theta": float(theta), "interleaved": pairs} | self._own(fields, where, kind, given)
        try:
            rotary: Rotary.Config = _FIELDS[kind][0](**found)
        except (ConfigError, TypeError, ValueError) as e:
            raise fields.refused(where, f"cannot be used: {e}") from e
        if partial is not None and float(partial) != 1.0:
            rotary = PartialRotary.Config(fraction=float(partial), inner=rotary)
        return rotary

    def _own(self, fields: Fields, where: str, kind: str, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the fields of one kind of rotary."""
        length = fields.get(_LENGTH, None)
        original = fields.get(_ORIGINAL, None) if self.original_outside else None
        if kind in ("yarn", "longrope", "llama3"):
            given[_ORIGINAL] = original or given.get(_ORIGINAL) or length
        found: dict[str, Any] = {}
        if kind == "dynamic":
            found["original_length"] = length
        odd = [name for name, value in given.items() if value is not None and not _is_plain(name, value)]
        if odd:
            raise fields.refused(where, f"its {odd[0]} is {given[odd[0]]!r}")
        if kind == "yarn" and given.get("mscale") and given.get("mscale_all_dim"):
            found |= {"mscale": float(given["mscale"]), "mscale_all_dim": float(given["mscale_all_dim"])}
        unused = {"yarn": {"mscale", "mscale_all_dim"}, "default": {"factor", _ORIGINAL}, "linear": {_ORIGINAL}}
        if kind in ("yarn", "longrope") and given.get("factor") is None:
            given["factor"] = _ratio(fields, where, length, given[_ORIGINAL])
        if kind == "longrope":
            found["factor"] = float(given.pop("factor"))
        for name, value in given.items():
            ours = _FIELDS[kind][1].get(name)
            if ours is None and name not in unused.get(kind, ()):
                raise fields.refused(where, f"its {name} is not known for rope_type {kind!r}")
            if ours is not None and value is not None:
                found[ours] = _plain(name, value)
        missing = [name for name in _needed(kind) if _FIELDS[kind][1].get(name, name) not in found]
        if missing:
            raise fields.refused(where, f"lacks {missing[0]}")
        return found

    def write(self, tree: Tree) -> dict[str, Any]:
        rotaries = {rotary for _, rotary in tree.values(self.path) if not isinstance(rotary, NoRotary.Config)}
        if len(rotaries) > 1:
            raise ConfigError(f"{self.path}: layers have several, expected one")
        if not rotaries:
            return {} if self.only_where is None else {self.only_where[0]: None}
        found = self.parameters(next(iter(rotaries)))
        plain = {"rope_parameters": found} | dict.fromkeys(self.theta_names.split("|"), found["rope_theta"])
        plain |= {} if self.only_where is None else dict([self.only_where])
        if (partial := found.get("partial_rotary_factor")) is not None:
            plain |= dict.fromkeys(self.partial_names.split("|"), partial)
        if self.original_outside and _ORIGINAL in found:
            plain[_ORIGINAL] = found[_ORIGINAL]
        plain |= _length(next(iter(rotaries)), found)
        if isinstance(self.interleaved, str):
            plain[self.interleaved] = _inner(next(iter(rotaries))).get_in("interleaved")
        # Where both are there, this one counts, so it has all that does not stand elsewhere for every reader.
        scaling = {name: value for name, value in found.items() if name != "rope_theta"}
        return plain | ({"rope_scaling": scaling} if found["rope_type"] != "default" else {})

    def told(self, names: Collection[str]) -> Sequence[str]:
        ours = {"rotary", "theta", "fraction", *(name for _, table in _FIELDS.values() for name in table.values())}
        places = (*self.theta_names.split("|"), *self.partial_names.split("|"), "rope_parameters", "rope_scaling")
        return () if ours.isdisjoint(names) else places

    def parameters(self, rotary: Rotary.Config) -> dict[str, Any]:
        """Returns the object that describes a rotary."""
        inner = _inner(rotary)
        kind = next((kind for kind, (cls, _) in _FIELDS.items() if type(inner) is cls), None)
        pairs = inner.get_in("interleaved") if kind else None
        if kind is None or (not isinstance(self.interleaved, str) and pairs is not self.interleaved):
            raise ConfigError(f"{self.path}: {type(inner).__qualname__} in this form has no name there")
        found: dict[str, Any] = {"rope_type": kind, "rope_theta": inner.get_in("theta")}
        if kind == "longrope":
            found["factor"] = inner.get_in("factor")
        for name, ours in _FIELDS[kind][1].items():
            if (value := inner.get_in(ours)) is not None:
                found[name] = list(value) if name in _LISTS else value
        if isinstance(inner, YaRN.Config) and inner.magnitude is None and inner.mscale_all_dim:
            found |= {"mscale": inner.mscale, "mscale_all_dim": inner.mscale_all_dim}
        if self.partial is not None or isinstance(rotary, PartialRotary.Config):
            found["partial_rotary_factor"] = rotary.fraction if isinstance(rotary, PartialRotary.Config) else 1.0
        return found


def _object(fields: Fields, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise fields.refused(name, "expected an object, such as {'rope_type': 'default'}")
    return value


def _is_plain(name: str, value: Any) -> bool:
    """Whether a parameter is of the type that all of its name are of."""
    if name in _LISTS:
        return isinstance(value, list) and all(map(is_number, value))
    return isinstance(value, bool) if name == "truncate" else is_number(value)


def _plain(name: str, value: Any) -> Any:
    if name in _LISTS:
        return tuple(map(float, value))
    return value if name in ("truncate", _ORIGINAL) else float(value)


def _needed(kind: str) -> tuple[str, ...]:
    return {"default": (), "longrope": _LISTS, "llama3": ("factor", "low_freq_factor", "high_freq_factor")}.get(
        kind, ("factor",)
    )


def _ratio(fields: Fields, where: str, length: Any, original: Any) -> float:
    if not is_number(length) or length <= 0 or original <= 0:
        raise fields.refused(where, f"lacks factor, and there is no {_LENGTH} to tell it")
    return length / original


def _length(rotary: Rotary.Config, found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the length of sequences where a rotary depends on it."""
    if found["rope_type"] == "dynamic":
        return {_LENGTH: _inner(rotary).get_in("original_length")}
    return {_LENGTH: round(found["factor"] * found[_ORIGINAL])} if found["rope_type"] == "longrope" else {}


def _inner(rotary: Rotary.Config) -> Rotary.Config:
    return rotary.inner if isinstance(rotary, PartialRotary.Config) else rotary


class LatentScale(Field):
    """The scale of scores in latent attention, which grows with YaRN's `mscale_all_dim`. Comes after the rotary."""

    def read(self, fields: Fields, tree: Tree) -> None:
        given = fields.values.get("rope_scaling") or fields.values.get("rope_parameters") or {}
        mixer = "layer.mixer"
        width = tree.get(f"{mixer}.nope_dim") + tree.get(f"{mixer}.rope_dim")
        rotary, more = _inner(tree.get(f"{mixer}.rotary")), given.get("mscale_all_dim")
        scaled = isinstance(rotary, YaRN.Config) and more is not None
        factor = yarn_magnitude(rotary.get_in("factor"), float(more or 0.0)) ** 2 if scaled else 1.0
        tree.set(f"{mixer}.scale", width**-0.5 * factor)

    def write(self, tree: Tree) -> dict[str, Any]:
        return {}  # The rotary says it, which reading again verifies.


class RopeByType(Rope):
    """`rope_parameters` with an object for each type of layer; or, in older files, one for all.

    Layers with a window are those of type `sliding_attention`, the others of type `full_attention`.
    """

    def __init__(self, *, sliding: float, full: float, sliding_name: str | None = None) -> None:
        super().__init__()
        self.sliding_name, self.thetas = sliding_name, {"sliding_attention": sliding, "full_attention": full}

    def read(self, fields: Fields, tree: Tree) -> None:
        given = self._given(fields)
        name = "rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters"
        found: dict[str, Rotary.Config] = {}
        for kind, default in self.thetas.items():
            own = given.get(kind)
            own = self._older(fields, given, kind, default) if own in (None, {}) else _object(fields, name, own)
            own = dict(own)
            own.pop("truncate", None)  # transformers looks for it beside the types, where it is not.
            found[kind] = self.rotary(fields, {"rope_theta": fields.get("rope_theta", default), **own})
        kinds = ["full_attention" if value is None else "sliding_attention" for _, value in tree.values(_WINDOW)]
        tree.set(self.path, PerLayer(found[kind] for kind in kinds))

    def _older(self, fields: Fields, given: Mapping[str, Any], kind: str, default: float) -> dict[str, Any]:
        """Returns what files say that have one object for all types: it is for layers without a window."""
        if kind == "sliding_attention":
            return {"rope_theta": fields.get(self.sliding_name, default) if self.sliding_name else default}
        inside = {name: value for name, value in given.items() if name not in self.thetas}
        return {"rope_theta": fields.get("rope_theta", default), **inside}

    def write(self, tree: Tree) -> dict[str, Any]:
        found, length = dict[str, Any](), dict[str, Any]()
        windows = [value for _, value in tree.values(_WINDOW)]
        rotaries = [value for _, value in tree.values(self.path)]
        for kind, default in self.thetas.items():
            sliding = kind == "sliding_attention"
            own = {r for r, window in zip(rotaries, windows, strict=True) if (window is not None) is sliding}
            if len(own) > 1:
                raise ConfigError(f"{self.path}: layers of type {kind} have several, expected one")
            rotary = next(iter(own), RoPE.Config(theta=default))
            found[kind] = self.parameters(rotary)
            length |= _length(rotary, found[kind])
        return {"rope_parameters": found, **length}
