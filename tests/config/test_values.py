# SPDX-License-Identifier: Apache-2.0
"""What a config may hold: frozen, spelled canonically, refused with a reason."""

import collections
import copy
import functools
import math
import pickle

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from dovetail.config import REQUIRED, ConfigError, config_for, to_text
from support.configs import Dense, Kind, Level, Norm, Record, cube, power, records, run_python, square, values

NOT_A_VALUE = (
    "  A config holds plain data: numbers, strings, enums, dtypes, functions and classes by name, configs, and\n"
    "  lists, tuples, dicts and sets of these. For any other object, store what makes it: config_for(make, ...)."
)


def call(*args, **kwargs) -> None:
    """Takes anything."""


def spelled(value) -> str:
    return to_text(Record(value=value)).splitlines()[1].removeprefix("value = ")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda marker: pickle.loads(pickle.dumps(marker))])
def test_required_stays_itself(duplicate):
    assert duplicate(REQUIRED) is REQUIRED
    assert duplicate([REQUIRED])[0] is REQUIRED


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_required_survives_each_pickle_protocol(protocol):
    assert pickle.loads(pickle.dumps(REQUIRED, protocol)) is REQUIRED


def test_required_has_no_truth_value():
    with pytest.raises(TypeError) as e:
        bool(REQUIRED)
    text = "REQUIRED stands for a field that is not set yet. It has no truth value: test `value is REQUIRED`."
    assert str(e.value) == text


def test_required_prints_as_it_is_written():
    assert repr(REQUIRED) == "REQUIRED"


CHANGES_OF_A_LIST = {
    "append": lambda x: x.append(1),
    "extend": lambda x: x.extend([1]),
    "insert": lambda x: x.insert(0, 1),
    "pop": lambda x: x.pop(),
    "remove": lambda x: x.remove(1),
    "clear": lambda x: x.clear(),
    "sort": lambda x: x.sort(),
    "reverse": lambda x: x.reverse(),
    "set item": lambda x: x.__setitem__(0, 1),
    "delete item": lambda x: x.__delitem__(0),
    "set slice": lambda x: x.__setitem__(slice(0, 1), []),
    "+=": lambda x: x.__iadd__([1]),
    "*=": lambda x: x.__imul__(2),
}
CHANGES_OF_A_DICT = {
    "pop": lambda x: x.pop("a"),
    "popitem": lambda x: x.popitem(),
    "clear": lambda x: x.clear(),
    "update": lambda x: x.update(a=2),
    "setdefault": lambda x: x.setdefault("b", 1),
    "set item": lambda x: x.__setitem__("a", 2),
    "delete item": lambda x: x.__delitem__("a"),
    "|=": lambda x: x.__ior__({"a": 2}),
}


@pytest.mark.parametrize("name", CHANGES_OF_A_LIST)
@pytest.mark.parametrize("place", ["items", "table['a']", "other[0]"])
def test_no_method_changes_a_list_in_a_config(name, place):
    cfg = Record(items=[3, 1], table={"a": [3, 1]}, other=([3, 1],))
    with pytest.raises(TypeError) as e:
        CHANGES_OF_A_LIST[name](cfg.get_in(place))
    assert str(e.value) == "this list belongs to a config and is frozen. Make a new one and pass it to cfg.set(...)."
    assert cfg == Record(items=[3, 1], table={"a": [3, 1]}, other=([3, 1],))


@pytest.mark.parametrize("name", CHANGES_OF_A_DICT)
@pytest.mark.parametrize("place", ["table", "items[0]"])
def test_no_method_changes_a_dict_in_a_config(name, place):
    cfg = Record(table={"a": 1}, items=[{"a": 1}])
    with pytest.raises(TypeError) as e:
        CHANGES_OF_A_DICT[name](cfg.get_in(place))
    assert str(e.value) == "this dict belongs to a config and is frozen. Make a new one and pass it to cfg.set(...)."
    assert cfg == Record(table={"a": 1}, items=[{"a": 1}])


def test_partial_in_a_config_cannot_be_changed():
    cfg = Record(value=functools.partial(power, exponent=3.0))
    with pytest.raises(TypeError):
        cfg.value.keywords["exponent"] = 4.0
    assert cfg.value(2.0) == 8.0


def test_config_keeps_nothing_of_the_containers_it_was_given():
    inner, table = [1], {"a": [1]}
    cfg = Record(items=[inner], table=table, value={1})
    inner.append(2)
    table["a"].append(2)
    table["b"] = [3]
    assert (cfg.items, cfg.table, cfg.value) == ([[1]], {"a": [1]}, {1})


def test_frozen_containers_are_lists_and_dicts_to_their_readers():
    cfg = Record(items=[1, [2]], table={"a": {"b": 1}})
    assert isinstance(cfg.items, list)
    assert isinstance(cfg.table, dict)
    assert isinstance(cfg.table["a"], dict)
    assert [*cfg.items, 3] == [1, [2], 3]
    assert cfg.table | {"c": 1} == {"a": {"b": 1}, "c": 1}


@pytest.mark.parametrize("value", [[1, [2, {"a": 3}]], {"a": [1], 2: {"b": ()}}])
def test_frozen_containers_hash_by_value_and_survive_copy_and_pickle(value):
    one, two = Record(value=value).value, Record(value=value).value
    assert hash(one) == hash(two)
    for again in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert again == one
        assert type(again) is type(one)
        with pytest.raises(TypeError, match="belongs to a config and is frozen"):
            again.clear()


class Text(str):
    """A string with more to it."""


class Number(int):
    """An int with more to it."""


@pytest.mark.parametrize(
    "given_value, kept",
    [(Text("a"), "a"), (Number(3), 3), (np.float64(0.1), 0.1), (np.str_("a"), "a")],
)
def test_subclass_of_a_plain_type_is_kept_as_the_plain_value(given_value, kept):
    value = Record(value=given_value).value
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(
    "scalar, kept",
    [(np.int64(3), 3), (np.uint8(3), 3), (np.float32(0.5), 0.5), (np.bool_(True), True), (np.bool_(False), False)],
)
def test_numpy_scalar_is_kept_as_a_plain_number(scalar, kept):
    value = Record(value=scalar).value
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(
    "value, found",
    [
        (np.zeros(2), "Record.value: array([0., 0.]) (numpy.ndarray)"),
        (jnp.float32(1), "Record.value: Array(1., dtype=float32) (jaxlib._jax.ArrayImpl)"),
        (b"x", "Record.value: b'x' (builtins.bytes)"),
        (1j, "Record.value: 1j (builtins.complex)"),
        (collections.deque([1]), "Record.value: deque([1]) (collections.deque)"),
        (range(3), "Record.value: range(0, 3) (builtins.range)"),
        ([1, [b"x"]], "Record.value[1][0]: b'x' (builtins.bytes)"),
        (([], (b"x",)), "Record.value[1][0]: b'x' (builtins.bytes)"),
        ({"a": {3: b"x"}}, "Record.value.a[3]: b'x' (builtins.bytes)"),
        ({b"x": 1}, "key of Record.value: b'x' (builtins.bytes)"),
        (functools.partial(call, b"x"), "Record.value[0]: b'x' (builtins.bytes)"),
        (functools.partial(call, exponent=b"x"), "Record.value.exponent: b'x' (builtins.bytes)"),
    ],
)
def test_other_objects_are_refused_with_their_place(value, found):
    with pytest.raises(ConfigError) as e:
        Record(value=value)
    assert str(e.value) == f"{found} is not a config value.\n{NOT_A_VALUE}"


class Caller:
    """An instance that can be called but not imported."""

    def __call__(self) -> None:
        """Does nothing."""

    def __repr__(self) -> str:
        return "Caller()"


@pytest.mark.parametrize("place, wrap", [("", lambda f: f), ("[0]", lambda f: [f]), ("", functools.partial)])
def test_callable_without_import_path_is_refused_where_it_is_set(place, wrap):
    with pytest.raises(ConfigError) as e:
        Record(value=wrap(Caller()))
    assert str(e.value) == (
        f"Record.value{place}: Caller() cannot be found again by an import path, so a config holding it could not be "
        "saved.\n"
        "  Define it by name at the top level of a module, or wrap what makes it: config_for(make, ...)."
    )


@pytest.mark.parametrize(
    "value, text",
    [
        (None, "None"),
        (True, "True"),
        (1, "1"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (1e-5, "1e-05"),
        ("it's\n", '"it\'s\\n"'),
        ([], "[]"),
        ([1, "a"], "[1, 'a']"),
        ((), "()"),
        ((1,), "(1,)"),
        ((1, 2), "(1, 2)"),
        (set(), "set()"),
        ({"b", "a"}, "set('a', 'b')"),
        ({}, "{}"),
        ({"b": 1, "a": [2]}, "{'a': [2], 'b': 1}"),
        (Kind.MASKED, "support.configs.Kind.MASKED"),
        (Level.LOW, "support.configs.Level.LOW"),
        (square, "support.configs.square"),
        (Norm.Config, "support.configs.Norm.Config"),
        (Dense.forward, "support.configs.Dense.forward"),
        (int, "builtins.int"),
        (math.sqrt, "math.sqrt"),
        (jax.nn.relu, "jax.nn.relu"),
        (jax.nn.silu, "jax.nn.silu"),
        (jnp.tanh, "jax.numpy.tanh"),
        (jnp.bfloat16, "jax.numpy.bfloat16"),
        (np.float32, "numpy.float32"),
        (ml_dtypes.bfloat16, "ml_dtypes.bfloat16"),
        (np.dtype("int8"), "dtype(int8)"),
        (np.dtype(jnp.bfloat16), "dtype(bfloat16)"),
        (functools.partial(power, 1, exponent=2), "partial(support.configs.power, 1, exponent=2)"),
        (REQUIRED, "REQUIRED"),
        (Norm.Config(), "support.configs.Norm.Config"),
        (config_for(cube), "config_for(support.configs.cube)"),
        ([Norm.Config()], "[1 items]"),
        ((Norm.Config(), 1), "(2 items)"),
        ({"a": [Norm.Config()]}, "{1 items}"),
    ],
)
def test_each_value_has_one_spelling(value, text):
    assert spelled(value) == text


@pytest.mark.parametrize(
    "one, other",
    [
        (1, 1.0),
        (1, True),
        (0, False),
        (0.0, -0.0),
        (1, "1"),
        (None, "None"),
        ([], ()),
        ([1], (1,)),
        ((1,), 1),
        ({}, set()),
        ([1], {1}),
        ({1: 1}, {1.0: 1}),
        ({1: 1}, {True: 1}),
        ({1: "a"}, {"1": "a"}),
        (Level.LOW, 0),
        (Kind.CAUSAL, "causal"),
        (square, "support.configs.square"),
        (square, cube),
        (square, functools.partial(square)),
        (functools.partial(power, exponent=1), functools.partial(power, exponent=1.0)),
        (np.dtype("float32"), np.float32),
        (np.dtype("float32"), "float32"),
        (np.float32, jnp.float32),
        (Norm.Config(), Norm.Config),
        ([Norm.Config()], (Norm.Config(),)),
        ({1: Norm.Config()}, {"1": Norm.Config()}),
        ({"a": Norm.Config()}, [Norm.Config()]),
    ],
)
def test_values_that_differ_in_value_or_type_make_different_configs(one, other):
    a, b = Record(value=one), Record(value=other)
    assert a != b
    assert to_text(a) != to_text(b)


@pytest.mark.parametrize(
    "one, other",
    [
        (np.dtype(">f4"), np.dtype(">f8")),
        (np.dtype([("a", "i4")]), np.dtype([("a", "f4")])),
        ({Norm.Config(dim=1)}, {Norm.Config(dim=2)}),
        ({Norm.Config(dim=1): 1}, {Norm.Config(dim=2): 1}),
        (functools.partial(call, Norm.Config(dim=1)), functools.partial(call, Norm.Config(dim=2))),
    ],
)
def test_value_that_the_text_cannot_tell_apart_is_not_held(one, other):
    """A config either refuses such a value, or compares and prints it by all that is in it."""
    a, b = held(one), held(other)
    assert type(a) is type(b)
    if isinstance(a, Record) and isinstance(b, Record):
        assert a != b
        assert to_text(a) != to_text(b)
    else:
        assert "Record.value" in str(a)


def held(value) -> Record | str:
    """Returns the config, or the text with which it is refused."""
    try:
        return Record(value=value)
    except ConfigError as e:
        return str(e)


@pytest.mark.parametrize(
    "one, other",
    [
        (math.nan, -math.nan),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": Norm.Config(), "b": Dense.Config()}, {"b": Dense.Config(), "a": Norm.Config()}),
        ({1, 2, 3}, frozenset([3, 2, 1])),
        (functools.partial(power, exponent=1), functools.partial(power, exponent=1)),
        (np.dtype("float32"), np.dtype(jnp.float32)),
        ([math.nan], [math.nan]),
    ],
)
def test_values_that_are_the_same_make_equal_configs_with_equal_text(one, other):
    a, b = Record(value=one), Record(value=other)
    assert a == b
    assert hash(a) == hash(b)
    assert to_text(a) == to_text(b)


@given(values())
def test_value_given_again_is_kept_as_it_is(value):
    once = Record(value=value)
    again = Record(value=once.value)
    assert again == once
    assert repr(again) == repr(once)


@given(records(values()))
@settings(max_examples=40)
def test_partials_compare_by_what_they_hold(cfg):
    one = Record(value=functools.partial(power, cfg.value))
    assert one == Record(value=functools.partial(power, cfg.value))
    assert one != Record(value=functools.partial(power, cfg.value, cfg.value))


def test_spelling_is_the_same_in_another_process():
    program = (
        "from support.configs import *\n"
        "from dovetail.config import to_text\n"
        "value = {'b': {'x', 'y', 'z'}, 'a': {square, cube}, 3: {Kind.CAUSAL, Kind.MASKED}, 4: {1.5, 'q'}}\n"
        "print(to_text(Record(value=value, other={'c': Norm.Config(), 'd': {'e', 'f', 'g'}})), end='')"
    )
    one, two = run_python(program, hash_seed=1), run_python(program, hash_seed=2)
    assert one == two
    assert one.splitlines()[1] == (
        "value = {'a': set(support.configs.cube, support.configs.square), 'b': set('x', 'y', 'z'), "
        "3: set(support.configs.Kind.CAUSAL, support.configs.Kind.MASKED), 4: set('q', 1.5)}"
    )
