# SPDX-License-Identifier: Apache-2.0
"""`ConfigBase`: frozen, hashable, comparable, picklable records; what a class body may say."""

import copy
import functools
import pickle
import typing
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings

from dovetail.config import REQUIRED, ConfigBase, ConfigError, config_for, fields_of, to_text
from support.configs import (
    Block,
    Dense,
    FeedForward,
    Identity,
    Model,
    Norm,
    Record,
    Twin,
    cube,
    power,
    reordered,
    run_python,
    square,
    trees,
)


class Numeric(ConfigBase):
    """A record of what JAX and NumPy bring: wrapped functions and dtypes."""

    jitted: Callable[..., Any] = jax.nn.silu
    custom_jvp: Callable[..., Any] = jax.nn.relu
    ufunc: Callable[..., Any] = jnp.tanh
    scalar_type: Any = jnp.bfloat16
    dtype: np.dtype = np.dtype(jnp.bfloat16)
    partial: Any = functools.partial(jax.nn.gelu, approximate=False)
    optimizer: Any = config_for(optax.adam, 1e-3)


def test_config_prints_as_it_is_written():
    assert repr(Block.Config(dim=4, ffn=Identity.Config())) == (
        "Block.Config(dim=4, norm=Norm.Config(dim=REQUIRED, eps=1e-06), ffn=Identity.Config(dim=REQUIRED, dropout=0.0))"
    )
    assert repr(Record(items=[Norm.Config(dim=1)], table={"a": square})) == (
        "Record(value=None, other=None, items=[Norm.Config(dim=1, eps=1e-06)], table={'a': support.configs.square})"
    )


def test_field_without_default_is_required():
    class Bare(ConfigBase):
        size: int
        rate: float = 0.5

    assert repr(Bare()) == "Bare(size=REQUIRED, rate=0.5)"  # pyright: ignore[reportCallIssue]


# Frozen.


@pytest.mark.parametrize(
    "cfg, label",
    [(Norm.Config(), "Norm.Config"), (Record(), "Record"), (config_for(power), "support.configs.power")],
)
@pytest.mark.parametrize("name", ["dim", "value", "x", "brand_new", "_explicit", "set"])
def test_no_attribute_can_be_assigned(cfg, label, name):
    with pytest.raises(AttributeError) as e:
        setattr(cfg, name, 3)
    assert str(e.value) == f"{label} is frozen. Use cfg.set({name}=...), which returns a copy."


def test_no_attribute_can_be_deleted():
    with pytest.raises(AttributeError) as e:
        del Norm.Config().eps  # pyright: ignore[reportAttributeAccessIssue]
    assert str(e.value) == "Norm.Config is frozen: 'eps' cannot be deleted."


def test_child_of_a_config_cannot_be_assigned_to():
    cfg = Block.Config(dim=4)
    with pytest.raises(AttributeError, match=r"^Norm\.Config is frozen\."):
        cfg.norm.eps = 3.0  # pyright: ignore[reportAttributeAccessIssue]
    assert cfg == Block.Config(dim=4)


def test_default_child_is_never_changed_through_a_parent():
    one = Block.Config(dim=4)
    changed = one.set_in("norm.eps", 0.5).set_in("ffn.hidden", 9)
    assert (changed.norm.eps, changed.get_in("ffn.hidden")) == (0.5, 9)
    assert one.norm == Block.Config().norm == Block.Config.norm == Norm.Config(eps=1e-6)
    assert Block.Config.ffn == Dense.Config(hidden=8)


# set.


def test_set_returns_a_changed_copy():
    cfg = Norm.Config(dim=4)
    assert cfg.set(dim=5, eps=1) == Norm.Config(dim=5, eps=1.0)
    assert cfg == Norm.Config(dim=4)
    assert type(cfg.set(dim=5)) is Norm.Config


def test_set_keeps_what_it_does_not_change():
    cfg = Model.Config()
    changed = cfg.set(name="other")
    assert changed.blocks is cfg.blocks
    assert changed.heads is cfg.heads


UNKNOWN = [
    ({"epps": 1}, "Norm.Config has no field 'epps'. Did you mean 'eps'?"),
    ({"DIM": 1}, "Norm.Config has no field 'DIM'. Did you mean 'dim'?"),
    ({"zzz": 1}, "Norm.Config has no field 'zzz'. It has: dim, eps."),
    ({"build": 1}, "Norm.Config has no field 'build'. It has: dim, eps."),
    ({"dim": "4"}, "Norm.Config.dim: expected int, found '4' (str)."),
]


@pytest.mark.parametrize("fields, text", UNKNOWN)
def test_constructor_and_set_check_names_and_types(fields, text):
    for make in (Norm.Config, Norm.Config().set):
        with pytest.raises(ConfigError) as e:
            make(**fields)
        assert str(e.value) == text


def test_config_without_fields_says_so():
    class Empty(ConfigBase):
        pass

    with pytest.raises(ConfigError) as e:
        Empty(size=1)  # pyright: ignore[reportCallIssue]
    assert str(e.value) == "Empty has no field 'size'. It has: no fields."


def test_positional_argument_is_refused_and_names_the_class():
    with pytest.raises(TypeError, match=r"takes 1 positional argument but 2 were given"):
        Norm.Config(3)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    "name, text",
    [
        ("epss", "Norm.Config has no field 'epss'. Did you mean 'eps'?"),
        ("zzz", "Norm.Config has no field 'zzz'."),
        ("__wrapped__", "Norm.Config has no field '__wrapped__'."),
    ],
)
def test_reading_an_unknown_field_names_the_nearest(name, text):
    with pytest.raises(AttributeError) as e:
        getattr(Norm.Config(), name)
    assert str(e.value) == text
    assert not hasattr(Norm.Config(), name)


# Equal, hash, copy, pickle.


def test_equal_fields_of_another_class_are_not_equal():
    assert Record() != Twin()
    assert Identity.Config(dim=1) != FeedForward.Config(dim=1)
    assert Record() != "Record()"
    assert (Record() == object()) is False


@given(trees())
@settings(max_examples=40)
def test_order_of_dicts_matters_neither_to_equality_nor_to_text(cfg):
    other = reordered(cfg)
    assert cfg == other
    assert to_text(cfg) == to_text(other)


@given(trees(), trees())
@settings(max_examples=40)
def test_equal_exactly_if_the_text_is_equal_and_then_the_hash_is_too(one, two):
    assert (one == two) == (to_text(one) == to_text(two))
    assert one != two or hash(one) == hash(two)


@given(trees())
@settings(max_examples=40)
def test_copy_and_deepcopy_are_equal(cfg):
    assert copy.copy(cfg) == cfg
    assert copy.deepcopy(cfg) == cfg
    assert copy.deepcopy([cfg, {"a": cfg}]) == [cfg, {"a": cfg}]


@given(trees())
@settings(max_examples=40)
def test_pickle_gives_an_equal_config_with_an_equal_hash(cfg):
    again = pickle.loads(pickle.dumps(cfg))
    assert again == cfg
    assert hash(again) == hash(cfg)
    assert to_text(again) == to_text(cfg)
    assert again.set(value=0) == cfg.set(value=0)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_wrapped_functions_and_dtypes_survive_each_pickle_protocol(protocol):
    again = pickle.loads(pickle.dumps(Numeric(), protocol))
    assert again == Numeric()
    for name in ("jitted", "custom_jvp", "ufunc", "scalar_type", "dtype"):
        assert getattr(again, name) is getattr(Numeric(), name)


def test_pickle_keeps_at_every_depth_which_fields_were_set():
    cfg = Block.Config(norm=Norm.Config(dim=7))
    old = Norm.Config(dim=3, eps=0.5)
    for norm in (cfg.norm, pickle.loads(pickle.dumps(cfg.norm)), pickle.loads(pickle.dumps(cfg)).norm):
        assert norm.inherit(old) == Norm.Config(dim=7, eps=0.5)


def test_pickle_from_a_process_with_another_hash_seed_is_equal_and_found_in_a_set(tmp_path):
    program = (
        "import pickle, sys, functools, jax, jax.numpy as jnp, numpy as np\n"
        "from support.configs import *\n"
        "value = {'b': {'x', 'y'}, 'a': jax.nn.relu, 'c': functools.partial(jax.nn.gelu, approximate=False)}\n"
        "cfg = Record(value=value, other=np.dtype(jnp.bfloat16), items=[Model.Config(), jnp.bfloat16, REQUIRED])\n"
        "hash(cfg)\n"
        "pickle.dump(cfg, open(sys.argv[1], 'wb'))"
    )
    run_python(program, str(tmp_path / "cfg.pickle"), hash_seed=12345)
    again = pickle.loads((tmp_path / "cfg.pickle").read_bytes())
    cfg = Record(
        value={"b": {"x", "y"}, "a": jax.nn.relu, "c": functools.partial(jax.nn.gelu, approximate=False)},
        other=np.dtype(jnp.bfloat16),
        items=[Model.Config(), jnp.bfloat16, REQUIRED],
    )
    assert again == cfg
    assert again in {cfg}
    assert {again: 1}[cfg] == 1


# Inheritance.


def test_subclass_may_give_a_field_another_default_and_type():
    class Wide(Norm.Config):
        dim: int = 7
        eps: float | None = None  # pyright: ignore[reportIncompatibleVariableOverride]

    assert repr(Wide()) == "Wide(dim=7, eps=None)"
    assert fields_of(Wide) == {"dim": int, "eps": float | None}
    assert Norm.Config().eps == 1e-6


def test_default_follows_the_order_of_the_bases():
    class Root(ConfigBase):
        size: int = 1

    class Left(Root):
        pass

    class Right(Root):
        size: int = 2

    class Both(Left, Right):
        pass

    assert [cls.__name__ for cls in Both.__mro__[:4]] == ["Both", "Left", "Right", "Root"]
    assert Both().size == 2


def test_methods_and_properties_of_a_config_class_are_not_fields():
    class Area(ConfigBase):
        width: int = 2
        height: int = 3

        @property
        def area(self) -> int:
            return self.width * self.height

        def doubled(self) -> "Area":
            return self.set(width=2 * self.width)

        @classmethod
        def unit(cls) -> "Area":
            return cls(width=1, height=1)

        @staticmethod
        def sides() -> int:
            return 4

    assert list(fields_of(Area)) == ["width", "height"]
    assert (Area().area, Area().doubled().area, Area.unit().area, Area.sides()) == (6, 12, 1, 4)


@pytest.mark.parametrize("value, shown", [(3, "3"), (None, "None"), ([1], "[1]"), (jax.nn.relu, "<jax.")])
def test_value_without_annotation_in_a_class_body_is_refused(value, shown):
    with pytest.raises(ConfigError) as e:
        type("Bad", (ConfigBase,), {"size": value})
    assert str(e.value).startswith(f"Bad.size has no type. Write `size: <type> = {shown}")


@pytest.mark.parametrize("name", ["set", "build", "get_in", "set_in", "inherit", "_private", "__dunder__"])
def test_field_may_not_have_the_name_of_a_method_or_a_private_name(name):
    with pytest.raises(ConfigError) as e:
        type("Bad", (ConfigBase,), {"__annotations__": {name: int}})
    assert str(e.value) == f"Bad.{name}: a field may not be called {name!r}. Choose another name."


def test_default_that_is_no_config_value_is_refused_with_its_place():
    with pytest.raises(ConfigError, match=r"^Bad\.size: b'x' \(builtins\.bytes\) is not a config value\.\n"):
        type("Bad", (ConfigBase,), {"__annotations__": {"size": typing.Any}, "size": b"x"})


def test_plain_record_cannot_be_built():
    with pytest.raises(ConfigError) as e:
        Record().build()
    assert str(e.value) == "Record is a plain record: there is no component to build from it."


def test_field_kept_as_it_was_is_the_same_object():
    cfg = Record(value=cube, items=[Norm.Config()])
    assert cfg.set(other=1).items is cfg.items
