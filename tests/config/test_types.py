# SPDX-License-Identifier: Apache-2.0
"""Run-time types: what fits an annotation, what is converted, and what the error says."""

# ruff: noqa: UP006, UP007, UP045 (what people write is read, whatever ruff prefers)

import collections.abc
import enum
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Generic, Literal, NewType, Optional, Protocol, TypeVar, Union

import jax
import numpy as np
import pytest

from dovetail.config import REQUIRED, ConfigBase, ConfigError, FunctionConfig, config_for, fields_of
from support.configs import Block, Dense, FeedForward, Identity, Kind, Level, Mixture, Model, Norm, power, square

Count = NewType("Count", int)
Bound = TypeVar("Bound", bound=int)
Free = TypeVar("Free")
T = TypeVar("T")


class HasForward(Protocol):
    """A protocol that cannot be checked."""

    def forward(self, x: float) -> float: ...


@typing.runtime_checkable
class HasDim(Protocol):
    """A protocol that can be checked."""

    dim: int


class Box(ConfigBase, Generic[T]):
    """A generic config."""

    inside: Any = None


class Shape(typing.TypedDict):
    """A dict of known keys."""

    width: int


def holding(hint: Any, value: Any) -> Any:
    """Returns what a field annotated `hint` keeps of `value`."""
    cls: Any = type("Cfg", (ConfigBase,), {"__annotations__": {"x": hint}, "__module__": __name__})
    return cls(x=value).x


FITS = [
    (int, 3),
    (float, 1.5),
    (bool, True),
    (str, "a"),
    (None, None),
    (object, [1]),
    (Any, {"a": 1}),
    (Optional[int], None),
    (int | None, 3),
    (Union[int, str], "a"),
    (int | float, 1),
    (float | int, 1),
    (bool | int, 1),
    (int | bool, True),
    (Literal["a", 1, None], 1),
    (Literal["a"] | None, None),
    (Literal[Kind.CAUSAL], Kind.CAUSAL),
    (Kind, Kind.MASKED),
    (int, Level.HIGH),
    (list, [1, "a"]),
    (list[int], []),
    (typing.List, [1, "a"]),
    (typing.List[int], [1]),
    (list[list[int]], [[1], []]),
    (list, [1, "a"]),
    (list[int], [1]),
    (tuple, (1, "a")),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (tuple[int, ...], ()),
    (tuple[()], ()),
    (typing.Tuple, (1, "a")),
    (tuple, (1, "a")),
    (dict, {1: "a"}),
    (dict[str, list[int]], {"a": [1]}),
    (typing.Dict, {1: "a"}),
    (dict, {1: "a"}),
    (set, {1}),
    (set[int], {1, 2}),
    (frozenset[int], {1, 2}),
    (collections.abc.Set[int], {1, 2}),
    (Sequence[int], [1]),
    (Sequence[int], (1, 2)),
    (Iterable[str], ["a"]),
    (Iterable[str], {"a": 1}),
    (Mapping[str, int], {"a": 1}),
    (Callable[[float], float], square),
    (Callable[..., Any], Norm),
    (Callable, jax.nn.relu),
    (typing.Callable[[], int], square),
    (Callable[[float], float] | None, None),
    (type, int),
    (type[FeedForward], Dense),
    (type[Any], int),
    (type[Norm] | type[Dense], Dense),
    (type[Norm | Dense], Dense),
    (type[Bound], bool),  # pyright: ignore[reportGeneralTypeIssues]
    (np.dtype, np.dtype("int8")),
    (Annotated[int, "unit"], 3),
    (Final[int], 3),
    (Count, 3),
    (list[Count], [3]),
    (Bound, 3),
    (Free, "anything"),
    (HasForward, 3),
    (HasDim, Norm.Config(dim=1)),
    (FeedForward.Config, Dense.Config()),
    (FeedForward.Config, Identity.Config()),
    (FeedForward.Config | None, None),
    (list[FeedForward.Config], [Dense.Config(), Mixture.Config()]),
    (dict[str, FeedForward.Config], {"a": Dense.Config()}),
    (Box[int], Box()),
    (FunctionConfig[float], config_for(power)),
    (Shape, {"width": 3}),
]


@pytest.mark.parametrize(
    "hint, value", FITS, ids=[f"{i}-{getattr(h, '__name__', '')}" for i, (h, _) in enumerate(FITS)]
)
def test_value_of_the_annotated_type_is_kept_unchanged(hint, value):
    kept = holding(hint, value)
    assert kept == value
    plain = (bool, int, float, str, tuple, Level, Kind, type)
    assert not isinstance(value, plain) or type(kept) is type(value)


@pytest.mark.parametrize(
    "hint, value, kept",
    [
        (float, 3, 3.0),
        (float | None, 3, 3.0),
        (float | str, 3, 3.0),
        (bool | float, 3, 3.0),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (tuple[float, int], (1, 1), (1.0, 1)),
        (tuple[float, ...], (1, 2), (1.0, 2.0)),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (dict[float, str], {1: "a"}, {1.0: "a"}),
        (frozenset[float], {1, 2}, frozenset({1.0, 2.0})),
        (Sequence[float], (1, 2), (1.0, 2.0)),
        (float, np.float64(0.5), 0.5),
        (Annotated[float, "unit"], 3, 3.0),
    ],
)
def test_int_becomes_float_where_a_float_is_expected(hint, value, kept):
    assert repr(holding(hint, value)) == repr(kept)


MISFITS = [
    (int, "3", "Cfg.x: expected int, found '3' (str)."),
    (int, 3.0, "Cfg.x: expected int, found 3.0 (float)."),
    (int, True, "Cfg.x: expected int, found True (bool)."),
    (float, True, "Cfg.x: expected float, found True (bool)."),
    (bool, 1, "Cfg.x: expected bool, found 1 (int)."),
    (str, 3, "Cfg.x: expected str, found 3 (int)."),
    (int, None, "Cfg.x: expected int, found None (NoneType)."),
    (None, 3, "Cfg.x: expected None, found 3 (int)."),
    (Optional[int], "a", "Cfg.x: expected int | None, found 'a' (str)."),
    (int | float | None, True, "Cfg.x: expected int | float | None, found True (bool)."),
    (Literal["a", 1], "b", "Cfg.x: expected one of 'a', 1, found 'b' (str)."),
    (Literal[1], True, "Cfg.x: expected one of 1, found True (bool)."),
    (Literal["a"] | None, 3, "Cfg.x: expected one of 'a' | None, found 3 (int)."),
    (Kind, "causal", "Cfg.x: expected Kind (CAUSAL, MASKED), found 'causal' (str)."),
    (Kind, Level.LOW, "Cfg.x: expected Kind (CAUSAL, MASKED), found support.configs.Level.LOW (Level)."),
    (Level, 1, "Cfg.x: expected Level (LOW, HIGH), found 1 (int)."),
    (list[int], (1,), "Cfg.x: expected list[int], found (1,) (tuple)."),
    (list[int], "12", "Cfg.x: expected list[int], found '12' (str)."),
    (list[int], [1, "a"], "Cfg.x[1]: expected int, found 'a' (str)."),
    (list[list[int]], [[1], [2, True]], "Cfg.x[1][1]: expected int, found True (bool)."),
    (list[int] | None, [1, "a"], "Cfg.x[1]: expected int, found 'a' (str)."),
    (list[int] | list[bool], ["a"], "Cfg.x: expected list[int] | list[bool], found ['a'] (list)."),
    (tuple[int, str], [1, "a"], "Cfg.x: expected tuple[int, str], found [1, 'a'] (list)."),
    (tuple[int, str], (1,), "Cfg.x: expected tuple[int, str], found (1,) (tuple)."),
    (tuple[int, str], (1, 2), "Cfg.x[1]: expected str, found 2 (int)."),
    (tuple[int, ...], (1, "a"), "Cfg.x[1]: expected int, found 'a' (str)."),
    (tuple[int, ...], [1], "Cfg.x: expected tuple[int, ...], found [1] (list)."),
    (tuple[()], (1,), "Cfg.x: expected tuple[()], found (1,) (tuple)."),
    (dict[str, int], [1], "Cfg.x: expected dict[str, int], found [1] (list)."),
    (dict[str, int], {"a": "b"}, "Cfg.x.a: expected int, found 'b' (str)."),
    (dict[str, int], {1: 1}, "key of Cfg.x: expected str, found 1 (int)."),
    (frozenset[int], [1], "Cfg.x: expected frozenset[int], found [1] (list)."),
    (frozenset[int], {"a"}, "item of Cfg.x: expected int, found 'a' (str)."),
    (Sequence[str], "abc", "Cfg.x: expected Sequence[str], found 'abc' (str)."),
    (Sequence[int], {1}, "Cfg.x: expected Sequence[int], found set(1) (set)."),
    (Mapping[str, int], [1], "Cfg.x: expected Mapping[str, int], found [1] (list)."),
    (Callable[[float], float], 3, "Cfg.x: expected Callable[[float], float], found 3 (int)."),
    (Callable[..., Any], "a", "Cfg.x: expected Callable[..., Any], found 'a' (str)."),
    (Callable, Norm.Config(), "Cfg.x: expected Callable, found Norm.Config (a config)."),
    (type[FeedForward], Norm, "Cfg.x: expected type[FeedForward], found support.configs.Norm (a class)."),
    (type[FeedForward], square, "Cfg.x: expected type[FeedForward], found support.configs.square (a function)."),
    (type[FeedForward], Dense.Config(), "Cfg.x: expected type[FeedForward], found Dense.Config (a config)."),
    (np.dtype, "int8", "Cfg.x: expected dtype, found 'int8' (str)."),
    (int, np.dtype("int8"), "Cfg.x: expected int, found dtype(int8) (dtype)."),
    (Annotated[int, "unit"], "a", "Cfg.x: expected int, found 'a' (str)."),
    (Count, "a", "Cfg.x: expected int, found 'a' (str)."),
    (list[Count], ["a"], "Cfg.x[0]: expected int, found 'a' (str)."),
    (Bound, "a", "Cfg.x: expected int, found 'a' (str)."),
    (HasDim, Model.Config(), "Cfg.x: expected HasDim, found Model.Config (a config)."),
    (FeedForward.Config, Norm.Config(), "Cfg.x: expected FeedForward.Config, found Norm.Config (a config)."),
    (FeedForward.Config, Dense, "Cfg.x: expected FeedForward.Config, found support.configs.Dense (a class)."),
    (FeedForward.Config, None, "Cfg.x: expected FeedForward.Config, found None (NoneType)."),
    (
        list[FeedForward.Config],
        [Dense.Config(), Norm.Config()],
        "Cfg.x[1]: expected FeedForward.Config, found Norm.Config (a config).",
    ),
    (list[int], [REQUIRED], "Cfg.x[0]: expected int, found REQUIRED (Marker)."),
    (int, config_for(power), "Cfg.x: expected int, found config_for(support.configs.power) (a config)."),
    (int, "long " * 30, "Cfg.x: expected int, found '" + ("long " * 30)[:76] + "... (str)."),
]


@pytest.mark.parametrize("hint, value, text", MISFITS, ids=range(len(MISFITS)))
def test_value_of_another_type_is_refused_with_both_sides(hint, value, text):
    with pytest.raises(ConfigError) as e:
        holding(hint, value)
    assert str(e.value) == text


@pytest.mark.parametrize("hint", [int, str, Kind, list[int], FeedForward.Config, Callable[..., Any]])
def test_required_may_stand_in_any_field(hint):
    assert holding(hint, REQUIRED) is REQUIRED


def test_defaults_are_checked_when_the_class_is_made():
    with pytest.raises(ConfigError) as e:

        class Bad(ConfigBase):
            size: int = "3"  # pyright: ignore[reportAssignmentType]

    assert str(e.value) == "Bad.size: expected int, found '3' (str)."


def test_defaults_are_converted_like_any_value():
    class Good(ConfigBase):
        rate: float = 1
        rates: tuple[float, ...] = (1, 2)

    assert repr(Good()) == "Good(rate=1.0, rates=(1.0, 2.0))"
    assert repr(Good.rate) == "1.0"


class Forward(ConfigBase):
    """A class with annotations that can only be read later."""

    later: "Later | None" = None
    many: "list[Later]" = []
    bad: "Later | None" = 3  # pyright: ignore[reportAssignmentType]


class Later(ConfigBase):
    """A class that is referred to before it is there."""

    size: int = 0


class Linked(ConfigBase):
    """A class that refers to itself."""

    next: "Linked | None" = None


def test_default_behind_a_forward_reference_is_checked_at_first_use():
    with pytest.raises(ConfigError) as e:
        Forward()
    assert str(e.value) == "Forward.bad: expected Later | None, found 3 (int)."


def test_forward_reference_is_enforced():
    assert Linked(next=Linked()).next == Linked()
    with pytest.raises(ConfigError) as e:
        Linked(next=Later())  # pyright: ignore[reportArgumentType]
    assert str(e.value) == "Linked.next: expected Linked | None, found Later (a config)."


def test_annotation_that_names_nothing_says_where_it_is():
    class Lost(ConfigBase):
        x: "Nowhere" = None  # pyright: ignore[reportUndefinedVariable] # noqa: F821

    for use in (Lost, lambda: fields_of(Lost)):
        with pytest.raises(ConfigError) as e:
            use()
        assert str(e.value) == (
            "Lost: name 'Nowhere' is not defined, in an annotation. Define or import it at module level."
        )


def test_class_variables_are_not_fields():
    class Counted(ConfigBase):
        count: typing.ClassVar[int] = 3
        total: "typing.ClassVar[int]" = 4
        size: int = 1

    assert fields_of(Counted) == {"size": int}
    assert Counted.count == 3


def test_fields_of_gives_types_inherited_first():
    assert list(fields_of(Dense.Config)) == ["dim", "dropout", "hidden", "activation"]
    assert fields_of(Block.Config(dim=1)) == {"dim": int, "norm": Norm.Config, "ffn": FeedForward.Config}


def test_fields_of_cannot_be_used_to_change_a_class():
    fields_of(Norm.Config).clear()
    assert list(fields_of(Norm.Config)) == ["dim", "eps"]


class Digit(enum.StrEnum):
    """An enum whose members are strings."""

    ONE = "1"


def test_enum_of_strings_fits_a_str_field_and_stays_an_enum():
    assert holding(str, Digit.ONE) is Digit.ONE


class Number(ConfigBase):
    """A number."""

    x: float = 0.0


def test_whole_number_that_no_float_holds_does_not_fit_a_float():
    with pytest.raises(ConfigError, match=r"^Number\.x: expected float, found 1000"):
        Number(x=10**400)
