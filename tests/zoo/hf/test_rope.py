# SPDX-License-Identifier: Apache-2.0
"""Rotary positions: every type, in the form of transformers 4 and of 5, becomes one rotary and comes back."""

import math
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.nn import (
    DynamicRoPE,
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
from dovetail.zoo.hf import families, published_as
from dovetail.zoo.hf._tree import Tree
from support.published import golden_configs

TYPES = {family.model_type: family for family in families()}
PLAIN = {kind: golden_configs()[f"{kind}/0"] for kind in TYPES}
ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "rotary_pct", "rotary_emb_base")
PATH = "layer.mixer.rotary"


def config(kind: str, **fields: Any) -> dict[str, Any]:
    """Returns a plain config of a family with no rotary but that of these fields."""
    return {**{name: value for name, value in PLAIN[kind].items() if name not in ROPE}, **fields}


def rotaries(fields: dict[str, Any]) -> list[Rotary.Config]:
    """Returns the rotary of each layer with attention."""
    family = TYPES[fields["model_type"]]
    return [value for _, value in Tree(family.read("config.json", fields).model).values(PATH)]


def rotary(fields: dict[str, Any]) -> Rotary.Config:
    found = set(rotaries(fields))
    assert len(found) == 1
    return found.pop()


def error_of(fields: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as e:
        rotaries(fields)
    return str(e.value)


HALF = PLAIN["llama"]["head_dim"] // 2
SHORT, LONG = tuple(1.0 + i for i in range(HALF)), tuple(2.0 + i for i in range(HALF))
LONGROPE = {"short_factor": list(SHORT), "long_factor": list(LONG), "original_max_position_embeddings": 16}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
CASES: dict[str, tuple[dict[str, Any], Rotary.Config]] = {
    "default": ({}, RoPE.Config(theta=50.0)),
    "linear": ({"factor": 2}, LinearRoPE.Config(theta=50.0, factor=2.0)),
    "dynamic": ({"factor": 2.0}, DynamicRoPE.Config(theta=50.0, factor=2.0, original_length=64)),
    "yarn": (
        {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 3.0, "beta_slow": 0.5, "truncate": False},
        YaRN.Config(theta=50.0, factor=4.0, original_length=16, fast=3.0, slow=0.5, truncate=False),
    ),
    "llama3": (LLAMA3, Llama3RoPE.Config(theta=50.0, factor=8.0, low=1.0, high=4.0, original_length=16)),
    "longrope": (LONGROPE, LongRoPE.Config(theta=50.0, factor=4.0, short=SHORT, long=LONG, original_length=16)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_type_is_the_same_rotary_in_both_forms_and_comes_back(name):
    own, expected = CASES[name]
    new = config("llama", rope_parameters={"rope_type": name, "rope_theta": 50.0, **own})
    old = config("llama", rope_theta=50.0, rope_scaling={"rope_type": name, **own})
    older = config("llama", rope_theta=50.0, rope_scaling={"type": name, **own})
    assert rotary(new) == rotary(old) == rotary(older) == expected
    written = published_as(TYPES["llama"].read("config.json", new).model, "llama")[1]
    assert written["rope_theta"] == written["rope_parameters"]["rope_theta"] == 50.0
    assert ("rope_scaling" in written) is (name != "default")
    for left_out in ({"rope_scaling"}, {"rope_parameters"}):  # For readers of either form.
        assert rotary({key: value for key, value in written.items() if key not in left_out}) == expected


NUMBER = st.floats(1.0, 64.0).map(lambda x: round(x, 4))
FACTORS = st.lists(NUMBER, min_size=HALF, max_size=HALF)
MORE: dict[str, dict[str, st.SearchStrategy[Any]]] = {  # What each type needs, and what it may have.
    "linear": {"factor": NUMBER},
    "dynamic": {"factor": NUMBER},
    "llama3": {"factor": NUMBER, "low_freq_factor": st.floats(0.5, 1.0), "high_freq_factor": st.floats(2.0, 4.0)},
    "yarn": {"factor": NUMBER},
    "longrope": {"short_factor": FACTORS, "long_factor": FACTORS},
}
CHOICE: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "llama3": {"original_max_position_embeddings": st.integers(4, 64)},
    "yarn": {
        "original_max_position_embeddings": st.integers(4, 64),
        "attention_factor": NUMBER,
        "beta_fast": st.floats(8.0, 32.0),
        "beta_slow": st.floats(0.1, 2.0),
        "truncate": st.booleans(),
    },
    "longrope": {
        "original_max_position_embeddings": st.integers(4, 64),
        "attention_factor": NUMBER,
        "factor": st.integers(1, 8).map(float),
    },
}
SCALINGS = st.sampled_from(list(MORE)).flatmap(
    lambda kind: st.fixed_dictionaries({"rope_type": st.just(kind), **MORE[kind]}, optional=CHOICE.get(kind, {}))
)


@settings(max_examples=60)
@given(scaling=SCALINGS, theta=st.floats(2.0, 1e7), partial=st.sampled_from([None, 0.5, 1.0]), old=st.booleans())
def test_random_scalings_come_back(scaling, theta, partial, old):
    """Partial ones of GPT-NeoX, whole ones of Llama."""
    kind = "llama" if partial is None else "gpt_neox"
    share = {} if partial is None else {"partial_rotary_factor": partial}
    if partial == 0.5:
        scaling = {name: value[: HALF // 2] if isinstance(value, list) else value for name, value in scaling.items()}
    new = {"rope_parameters": {**scaling, "rope_theta": theta, **share}}
    fields = config(kind, **({"rope_scaling": scaling, "rope_theta": theta, **share} if old else new))
    note(repr(fields))
    found = rotary(fields)
    assert isinstance(found, PartialRotary.Config) is (partial == 0.5)
    family, written = published_as(TYPES[kind].read("config.json", fields).model, kind)
    assert family.model_type == kind
    assert rotary(written) == found


@pytest.mark.parametrize("kind", ["gpt_neox", "phi3", "bamba", "qwen3_next"])
def test_a_share_of_dims_is_the_same_inside_and_outside_of_the_object(kind):
    inside = rotary(config(kind, rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}))
    outside = rotary(config(kind, partial_rotary_factor=0.5))
    assert inside == outside
    assert isinstance(inside, PartialRotary.Config)
    assert inside.fraction == 0.5
    assert isinstance(rotary(config(kind, partial_rotary_factor=1.0)), RoPE.Config)


def test_older_names_of_gpt_neox_mean_the_same_and_must_agree_with_the_newer_ones():
    old = config("gpt_neox", rotary_pct=0.5, rotary_emb_base=50)
    assert rotary(old) == rotary(config("gpt_neox", partial_rotary_factor=0.5, rope_theta=50))
    assert error_of({**old, "rope_theta": 60}) == "config.json: rope_theta is 60: is not equal to rotary_emb_base."


def test_one_rotary_for_each_type_of_layer_comes_back():
    near, far = {"rope_type": "default", "rope_theta": 20.0}, {"rope_type": "linear", "rope_theta": 90.0, "factor": 8.0}
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    for kind in ("gemma3_text", "olmo3"):
        parameters = {"sliding_attention": near, "full_attention": far}
        fields = config(kind, layer_types=types, num_hidden_layers=3, sliding_window=4, rope_parameters=parameters)
        fields = {name: value for name, value in fields.items() if name != "rope_local_base_freq"}
        expected = [RoPE.Config(theta=20.0), LinearRoPE.Config(theta=90.0, factor=8.0), RoPE.Config(theta=20.0)]
        assert rotaries(fields) == expected
        written = published_as(TYPES[kind].read("config.json", fields).model, kind)[1]
        assert written["rope_parameters"] == parameters
        assert rotaries(written) == expected


def test_gemma_3_of_transformers_4_has_one_base_for_layers_with_a_window_and_scales_the_others():
    fields = config(
        "gemma3_text",
        layer_types=["sliding_attention", "full_attention"],
        num_hidden_layers=2,
        rope_local_base_freq=20.0,
        rope_theta=90.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    assert rotaries(fields) == [RoPE.Config(theta=20.0), LinearRoPE.Config(theta=90.0, factor=8.0)]


def test_two_rotaries_in_layers_of_one_type_cannot_be_written():
    found = Tree(TYPES["llama"].read("config.json", config("llama")).model)
    found.layers[0] = found.layers[0].set_in("mixer.rotary", RoPE.Config(theta=3.0))
    with pytest.raises(ConfigError, match=r"^layer\.mixer\.rotary: layers have several, expected one$"):
        TYPES["llama"].write(found.config())


def test_positions_that_a_field_turns_off_are_none():
    off = config("granitemoehybrid", position_embedding_type="nope")
    assert rotary(off) == rotary(config("granitemoehybrid", position_embedding_type=None)) == NoRotary.Config()
    assert rotary(config("granitemoehybrid", position_embedding_type="rope", rope_theta=9.0)) == RoPE.Config(theta=9.0)


def test_latent_attention_scales_scores_with_the_magnitude_of_yarn():
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
    fields = config("deepseek_v3", rope_theta=50.0)
    width = fields["qk_nope_head_dim"] + fields["qk_rope_head_dim"]
    for more, factor in (({}, 1.0), ({"mscale": 0.7, "mscale_all_dim": 0.7}, yarn_magnitude(8.0, 0.7) ** 2)):
        found = TYPES["deepseek_v3"].read("config.json", {**fields, "rope_scaling": {**scaling, **more}}).model
        assert Tree(found).get("layer.mixer.scale") == pytest.approx(width**-0.5 * factor, rel=1e-12)
        assert Tree(found).get(PATH).get_in("interleaved") is True


WRONG: dict[str, tuple[Any, str]] = {
    "no object": ("yarn", "expected an object, such as {'rope_type': 'default'}"),
    "an unknown type": (
        {"rope_type": "spiral"},
        "its rope_type 'spiral' is not implemented here, only default, linear, dynamic, yarn, longrope, llama3",
    ),
    "a type that is no text": (
        {"rope_type": ["yarn"]},
        "its rope_type ['yarn'] is not implemented here, only default, linear, dynamic, yarn, longrope, llama3",
    ),
    "an unknown key": ({"rope_type": "linear", "factor": 2.0, "odd": 1}, "its odd is not known for rope_type 'linear'"),
    "a key of another type": (
        {"rope_type": "dynamic", "factor": 2.0, "beta_fast": 3.0},
        "its beta_fast is not known for rope_type 'dynamic'",
    ),
    "no factor": ({"rope_type": "linear"}, "lacks factor"),
    "no lists": ({"rope_type": "longrope", "factor": 2.0}, "lacks short_factor"),
    "a factor that is text": ({"rope_type": "linear", "factor": "2"}, "its factor is '2'"),
    "a flag that is a number": ({"rope_type": "yarn", "factor": 2.0, "truncate": 1}, "its truncate is 1"),
    "a list of text": ({**LONGROPE, "rope_type": "longrope", "long_factor": ["2"]}, "its long_factor is ['2']"),
    "a number that is none": ({"rope_type": "linear", "factor": math.nan}, "expected finite numbers, of at most "),
    "one without end": ({"rope_type": "linear", "factor": 10**400}, "expected finite numbers, of at most "),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_what_is_not_known_is_refused_by_the_name_of_the_field(name, field):
    value, why = WRONG[name]
    message = error_of(config("llama", **{field: value}))
    assert message.startswith(f"config.json: {field} is ")
    assert f": {why}" in message


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_an_object_that_another_overrules_must_be_one_all_the_same(field):
    """Of the two, transformers takes rope_scaling where it says something."""
    linear = {"rope_type": "linear", "factor": 2.0}
    both = config("llama", **{"rope_scaling": linear, "rope_parameters": linear, field: [1]})
    assert error_of(both) == f"config.json: {field} is [1]: expected an object, such as {{'rope_type': 'default'}}."


@pytest.mark.parametrize("theta", ["many", None, True, [1], math.nan, 0, -1.0])
def test_a_base_that_is_no_positive_number_is_refused(theta):
    assert error_of(config("llama", rope_theta=theta)).startswith("config.json: ")
    assert error_of(config("llama", rope_parameters={"rope_theta": theta})).startswith("config.json: ")


def test_a_share_of_dims_in_a_family_without_it_is_refused():
    assert error_of(config("llama", rope_parameters={"partial_rotary_factor": 0.5})) == (
        "config.json: partial_rotary_factor is 0.5: not implemented for this family."
    )
    assert rotary(config("llama", rope_parameters={"partial_rotary_factor": 1.0})) == RoPE.Config()
