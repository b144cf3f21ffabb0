# SPDX-License-Identifier: Apache-2.0
"""JSON: written and read without loss; a file that does not fit says where."""

import enum
import functools
import json
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from hypothesis import given, settings

from dovetail.config import REQUIRED, ConfigBase, ConfigError, config_for, from_json, modules_named, to_json, to_text
from support.configs import (
    Block,
    Dense,
    Identity,
    Kind,
    Level,
    Mixture,
    Model,
    Norm,
    Record,
    power,
    run_python,
    square,
    trees,
)

RECORD = "support.configs:Record"


class Option(enum.Flag):
    """An enum whose members combine."""

    FAST = 1
    SAFE = 2


class Renamed(ConfigBase):
    """A config of which older files exist."""

    size: int = 3
    added_later: str = "default"
    norm: Norm.Config = Norm.Config()


def again(cfg: Any, **kwargs: Any) -> Any:
    return from_json(to_json(cfg, **kwargs), allow=("support", __name__, "math", "numpy", "jax"))


def read(**fields: Any) -> Any:
    """Reads a file of a `Record` with these fields."""
    return from_json(json.dumps({"$format": 1, "$config": RECORD, **fields}), allow=["support"])


def error_of(call, *args, **kwargs) -> str:
    with pytest.raises(ConfigError) as e:
        call(*args, **kwargs)
    return str(e.value)


# Round trip.


@given(trees())
@settings(max_examples=40)
def test_reading_what_was_written_gives_an_equal_config(cfg):
    read_again = again(cfg)
    assert read_again == cfg
    assert to_text(read_again) == to_text(cfg)
    assert to_json(read_again) == to_json(cfg)
    assert again(cfg, indent=None) == cfg


VALUES = [
    None, True, False, 0, 1, -1, 10**30, 1.0, 0.1, -0.0, 1e300, 5e-324, math.nan, math.inf, -math.inf,
    "", "é ☃ 𝄞", "line\nbreak", "\x00", "$config", "nan", REQUIRED,
    [], (), {}, set(), [1, (2, [3])], (1,), ((),), {1, 2}, {"a": {"b": (1, 2)}},
    {1: "int", "1": "str", 2.5: "float"}, {True: 1}, {None: 1}, {(1, 2): 3}, {Kind.CAUSAL: 1}, {square: 1},
    {"$tuple": [1]}, {"$config": "x", "y": 1}, {"$": 1}, [{"$import": "os:system"}],
    Kind.CAUSAL, Level.LOW, Option.FAST, Option.FAST | Option.SAFE, Option(0),
    square, Norm, Norm.Config, Dense.forward, int, math.sqrt, jax.nn.relu, jax.nn.silu, jnp.tanh, jnp.add, jax.lax.add,
    np.add, optax.adamw, jax.nn.initializers.zeros, np.float32, jnp.bfloat16, jnp.float32, ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    np.dtype("float32"), np.dtype("bool"), np.dtype("complex64"), np.dtype(jnp.bfloat16), np.dtype("datetime64[ns]"),
    np.dtype(ml_dtypes.float8_e5m2), np.dtype(ml_dtypes.int4), jnp.dtype("uint8"),
    functools.partial(power), functools.partial(power, 1, exponent=2.0),
    functools.partial(jax.nn.gelu, approximate=True),
    functools.partial(power, {"a": (1,)}, **{"exponent": [functools.partial(square)]}),
    Norm.Config(), [Norm.Config(dim=3), (Dense.Config(),)], {"a": Model.Config(), 3: [Block.Config()]},
    config_for(power, 1, exponent=3), config_for(optax.chain, config_for(optax.adam, 1e-3), config_for(optax.sgd, 0.1)),
    config_for(power, config_for(square, 2)), config_for(jnp.zeros, (2,), dtype=jnp.bfloat16),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_value_is_read_as_it_was_written(value):
    cfg = Record(value=value, items=[value], table={"key": value})
    read_again = again(cfg)
    assert read_again == cfg
    assert to_text(read_again) == to_text(cfg)
    if isinstance(value, (type, Kind, Level, type(REQUIRED))) or (
        callable(value) and not isinstance(value, functools.partial)
    ):
        assert read_again.value is value


@pytest.mark.parametrize("value", [jax.nn.logsumexp, jax.lax.with_sharding_constraint, jax.sharding.AxisType.Auto])
def test_public_name_for_something_private_is_read_as_it_was_written(value):
    assert again(Record(value=value)).value is value


def _private(x: float) -> float:
    return x


def double__underscore(x: float) -> float:
    """Has a name that looks special."""
    return x


@pytest.mark.parametrize("value", [_private, double__underscore], ids=["_private", "a__b"])
def test_what_could_not_be_read_is_not_written(value):
    """Whoever saves a config can still change it; whoever reads the file years later cannot."""
    try:
        text = to_json(Record(value=value))
    except ConfigError:
        return
    assert from_json(text, allow=("support", __name__)).value is value


def test_function_config_builds_the_same_after_a_round_trip():
    cfg = config_for(power, config_for(power, 2.0), exponent=3)
    assert again(Record(value=cfg)).value == cfg
    assert again(cfg) == cfg
    assert again(config_for(power, 2.0, exponent=3)).build() == 8.0


def test_file_reads_as_one_would_write_it():
    cfg = Block.Config(dim=4, ffn=Mixture.Config(dropout=math.inf, expert=Identity.Config()))
    assert json.loads(to_json(cfg)) == {
        "$format": 1,
        "$config": "support.configs:Block.Config",
        "$explicit": ["dim", "ffn"],
        "dim": 4,
        "norm": {
            "$config": "support.configs:Norm.Config",
            "$explicit": [],
            "dim": {"$marker": "REQUIRED"},
            "eps": 1e-06,
        },
        "ffn": {
            "$config": "support.configs:Mixture.Config",
            "$explicit": ["dropout", "expert"],
            "dim": {"$marker": "REQUIRED"},
            "dropout": {"$float": "inf"},
            "num_experts": 2,
            "expert": {
                "$config": "support.configs:Identity.Config",
                "$explicit": [],
                "dim": {"$marker": "REQUIRED"},
                "dropout": 0.0,
            },
        },
    }


def test_each_sort_of_value_has_its_tag():
    value = [(1,), {2}, {3: 4}, Kind.CAUSAL, square, np.dtype("int8"), functools.partial(power, exponent=2)]
    assert json.loads(to_json(Record(items=value)))["items"] == [
        {"$tuple": [1]},
        {"$set": [2]},
        {"$dict": [[3, 4]]},
        {"$enum": "support.configs:Kind", "name": "CAUSAL"},
        {"$import": "support.configs:square"},
        {"$dtype": "int8"},
        {"$partial": {"$import": "support.configs:power"}, "args": [], "keywords": {"exponent": 2}},
    ]
    assert json.loads(to_json(config_for(square, 1))) == {
        "$format": 1,
        "$config": "dovetail.config:FunctionConfig",
        "$of": "support.configs:square",
        "$explicit": ["x"],
        "x": 1.0,
    }


class Empty(ConfigBase):
    """Has a place for nothing."""


def lost(cfg: Any) -> list[str]:
    """Returns the names of the fields that were set, as a swap sees them."""
    try:
        Empty().inherit(cfg)
    except ConfigError as e:
        return re.findall(r"'(\w+)'", str(e).partition("drop=")[2])
    return []


def test_which_fields_were_set_survives_json_and_is_no_part_of_equality():
    for cfg in (Norm.Config(), Norm.Config(eps=1e-6), Norm.Config(dim=4, eps=1e-6)):
        assert lost(from_json(to_json(cfg), allow=["support"])) == lost(cfg)
    assert Norm.Config(eps=1e-6) == Norm.Config()
    assert hash(Norm.Config(eps=1e-6)) == hash(Norm.Config())
    assert lost(Norm.Config(eps=1e-6)) == ["eps"]


def test_in_a_file_that_does_not_say_what_was_set_it_is_what_differs_from_the_defaults():
    text = '{"$format": 1, "$config": "support.configs:Norm.Config", "dim": 4, "eps": 1e-6}'
    assert lost(from_json(text, allow=["support"])) == ["dim"]


@pytest.mark.parametrize(
    "explicit", ['"dim"', "[1]", '["dimm"]', '[["dim"]]', "{}", "null", "true", '{"$tuple": ["dim"]}']
)
def test_wrong_list_of_fields_that_were_set_is_one_clear_error(explicit):
    text = f'{{"$format": 1, "$config": "support.configs:Norm.Config", "$explicit": {explicit}}}'
    with pytest.raises(
        ConfigError, match=r"^\(root\): \$explicit: expected a list of field names \(dim, eps\), found "
    ):
        from_json(text, allow=["support"])


def test_file_is_strict_json():
    def refuse(name: str) -> None:
        raise AssertionError(name)

    text = to_json(Record(items=[math.nan, math.inf, -math.inf]))
    json.loads(text, parse_constant=refuse)
    assert "é" in to_json(Record(value="é"))
    assert "\n" not in to_json(Model.Config(), indent=None)


def test_file_is_the_same_in_a_process_with_another_hash_seed():
    program = (
        "from support.configs import *\n"
        "from dovetail.config import to_json\n"
        "print(to_json(Record(value={'a', 'b', 'c'}, other={square, cube, Kind.CAUSAL, 1, 2.5})), end='')"
    )
    assert run_python(program, hash_seed=1) == run_python(program, hash_seed=2)


def test_numbers_in_a_file_keep_their_kind():
    assert repr(read(value=[1, 1.0, True])) == "Record(value=[1, 1.0, True], other=None, items=[], table={})"


def test_field_the_file_does_not_mention_has_its_default():
    text = f'{{"$format": 1, "$config": "{__name__}:Renamed", "size": 7}}'
    assert from_json(text, allow=[__name__]) == Renamed(size=7)


def test_modules_that_a_file_needs_permission_for_are_known_before_it_is_read():
    cfg = Record(value=square, other=[jax.nn.silu, int, np.load], items=[config_for(math.sqrt, 2.0), Kind.CAUSAL])
    named = {"support.configs", "numpy", "math"}
    assert modules_named(to_json(cfg)) == named
    assert from_json(to_json(cfg), allow=named) == cfg
    assert modules_named(to_json(config_for(optax.adamw, 1e-3))) == frozenset()


# What does not fit.


@pytest.mark.parametrize(
    "text, start",
    [
        ("", "not a JSON file: Expecting value: line 1 column 1 (char 0)."),
        ("{", "not a JSON file: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)."),
        ("config", "not a JSON file: Expecting value: line 1 column 1 (char 0)."),
        ("[]", "not a config: expected an object with the key '$config', as to_json writes it."),
        ("3", "not a config: expected an object with the key '$config', as to_json writes it."),
        ("{}", "not a config: expected an object with the key '$config', as to_json writes it."),
        ('{"$format": 1}', "not a config: expected an object with the key '$config', as to_json writes it."),
        ('{"$config": "a:b"}', "config format None cannot be read: this version of dovetail reads format 1."),
        (
            '{"$config": "a:b", "$format": 2}',
            "config format 2 cannot be read: this version of dovetail reads format 1.",
        ),
        (
            '{"$config": "a:b", "$format": "1"}',
            "config format '1' cannot be read: this version of dovetail reads format 1.",
        ),
    ],
)
def test_text_that_is_no_config_file_is_refused(text, start):
    assert error_of(from_json, text) == start


def test_truncated_file_is_refused_wherever_it_is_cut():
    text = to_json(Block.Config(dim=4))
    for end in range(len(text)):
        assert error_of(from_json, text[:end], allow=["support"]).startswith("not a JSON file: ")


UNFIT = [
    ({"vlaue": 1}, "(root): Record has no field 'vlaue'. Did you mean 'value'?"),
    ({"items": 3}, "items: expected list[Any], found 3 (int)."),
    ({"items": {"$tuple": []}}, "items: expected list[Any], found () (tuple)."),
    ({"value": {"$config": "support.configs:Norm.Config", "epps": 1}},
     "value: Norm.Config has no field 'epps'. Did you mean 'eps'?"),
    ({"items": [{"$config": "support.configs:Norm.Config", "eps": "a"}]},
     "items[0].eps: expected float, found 'a' (str)."),
    ({"table": {"a": {"$config": "support.configs:Block.Config", "ffn": {"$config": "support.configs:Norm.Config"}}}},
     "table.a.ffn: expected FeedForward.Config, found Norm.Config (a config)."),
    ({"value": {"$config": "support.configs:Nrom.Config"}},
     "value: module support.configs has no 'Nrom'. Did you mean 'Norm'?"),
    ({"value": {"$config": "support.confgs:Norm.Config"}},
     "value: cannot import module 'support.confgs' of 'support.confgs:Norm.Config':"
     " No module named 'support.confgs'."),
    ({"value": {"$config": "support.configs:Norm"}}, "value: support.configs:Norm is not a config class."),
    ({"value": {"$config": "support.configs:square"}}, "value: support.configs:square is not a config class."),
    ({"value": {"$config": "Norm.Config"}},
     "value: 'Norm.Config' is not an import path. Write 'module:name', as in 'jax.nn:silu'."),
    ({"value": [{"$tupel": [1]}]}, "value[0]: '$tupel' is not a kind of value this version of dovetail knows."),
    ({"value": {"a": {"$": 1}}}, "value.a: '$' is not a kind of value this version of dovetail knows."),
    ({"value": {"$enum": "support.configs:Kind", "name": "CASUAL"}},
     "value: support.configs:Kind has no member 'CASUAL'. It has: CAUSAL, MASKED."),
    ({"value": {"$enum": "support.configs:Norm", "name": "A"}}, "value: support.configs:Norm is not an enum."),
    ({"value": {"$partial": 3, "args": [], "keywords": {}}}, "value: a partial needs a callable."),
    ({"value": {"$config": "support.configs:Norm.Config", "$of": "support.configs:square"}},
     "value: Norm.Config is not made from a callable."),
    ({"value": {"$config": "dovetail.config:FunctionConfig", "$of": "support.configs:power", "y": 1}},
     "value: support.configs.power has no field 'y'. It has: x, exponent."),
    ({"value": {"$config": "dovetail.config:FunctionConfig", "$of": "support.configs:power", "x": "a"}},
     "value.x: expected float, found 'a' (str)."),
]  # fmt: skip


@pytest.mark.parametrize("fields, text", UNFIT, ids=range(len(UNFIT)))
def test_what_does_not_fit_is_refused_with_its_path(fields, text):
    assert error_of(read, **fields) == text


MALFORMED = [
    {"$tuple": "abc"}, {"$tuple": {"a": 1}}, {"$tuple": 3}, {"$set": "abc"}, {"$set": {"a": 1}}, {"$set": None},
    {"$dict": {"ab": 1}}, {"$dict": ["ab"]}, {"$dict": [[1]]}, {"$dict": [[1, 2, 3]]}, {"$dict": 3},
    {"$float": "one"}, {"$float": [1]}, {"$float": None}, {"$dtype": "float33"}, {"$dtype": 3}, {"$dtype": None},
    {"$marker": "OPTIONAL"}, {"$marker": ["REQUIRED"]}, {"$marker": None},
    {"$import": 3}, {"$import": None}, {"$import": ["numpy:add"]}, {"$import": {"a": "numpy:add"}},
    {"$enum": "support.configs:Kind"}, {"$enum": 3, "name": "A"}, {"$enum": "support.configs:Kind", "name": ["A"]},
    {"$partial": {"$import": "support.configs:square"}},
    {"$partial": {"$import": "support.configs:square"}, "args": "abc", "keywords": {}},
    {"$partial": {"$import": "support.configs:square"}, "args": [], "keywords": [1]},
    {"$partial": {"$import": "support.configs:square"}, "args": 3, "keywords": {}},
    {"$config": 3}, {"$config": None}, {"$config": ["a:b"]},
    {"$config": "dovetail.config:FunctionConfig"},
    {"$config": "dovetail.config:FunctionConfig", "$of": 3},
    {"$config": "dovetail.config:FunctionConfig", "$of": "numpy:pi"},
    {"$config": "dovetail.config:FunctionConfig", "$of": "numpy:newaxis"},
    {"$config": "dovetail.config._values:Node"},
]  # fmt: skip


@pytest.mark.parametrize("value", MALFORMED, ids=json.dumps)
def test_malformed_value_is_refused_with_its_path(value):
    assert error_of(read, items=[1, value]).startswith("items[1]: ")


@pytest.mark.parametrize("value", [v for v in MALFORMED if "$config" in v], ids=json.dumps)
def test_malformed_root_is_refused(value):
    text = error_of(from_json, json.dumps({"$format": 1, **value}))
    assert text.startswith("(root): ")


def test_default_marker_is_for_parameters_with_a_default_only():
    assert error_of(read, items={"$marker": "DEFAULT"}).startswith("items: ")
    call = {"$config": "dovetail.config:FunctionConfig", "$of": "support.configs:power", "x": {"$marker": "DEFAULT"}}
    assert error_of(read, value=call).startswith("value.x: ")


def test_config_that_cannot_be_found_again_is_refused_when_written():
    class Local(ConfigBase):
        pass

    with pytest.raises(ConfigError, match=r"Local'> cannot be found again by an import path"):
        to_json(Record(value=Local()))
