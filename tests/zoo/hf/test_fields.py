# SPDX-License-Identifier: Apache-2.0
"""Fields of config.json: each sets what it says and writes what is set; what it cannot say is refused by its name."""

import math
from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigError, config_for
from dovetail.nn import DenseLinear, RMSNorm
from dovetail.ops import clamped_swiglu, erf_gelu, gated, squared_relu
from dovetail.zoo import model
from dovetail.zoo.hf import (
    ACTIVATION,
    GATED,
    GATED_TANH,
    INVERSE_ROOT,
    RECIPROCAL,
    ROOT,
    ClampedGate,
    Expand,
    Field,
    Fields,
    Fixed,
    HeadDim,
    Layers,
    Names,
    Present,
    Shared,
    TimeStepLimit,
    TopKMethod,
    Value,
    tied,
    times,
)
from dovetail.zoo.hf._tree import Tree


def tree(name: str = "llama3-tiny") -> Tree:
    return Tree(model(name))


def read(field: Field, recipe: str = "llama3-tiny", **values: Any) -> Tree:
    """Returns a model with what a field says of it."""
    found = tree(recipe)
    field.read(Fields("config.json", values), found)
    return found


def error_of(field: Field, recipe: str = "llama3-tiny", **values: Any) -> str:
    with pytest.raises(ConfigError) as e:
        read(field, recipe, **values)
    return str(e.value)


def test_a_field_with_two_names_may_have_either_and_both_if_they_agree():
    fields = Fields("x", {"a": 1, "b": 1, "c": 2})
    assert (fields.get("a|b"), fields.get("b|d"), fields.get("d|c"), fields.get("d|e", 5)) == (1, 1, 2, 5)
    assert fields.read == {"a", "b", "c", "d", "e"}
    with pytest.raises(ConfigError, match=r"^x: a is 1: is not equal to c\.$"):
        fields.get("a|c")
    with pytest.raises(ConfigError, match=r"^x: has no field 'd', which its model needs\.$"):
        fields.get("d|e")


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 2**53 + 1, -(2**60), 10**400])
def test_a_number_that_has_no_end_or_no_float_is_refused_wherever_it_is(odd):
    for value in (odd, [odd], {"a": [1, {"b": odd}]}):
        with pytest.raises(
            ConfigError, match=r"^x: a is .*: expected finite numbers, of at most 9,007,199,254,740,992\.$"
        ):
            Fields("x", {"a": value}).get("a")


@pytest.mark.parametrize("value", [True, "1", None, [1], {}, 1.5, 0, -3])
def test_what_is_no_count_is_refused(value):
    with pytest.raises(ConfigError) as e:
        Fields("x", {"a": value}).count("a")
    assert str(e.value) == f"x: a is {value!r}: expected a whole number of at least 1."


@pytest.mark.parametrize("value", [True, "1", None, [1], {}])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ConfigError) as e:
        Fields("x", {"a": value}).number("a")
    assert str(e.value) == f"x: a is {value!r}: expected a number."


def test_a_flag_is_true_or_false_and_null_is_its_default():
    fields = Fields("x", {"a": None, "b": False, "c": 1})
    assert (fields.flag("a", True), fields.flag("b", True), fields.flag("d", True)) == (True, False, True)
    with pytest.raises(ConfigError, match=r"^x: c is 1: expected true or false\.$"):
        fields.flag("c", True)


def test_a_long_value_is_cut_in_a_message():
    assert str(Fields("x", {"a": "b" * 200}).refused("a", "too long")) == f"x: a is '{'b' * 76}...: too long."


def test_a_value_is_set_at_all_its_paths_and_written_from_them():
    field = Value("rms_norm_eps", "norm.eps", "layer.mixer_norm.eps", default=1e-5)
    found = read(field, rms_norm_eps=0.25)
    assert (found.get("norm.eps"), found.get("layer.mixer_norm.eps")) == (0.25, 0.25)
    assert field.write(found) == {"rms_norm_eps": 0.25}
    assert field.write(read(field)) == {"rms_norm_eps": 1e-5}


@pytest.mark.parametrize("value", ["1", [1], {}, True, math.nan, -1e-6])
def test_a_value_that_does_not_fit_its_path_is_refused_by_its_name(value):
    field = Value("rms_norm_eps", "norm.eps")
    assert error_of(field, rms_norm_eps=value).startswith("config.json: rms_norm_eps is ")


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True, None, [2]])
def test_a_size_that_is_no_count_is_refused_by_its_name(value):
    assert error_of(Value("hidden_size", "dim"), hidden_size=value).startswith(
        f"config.json: hidden_size is {value!r}: "
    )


def test_null_is_what_the_field_says_it_is_or_refused():
    soft = Value("cap", "logit_cap", default=3.0, null=None)
    assert (read(soft).get("logit_cap"), read(soft, cap=None).get("logit_cap")) == (3.0, None)
    inner = Value("n_inner", "layer.ffn.hidden_dim", default=times("n", 4), null=times("n", 4))
    assert read(inner, n=5, n_inner=None).get("layer.ffn.hidden_dim") == 20
    assert error_of(Value("a", "dim"), a=None) == "config.json: a is None: expected a value."


def test_a_field_that_no_part_of_a_model_has_is_not_needed_and_not_written():
    field = Value("heads", "layer.mixer:Mamba2.num_heads")
    assert read(field).layers == tree().layers
    assert field.write(tree()) == {}
    assert error_of(field, "mamba2-tiny") == "config.json: has no field 'heads', which its model needs."


def test_a_fixed_field_may_be_left_out_and_is_written_with_its_first_value():
    field = Fixed("bidirectional", False, None)
    for found in (read(field), read(field, bidirectional=None), read(field, bidirectional=False)):
        assert found.model == tree().model
    assert field.write(tree()) == {"bidirectional": False}
    assert error_of(field, bidirectional=True) == (
        "config.json: bidirectional is True: is not implemented here, only False or None, which True is not."
    )


FUNCTIONS = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": erf_gelu,
    "gelu_new": jax.nn.gelu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "relu": jax.nn.relu,
    "relu2": squared_relu,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_activation_is_the_function_of_its_name_and_one_of_its_names_is_written(name):
    function = FUNCTIONS[name]
    assert ACTIVATION.read(name) is function
    assert FUNCTIONS[ACTIVATION.write(function)] is function
    expected = config_for(gated) if function is jax.nn.silu else config_for(gated, function)
    assert GATED.read(name) == expected
    assert FUNCTIONS[GATED.write(expected)] is function
    assert GATED_TANH.read(name) == GATED.read("gelu_pytorch_tanh" if name == "gelu" else name)
    assert GATED_TANH.read(GATED_TANH.write(GATED_TANH.read(name))) == GATED_TANH.read(name)


def test_silu_has_a_name_however_its_gate_is_written():
    assert GATED.write(config_for(gated, jax.nn.silu)) == GATED.write(config_for(gated)) == "silu"


@pytest.mark.parametrize("name", ["mish", "", None, 1, True, ["silu"], {}])
def test_a_function_without_a_name_here_is_refused(name):
    for codec in (ACTIVATION, GATED, GATED_TANH, Names({"a": 1})):
        with pytest.raises(ValueError, match="is not implemented here, only "):
            codec.read(name)


def test_a_function_without_a_name_there_cannot_be_written():
    for codec in (ACTIVATION, GATED):
        with pytest.raises(ValueError, match="has no name there"):
            codec.write(jax.nn.tanh)


@given(x=st.floats(1e-6, 1e6) | st.integers(1, 10**6))
def test_what_is_scaled_comes_back(x):
    for codec, of in ((RECIPROCAL, lambda x: 1 / x), (INVERSE_ROOT, lambda x: x**-0.5), (ROOT, lambda x: x**0.5)):
        value = codec.read(x)
        assert value == of(x)
        assert codec.write(value) == pytest.approx(x, rel=1e-12)
        if isinstance(x, int):
            assert codec.write(value) == x
            assert isinstance(codec.write(value), int)


@pytest.mark.parametrize("value", [0, -1, "1", None, True, math.nan, math.inf, 5e-324])
def test_what_has_no_root_or_reciprocal_is_refused(value):
    with pytest.raises(ValueError, match=r"^expected a number above 0$"):
        RECIPROCAL.read(value)


def test_a_part_is_there_when_its_flag_says_so():
    norm = Value("use_norm", "layer.mixer.query_norm", default=False, codec=Present(RMSNorm.Config()))
    assert read(norm, use_norm=True).get("layer.mixer.query_norm") == RMSNorm.Config()
    assert read(norm).get("layer.mixer.query_norm") is None
    assert [norm.write(read(norm, use_norm=each)) for each in (True, False)] == [
        {"use_norm": True},
        {"use_norm": False},
    ]
    assert [read(tied(), tie_word_embeddings=each).model.head for each in (True, False)] == [None, DenseLinear.Config()]
    assert error_of(tied(), tie_word_embeddings=1).startswith(
        "config.json: tie_word_embeddings is 1: expected true or "
    )


def test_a_head_dim_that_follows_is_written_as_a_number():
    found = read(HeadDim(), head_dim=None)
    assert found.get("layer.mixer.head_dim") is None
    heads = found.get("layer.mixer.num_heads")
    assert HeadDim().write(found) == {"head_dim": found.get("dim") // heads}
    assert HeadDim().write(read(HeadDim(default=6))) == {"head_dim": 6}
    assert HeadDim().write(tree("mamba2-tiny")) == {}
    assert error_of(HeadDim(), head_dim="8") == "config.json: head_dim is '8': expected a whole number of at least 1."


def test_the_gate_of_gpt_oss_has_two_numbers_and_no_other_gate_is_written():
    found = read(ClampedGate(), "gpt-oss-tiny", swiglu_limit=5, swiglu_alpha=1.5)
    assert found.get("layer.ffn.activation") == config_for(clamped_swiglu, alpha=1.5, limit=5.0)
    assert ClampedGate().write(found) == {"swiglu_alpha": 1.5, "swiglu_limit": 5.0}
    assert ClampedGate().write(tree("gpt-oss-tiny")) == {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}
    with pytest.raises(ConfigError, match=r"^layer\.ffn\.activation: .* has no name there$"):
        ClampedGate().write(tree())


INFINITY = {"__float__": "Infinity"}


@pytest.mark.parametrize(
    "given, expected",
    [
        (None, None),
        ([0.0, INFINITY], None),
        ([0, math.inf], None),
        ([0.0, "Infinity"], None),
        ([0.001, 0.1], (0.001, 0.1)),
        ([0.5, "inf"], (0.5, math.inf)),
    ],
)
def test_the_limits_of_a_step_come_back(given, expected):
    found = read(TimeStepLimit(), "mamba2-tiny", time_step_limit=given)
    assert found.get("layer.mixer.step_limit") == expected
    written = TimeStepLimit().write(found)
    assert read(TimeStepLimit(), "mamba2-tiny", **written).get("layer.mixer.step_limit") == expected
    assert (written["time_step_limit"][1] == INFINITY) is (expected is None or expected[1] == math.inf)


@pytest.mark.parametrize(
    "given", [1.0, [1.0], [1, 2, 3], [2.0, 1.0], [-1.0, 1.0], ["0", 1.0], [math.nan, 1], "inf", {}, [{}, 1]]
)
def test_limits_of_a_step_that_are_none_are_refused(given):
    assert error_of(TimeStepLimit(), "mamba2-tiny", time_step_limit=given).startswith(
        "config.json: time_step_limit is "
    )


def test_how_wide_a_state_space_layer_is_must_agree_with_its_heads():
    found = tree("mamba2-tiny")
    assert Expand("expand").write(found) == {"expand": 2}
    assert error_of(Expand("expand"), "mamba2-tiny", expand=3) == (
        f"config.json: expand is 3: its heads are {2 * found.get('dim')} wide, not 3 times {found.get('dim')}."
    )
    assert read(Expand("expand"), expand=3).model == tree().model, "of a model that has none, it says nothing"


def test_groups_of_experts_count_where_the_method_says_so():
    limited = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
    found = read(TopKMethod(), "deepseek-v2-tiny", **limited)
    assert TopKMethod().write(found) == limited
    best = read(TopKMethod(), "deepseek-v2-tiny", topk_method="greedy", n_group=4)
    assert TopKMethod().write(best) == {"topk_method": "greedy", "n_group": 1, "topk_group": 1}
    assert error_of(TopKMethod(), topk_method="best") == (
        "config.json: topk_method is 'best': is not implemented here, only greedy and group_limited_greedy."
    )


def test_a_shared_expert_is_a_number_of_routed_ones():
    field = Shared("n_shared_experts", "layer.ffn.shared.hidden_dim", default=2)
    found = read(field, "deepseek-v2-tiny", n_shared_experts=3)
    routed = found.get("layer.ffn:MoEFeedForward.hidden_dim")
    assert found.get("layer.ffn.shared.hidden_dim") == 3 * routed
    assert field.write(found) == {"n_shared_experts": 3}
    found.set("layer.ffn.shared.hidden_dim", routed + 1)
    with pytest.raises(ConfigError, match=rf"{routed + 1} is no multiple of {routed}, the hidden_dim of an expert$"):
        field.write(found)
    assert field.write(tree()) == {}


def test_layers_are_counted():
    assert Layers().write(read(Layers(), num_hidden_layers=5)) == {"num_hidden_layers": 5}
    assert error_of(Layers()) == "config.json: has no field 'num_hidden_layers', which its model needs."
