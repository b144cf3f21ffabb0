# SPDX-License-Identifier: Apache-2.0
"""Overrides: `path=value` texts, read by the type of the field."""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NewType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigBase, ConfigError, config_for, from_json, override, to_json
from support.configs import Dense, FeedForward, Kind, Level, Model, Norm, Record, cube, power, square

Name = NewType("Name", str)


class Crossed(enum.Enum):
    """Values that look like the names of other members."""

    ONE = "TWO"
    TWO = "ONE"


class Field(ConfigBase):
    """One field of each type."""

    i: int = 0
    f: float = 0.0
    b: bool = False
    s: str = ""
    n: int | None = 0
    os: str | None = ""
    u: int | float | str = 0
    su: str | bool | None = None
    lit: Literal["a", 1, None, True] = "a"
    e: Kind = Kind.CAUSAL
    level: Level = Level.HIGH
    li: list[int] = []
    ls: list[str] = []
    lli: list[list[int]] = []
    t2: tuple[int, str] = (0, "")
    tv: tuple[float, ...] = ()
    d: dict[str, int] = {}
    di: dict[int, list[str]] = {}
    fs: frozenset[int] = frozenset()
    seq: Sequence[float] = ()
    m: Mapping[str, int] = {}
    cb: Callable[[float], float] = square
    ocb: Callable[[float], float] | None = None
    ty: type[FeedForward] = Dense
    a: Any = None
    ann: Annotated[int, "unit"] = 0
    name: Name = Name("")
    dt: np.dtype = np.dtype("float32")
    enums: list[Kind] = []
    norm: Norm.Config = Norm.Config()
    norms: list[Norm.Config] = [Norm.Config(), Norm.Config()]
    onorm: Norm.Config | None = None


READ = [
    ("i=8", 8), ("i=-8", -8), ("i=+8", 8), ("i=1_000", 1000), ("i = 8 ", 8),
    ("f=8", 8.0), ("f=1e-5", 1e-5), ("f=-.5", -0.5), ("f=inf", math.inf), ("f=-inf", -math.inf),
    ("b=true", True), ("b=True", True), ("b=false", False), ("b=FALSE", False),
    ("s=hello", "hello"), ("s=hello world", "hello world"), ("s='hello'", "hello"), ('s="a, b"', "a, b"),
    ("s=a=b", "a=b"), ("s=a,b", "a,b"), ("s=", ""), ("s=''", ""), ("s=3", "3"), ("s=None", "None"), ("s=true", "true"),
    ("s='3'", "3"), ("s=' padded '", " padded "), ("s='it\\'s'", "it's"), ("s=it's", "it's"), ("s=[1]", "[1]"),
    ("s=a/b.c:d", "a/b.c:d"), ("s='a\\nb'", "a\nb"), ("s='unclosed", "'unclosed"),
    ("n=3", 3), ("n=none", None), ("n=None", None), ("n=null", None),
    ("os=none", None), ("os='none'", "none"), ("os=x", "x"), ("os=", ""),
    ("u=1", 1), ("u=1.5", 1.5), ("u=1e3", 1000.0), ("u=x", "x"), ("u='1'", "1"), ("u=true", "true"),
    ("su=true", True), ("su=none", None), ("su='true'", "true"), ("su=1", "1"),
    ("lit=a", "a"), ("lit='a'", "a"), ("lit=1", 1), ("lit=None", None), ("lit=True", True),
    ("e=MASKED", Kind.MASKED), ("e=masked", Kind.MASKED), ("e=Kind.MASKED", Kind.MASKED), ("level=0", Level.LOW),
    ("level=1", Level.HIGH), ("level=LOW", Level.LOW),
    ("li=[1, 2]", [1, 2]), ("li=[]", []), ("li=[1,2,]", [1, 2]), ("li=[ 1 ]", [1]),
    ("ls=[a, b]", ["a", "b"]), ("ls=['a, b', c]", ["a, b", "c"]), ("ls=['']", [""]), ("ls=[1, x=2]", ["1", "x=2"]),
    ("ls=['it\\'s, ok', b]", ["it's, ok", "b"]),
    ("lli=[[1], [], [2, 3]]", [[1], [], [2, 3]]),
    ("t2=(1, a)", (1, "a")), ("t2=(1, 'a, b')", (1, "a, b")), ("tv=()", ()), ("tv=(1,)", (1.0,)),
    ("tv=(1, 2)", (1.0, 2.0)),
    ("d={a: 1, 'b': 2}", {"a": 1, "b": 2}), ("d={}", {}), ("d={'a:b': 1}", {"a:b": 1}), ("d={'a, b': 1}", {"a, b": 1}),
    ("di={1: [a, b], 2: []}", {1: ["a", "b"], 2: []}),
    ("fs={1, 2}", {1, 2}), ("fs={}", set()),
    ("seq=[1, 2.5]", [1.0, 2.5]), ("seq=(1, 2.5)", (1.0, 2.5)), ("m={a: 1}", {"a": 1}),
    ("cb=support.configs.cube", cube), ("cb=support.configs:cube", cube), ("cb=jax.nn.relu", jax.nn.relu),
    ("cb=jax.nn:gelu", jax.nn.gelu), ("cb=math.sqrt", math.sqrt), ("cb=jax.numpy.tanh", jnp.tanh),
    ("cb=support.configs.Dense.forward", Dense.forward),
    ("ocb=none", None), ("ocb=jax.nn.silu", jax.nn.silu), ("ty=support.configs.Dense", Dense),
    ("a=3", 3), ("a=1.5", 1.5), ("a=true", True), ("a=none", None), ("a='3'", "3"), ("a=word", "word"),
    ("a=[1, 'b']", [1, "b"]), ("a=(1,)", (1,)), ("a={'a': [1]}", {"a": [1]}), ("a=two words", "two words"), ("a=", ""),
    ("ann=3", 3), ("name=x", "x"), ("enums=[CAUSAL, masked]", [Kind.CAUSAL, Kind.MASKED]),
    ("dt=bfloat16", np.dtype(jnp.bfloat16)), ("dt=int8", np.dtype("int8")),
    ("norm.dim=3", 3), ("norms[1].eps=1", 1.0), ("onorm=none", None), ("norms=[]", []),
]  # fmt: skip


@pytest.mark.parametrize("assignment, value", READ, ids=[text for text, _ in READ])
def test_text_is_read_by_the_type_of_the_field(assignment, value):
    path = assignment.partition("=")[0].strip()
    got = override(Field(), [assignment]).get_in(path)
    assert Record(value=got) == Record(value=value)


def test_overrides_are_applied_in_order():
    assert override(Field(), ["i=1", "li=[1, 2]", "i=2", "li[0]=7"]) == Field(i=2, li=[7, 2])
    assert override(Field(i=3), []) == Field(i=3)


@pytest.mark.parametrize(
    "assignments, field, value",
    [
        (["tv+=2"], "tv", (2.0,)),
        (["tv=(1,)", "tv+=2", "tv+=3"], "tv", (1.0, 2.0, 3.0)),
        (["tv=(1,)", "tv+=(2, 3)"], "tv", (1.0, 2.0, 3.0)),
        (["tv=(1,)", "tv+=1"], "tv", (1.0,)),
        (["ls+=a"], "ls", ["a"]),
        (["ls+=[a, b]", "ls+=c"], "ls", ["a", "b", "c"]),
        (["ls+=a=b"], "ls", ["a=b"]),
        (["enums+=CAUSAL"], "enums", [Kind.CAUSAL]),
    ],
)
def test_plus_adds_to_a_list_or_a_tuple_what_is_not_there_yet(assignments, field, value):
    assert getattr(override(Field(), assignments), field) == value


def test_a_component_is_added_by_its_name_and_its_fields_are_set_by_its_place():
    from dovetail.train import JsonLines, Terminal
    from dovetail.zoo import recipe

    before = recipe("llama3-tiny").set(observers=(JsonLines.Config(),))
    cfg = override(before, ["observers+=Terminal", "observers[1].seconds=3"])
    assert cfg.observers == (JsonLines.Config(), Terminal.Config(seconds=3.0))


@pytest.mark.parametrize(
    "assignment, message",
    [
        ("i+=1", r"i: \+= adds to a list or a tuple, and it is 0\. Write i=\.\.\."),
        ("tv+=x", r"tv: expected an entry of tuple\[float, \.\.\.\], found 'x'"),
        ("t2+=x", r"t2: expected an entry of tuple\[int, str\]"),
        ("+=x", r"'\+=x' is not an override"),
    ],
)
def test_what_cannot_be_added_says_why(assignment, message):
    with pytest.raises(ConfigError, match=message):
        override(Field(), [assignment])


def test_input_is_unchanged():
    cfg = Field()
    override(cfg, ["i=1", "norm.dim=4", "d.a=1"])
    assert cfg == Field()


@pytest.mark.parametrize(
    "assignment, cfg",
    [
        ("d.a=5", Field(d={"a": 5, "b": 2})),
        ("d['a']=5", Field(d={"a": 5, "b": 2})),
        ("d.new=5", Field(d={"a": 1, "b": 2, "new": 5})),
        ("d['a new one']=5", Field(d={"a": 1, "b": 2, "a new one": 5})),
    ],
)
def test_entries_of_a_dict_can_be_changed_and_added(assignment, cfg):
    assert override(Field(d={"a": 1, "b": 2}), [assignment]) == cfg


class Renamed(ConfigBase):
    """A field that had another name."""

    new: int = 0
    renamed: ClassVar[Mapping[str, str]] = {"old": "new, of course"}


def test_a_config_can_be_added_to_a_dict_of_them():
    class Parts(ConfigBase):
        parts: Mapping[str, FeedForward.Config] = {}

    made = override(Parts(), ["parts.first=Dense", "parts.first.hidden=3", "parts.first=Dense"])
    assert made == Parts(parts={"first": Dense.Config(hidden=3)})


def test_a_field_that_was_renamed_says_what_it_is_now():
    said = "no field 'old'. It is now new, of course."
    for act in (
        lambda: override(Renamed(), ["old=1"]),
        lambda: Renamed().set(old=1),
        lambda: Renamed().get_in("old"),
        lambda: from_json(to_json(Renamed(new=3)).replace('"new"', '"old"'), allow={__name__}),
    ):
        with pytest.raises(ConfigError) as e:
            act()
        assert str(e.value).endswith(said)
    with pytest.raises(AttributeError, match="It is now new, of course"):
        _ = Renamed().old  # pyright: ignore[reportAttributeAccessIssue]


def test_entries_of_a_dict_are_read_by_their_type():
    assert override(Field(di={1: []}), ["di[1]=[x]", "di[2]=[y]"]) == Field(di={1: ["x"], 2: ["y"]})
    assert override(Model.Config(), ["heads.main.dropout=1"]).heads["main"].dropout == 1.0


def test_items_of_lists_and_tuples_are_read_by_their_type():
    cfg = Field(li=[1, 2], ls=["a"], t2=(1, "a"), tv=(1.0, 2.0), lli=[[1], [2]], a=[1, "b"], enums=[Kind.CAUSAL])
    changed = override(cfg, ["li[1]=7", "ls[0]=3", "t2[1]=4", "tv[0]=5", "lli[1][0]=6", "a[1]=8", "enums[0]=MASKED"])
    expected = Field(
        li=[1, 7], ls=["3"], t2=(1, "4"), tv=(5.0, 2.0), lli=[[1], [6]], a=[1, 8], enums=[Kind.MASKED]
    )  # fmt: skip
    assert changed == expected


def test_arguments_of_a_function_are_read_by_their_annotations():
    cfg = Record(value=config_for(power))
    assert override(cfg, ["value.x=3", "value.exponent=1e-1"]).value == config_for(power, 3.0, exponent=0.1)


def test_name_of_an_enum_member_wins_over_the_value_of_another():
    class Holder(ConfigBase):
        e: Crossed = Crossed.ONE

    assert override(Holder(e=Crossed.TWO), ["e=ONE"]).e is Crossed.ONE


REFUSED = [
    ("i=8.0", "i: expected int, found '8.0'."),
    ("i=", "i: expected int, found ''."),
    ("i=true", "i: expected int, found 'true'."),
    ("i=none", "i: expected int, found 'none'."),
    ("f=fast", "f: expected float, found 'fast'."),
    ("b=1", "b: expected bool, found '1'."),
    ("b=yes", "b: expected bool, found 'yes'."),
    ("n=x", "n: expected int | None, found 'x'."),
    ("lit=b", "lit: expected one of 'a', 1, None, True, found 'b'."),
    ("lit=tru", "lit: expected one of 'a', 1, None, True, found 'tru'. Did you mean 'True'?"),
    ("e=CASUAL", "e: expected Kind (CAUSAL, MASKED), found 'CASUAL'. Did you mean 'CAUSAL'?"),
    ("e=zzz", "e: expected Kind (CAUSAL, MASKED), found 'zzz'."),
    ("li=1", "li: expected list[int], found '1'. Write it in []."),
    ("li=1, 2", "li: expected list[int], found '1, 2'. Write it in []."),
    ("li=(1, 2)", "li: expected list[int], found '(1, 2)'. Write it in []."),
    ("li=[1, x]", "li: expected list[int], found '[1, x]'."),
    ("li=[1", "li: expected list[int], found '[1'. Write it in []."),
    ("t2=(1)", "t2: expected tuple[int, str], found '(1)'."),
    ("t2=(1, a, b)", "t2: expected tuple[int, str], found '(1, a, b)'."),
    ("t2=1, a", "t2: expected tuple[int, str], found '1, a'. Write it in ()."),
    ("d=a: 1", "d: expected dict[str, int], found 'a: 1'. Write it in {}."),
    ("d={a: x}", "d: expected dict[str, int], found '{a: x}'."),
    ("d={a}", "d: expected dict[str, int], found '{a}'."),
    ("cb=cube", "cb: expected Callable[[float], float], found 'cube'. Write an import path, as in jax.nn.silu."),
    ("cb=3", "cb: expected Callable[[float], float], found '3'. Write an import path, as in jax.nn.silu."),
    ("cb=nowhere.at.all", "cb: expected Callable[[float], float], found 'nowhere.at.all'."
     " Write an import path, as in jax.nn.silu."),
    ("cb=jax.nn.sillu", "cb: module jax.nn has no 'sillu'. Did you mean 'silu'?"),
    ("cb=jax.nn:sillu", "cb: module jax.nn has no 'sillu'. Did you mean 'silu'?"),
    ("cb=nowhere:f", "cb: cannot import module 'nowhere' of 'nowhere:f': No module named 'nowhere'."),
    ("cb=math.pi", "cb: 'math:pi' is 3.141592653589793. Name a function or class."),
    ("ty=support.configs.Norm", "ty: expected type[FeedForward], found support.configs.Norm (a class)."),
    ("a=1j", "a: 1j (builtins.complex) is not a config value."),
    ("dt=float33", "dt: expected dtype, found 'float33'."),
    ("norm=rms", "norm: expected Norm.Config, found 'rms'.\n"
     "  It takes one of: Norm. Fields are set as in norm.dim=..."),
    ("onorm=rms", "onorm: expected Norm.Config | None, found 'rms'.\n"
     "  It takes one of: Norm, None. Fields are set as in onorm.dim=..."),
    ("i", "'i' is not an override. Write path=value, as in model.dim=8."),
    ("=3", "'=3' is not an override. Write path=value, as in model.dim=8."),
    ("", "'' is not an override. Write path=value, as in model.dim=8."),
    ("norm.dmi=3", "norm.dmi: norm is Norm.Config, it has no field 'dmi'. Did you mean 'norm.dim'?"),
    ("nrom.dim=3", "nrom: the root is Field, it has no field 'nrom'. Did you mean 'norm'?"),
    ("norms[2].dim=3", "norms[2]: norms is a list of 2, it has no entry 2. Did you mean 'norms[1]'?"),
    ("li[0]=3", "li[0]: li is a list of 0, it has no entry 0."),
    ("i.x=3", "i.x: i is 0 (int), it has no entry 'x'."),
    ("d.a.b=3", "d.a: d is a dict of 0, it has no entry 'a'."),
    ("no rm=3", "'no rm' is not a path. Write it as in 'model.layers[0].dim'. Did you mean 'norm'?"),
    ("--i=3", "'--i' is not a path. Write it as in 'model.layers[0].dim'."),
]  # fmt: skip


@pytest.mark.parametrize("assignment, text", REFUSED, ids=[text for text, _ in REFUSED])
def test_text_that_does_not_fit_is_refused_with_the_expected_type(assignment, text):
    with pytest.raises(ConfigError) as e:
        override(Field(), [assignment])
    assert str(e.value).partition("\n  A config holds")[0] == text


def test_argument_of_a_function_that_does_not_fit_is_refused_with_its_type():
    with pytest.raises(ConfigError) as e:
        override(config_for(power), ["x=fast"])
    assert str(e.value) == "x: expected float, found 'fast'."


@given(st.dictionaries(st.text(max_size=4), st.integers(), max_size=3))
def test_repr_of_a_dict_is_read_back(table):
    assert override(Field(), [f"d={table!r}"]).d == table


@given(st.lists(st.text()))
def test_repr_of_a_list_of_texts_is_read_back(texts):
    assert override(Field(), [f"ls={texts!r}"]).ls == texts


@given(st.text())
def test_repr_of_a_text_is_read_back(text):
    cfg = override(Field(), [f"s={text!r}", f"os={text!r}", f"u={text!r}", f"su={text!r}", f"a={text!r}"])
    assert (cfg.s, cfg.os, cfg.u, cfg.su, cfg.a) == (text,) * 5


@given(
    st.integers(), st.floats(), st.booleans(), st.none() | st.integers(), st.tuples(st.integers(), st.text()),
    st.lists(st.floats()).map(tuple), st.lists(st.lists(st.integers())),
)  # fmt: skip
def test_repr_of_plain_values_is_read_back(i, f, b, n, t2, tv, lli):
    fields = {"i": i, "f": f, "b": b, "n": n, "t2": t2, "tv": tv, "lli": lli}
    assert override(Field(), [f"{name}={value!r}" for name, value in fields.items()]) == Field(**fields)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.lists(x).map(tuple))
)
def test_repr_of_any_literal_is_read_back_where_anything_goes(value):
    assert override(Field(), [f"a={value!r}"]) == Field(a=value)
