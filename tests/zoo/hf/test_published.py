# SPDX-License-Identifier: Apache-2.0
"""Families as tables: a config.json becomes a model and comes back, each recipe has one, what is odd is refused."""

import functools
import itertools
import math
import random
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from dovetail.checkpoint.hf import weight_map
from dovetail.config import ConfigError
from dovetail.models import CausalLM
from dovetail.module import abstract, call, init_run_state, merged
from dovetail.nn import layers_of, stack_of
from dovetail.zoo import RECIPES, model
from dovetail.zoo.hf import families, family_of, ignored_lines, published_as
from parity import cases
from support.published import golden_configs
from support.stacks import numbered, shapes_of

GOLDEN = golden_configs()
TYPES = {family.model_type: family for family in families()}
PLAIN = {kind: GOLDEN[f"{kind}/0"] for kind in TYPES}
TINY = [name for name in RECIPES if name.endswith("-tiny")]
# Families whose functions have other names than transformers gives them.
NAMES = {"gemma3": "gemma3_text", "granite_hybrid": "granitemoehybrid"}
# Recipes whose models are of two families, and published as the other one.
OTHERS = {"phi3-mini": "mistral", "phi4": "llama"}


def read(fields: Mapping[str, Any]) -> CausalLM.Config:
    """Returns the model of a config.json."""
    return family_of("config.json", fields).read("config.json", fields).model


def error_of(fields: Mapping[str, Any]) -> str:
    with pytest.raises(ConfigError) as e:
        read(fields)
    return str(e.value)


@functools.cache
def drawn(kind: str, number: int) -> dict[str, Any]:
    """Returns a random config of a family, as `make parity` draws them."""
    found = cases.case(kind, np.random.default_rng(number), number)
    return {**found, "model_type": kind, "architectures": [TYPES[kind].architecture]}


@pytest.mark.parametrize("case", GOLDEN)
def test_a_config_that_is_read_and_written_says_the_same_and_is_of_the_same_family(case):
    there = GOLDEN[case]
    found = read(there)
    family, fields = published_as(found, there["model_type"])
    assert family.model_type == there["model_type"]
    again = read(fields)
    assert published_as(again, there["model_type"])[1] == fields
    assert read({**there, **fields}) == again, "no field that both have means something else"
    assert same_program(again, found)


@pytest.mark.parametrize("kind", TYPES)
def test_random_configs_come_back(kind):
    for number in (1, 2, 3):
        found = read(drawn(kind, number))
        family, fields = published_as(found, kind)
        assert family is TYPES[kind]
        assert same_program(read(fields), found)


def same_program(one: CausalLM.Config, other: CausalLM.Config) -> bool:
    """Tells whether two models compute the same; of equal configs, that is not asked again: tracing takes long."""
    return one == other or program(one) == program(other)


def program(cfg: CausalLM.Config) -> str:
    """Returns what a model computes, as text."""
    built = cfg.set(stack=stack_of([place.layer for place in layers_of(cfg.stack)]), predictions=()).build()
    params = merged(abstract(built), jax.eval_shape(lambda: init_run_state(built)))
    ids = jax.ShapeDtypeStruct((1, 3), jnp.int32)
    return str(jax.make_jaxpr(lambda params, ids: call(built, params, ids)[0])(params, ids))


@pytest.mark.parametrize("name", TINY)
def test_a_small_recipe_is_published_as_its_own_family_and_reads_as_the_same_program(name):
    cfg = model(name)
    family, fields = published_as(cfg)
    assert family.model_type == NAMES.get(RECIPES[name].family, RECIPES[name].family)
    assert same_program(family.read(name, fields).model, cfg)


@pytest.mark.parametrize("name, kind", OTHERS.items())
def test_a_recipe_that_is_of_two_families_is_published_as_the_plainer_one(name, kind):
    assert published_as(model(name))[0].model_type == kind
    assert published_as(model(name), RECIPES[name].family)[0].model_type == RECIPES[name].family


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_of_its_family_and_its_tensors_have_as_many_numbers_as_its_parameters(name):
    cfg = model(name).set(predictions=())
    family = TYPES[NAMES.get(RECIPES[name].family, RECIPES[name].family)]
    again = family.read(name, family.write(cfg)).model
    shapes = shapes_of(again)
    assert sum(map(math.prod, shapes.values())) == RECIPES[name].parameters
    tensors = weight_map(family.weights, again.stack, shapes).tensors
    assert sum(math.prod(tensor.shape) for tensor in tensors.values()) == RECIPES[name].parameters


@pytest.mark.parametrize("name", TINY)
def test_each_number_of_a_small_recipe_is_in_one_tensor_once(name):
    cfg = model(name).set(predictions=())
    values = numbered(shapes_of(cfg))
    weights = weight_map(published_as(cfg)[0].weights, cfg.stack, {path: each.shape for path, each in values.items()})
    tensors = [weights.write(name, np.dtype(np.int64), lambda path, at: values[path][at]) for name in weights.tensors]
    found = np.sort(np.concatenate([tensor.ravel() for tensor in tensors]))
    assert np.array_equal(found, np.arange(RECIPES[name].parameters))


def test_every_family_has_a_recipe():
    assert {NAMES.get(entry.family, entry.family) for entry in RECIPES.values()} == set(TYPES)


ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
# Fields that must have one value, or one of a few, by family; each is tried with another.
ONLY: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"scoring_func": "sigmoid", "moe_layer_freq": 2, "topk_method": "noaux_tc"},
    "deepseek_v3": {"scoring_func": "softmax", "moe_layer_freq": 2, "topk_method": "greedy", "rope_interleave": 1},
    "gemma": {"use_bidirectional_attention": True},
    "gemma2": {"use_bidirectional_attention": True, "layer_types": ["chunked_attention"] * 3},
    "gemma3_text": {"use_bidirectional_attention": True, "layer_types": ["full_attention"] * 99},
    "gpt2": {"add_cross_attention": True, "scale_attn_weights": "yes"},
    "gpt_neox": {"use_parallel_residual": "yes"},
    "gpt_oss": {"layer_types": ["linear_attention"] * 3, "swiglu_limit": "7"},
    "granitemoehybrid": {"layer_types": ["mamba", "conv"], "position_embedding_type": "alibi"},
    "bamba": {"attn_layer_indices": [99], "time_step_limit": [1.0, 0.5]},
    "llama": {"rope_interleaved": True, "partial_rotary_factor": 0.5},
    "mamba2": {"rms_norm": False, "expand": 3, "time_step_limit": [0.0]},
    "mistral": {"sliding_window": 0},
    "phi3": {"attention_bias": True, "lm_head_bias": True},
    "qwen2": {"use_mrope": True, "layer_types": "full_attention"},
    "qwen3_moe": {"mlp_only_layers": [-1], "decoder_sparse_step": 0},
    "qwen3_next": {"layer_types": ["sliding_attention"] * 5, "hidden_act": "gelu"},
    "smollm3": {"no_rope_layers": [1], "use_sliding_window": 1},
}
WITHOUT_ROPE = ("gpt2", "mamba2")


@pytest.mark.parametrize("kind", TYPES)
def test_a_value_that_is_not_implemented_is_refused_by_the_name_of_its_field(kind):
    there = PLAIN[kind]
    wrong = {name: "mish" for name in ACTIVATIONS if name in there and name not in TYPES[kind].ignored}
    assert wrong or kind == "gpt_oss"  # Whose activation has no name.
    if kind not in WITHOUT_ROPE:
        wrong |= {"rope_parameters": {"rope_type": "spiral"}, "rope_scaling": {"type": "spiral", "factor": 2.0}}
        wrong |= {"rope_theta": "many"}
    for name, value in {**wrong, **ONLY.get(kind, {})}.items():
        others = {} if name != "rope_theta" else {"rope_parameters": None, "rope_scaling": None}
        assert re.match(rf"config\.json: {name} is ", error_of({**there, **others, name: value})), name


@pytest.mark.parametrize("kind", TYPES)
def test_unknown_fields_quantised_weights_and_code_are_refused(kind):
    there = PLAIN[kind]
    assert error_of({**there, "clever": True, "cleverer": "x" * 60}) == (
        f"config.json: fields that dovetail does not know for {kind}: clever = True, cleverer = {'x' * 40}.\n"
        "  They may change what the model computes, so it is not loaded. If they do not, remove them."
    )
    quantised = "quantised weights are not implemented here: use the model in bfloat16 or float32."
    for name in ("quantization_config", "compression_config"):
        assert error_of({**there, name: {"bits": 4}}) == f"config.json: {name} is {{'bits': 4}}: {quantised}"
    for name, nothing in itertools.product(("quantization_config", "compression_config", "auto_map"), (None, {}, [])):
        assert read({**there, name: nothing}) == read(there)
    assert error_of({**there, "auto_map": {"AutoModel": "code.Model"}}) == (
        "config.json: auto_map is {'AutoModel': 'code.Model'}: names code of the model's own, which is never run; "
        "remove it if transformers has the model without it."
    )


@pytest.mark.parametrize("kind", TYPES)
def test_a_size_that_the_model_needs_and_lacks_is_named(kind):
    needed = [name for name in ("vocab_size", "hidden_size", "n_embd", "num_hidden_layers") if name in PLAIN[kind]]
    assert len(needed) >= 2
    for name in needed:
        there = {key: value for key, value in PLAIN[kind].items() if key != name}
        assert error_of(there) == f"config.json: has no field {name!r}, which its model needs."


def test_fields_without_effect_are_told_with_their_reasons_and_change_nothing():
    there = {**PLAIN["llama"], "use_cache": True, "top_k": 3, "pretraining_tp": 1, "initializer_range": "odd"}
    found = TYPES["llama"].read("config.json", there)
    assert found.model == read(PLAIN["llama"])
    lines = ignored_lines({name: found.ignored[name] for name in ("use_cache", "pretraining_tp", "top_k")})
    assert lines == [
        "use_cache, top_k: how transformers generates",
        "pretraining_tp: how products are split in training",
    ]


@pytest.mark.parametrize("kind", [None, "clip", 7, ["llama"], {}])
def test_a_model_type_that_is_not_there_is_an_error_with_those_that_are(kind):
    assert error_of({"model_type": kind}) == (
        f"config.json: model_type is {kind!r}, which dovetail does not have.\n  It has: {', '.join(sorted(TYPES))}."
    )


def test_a_model_with_code_of_its_own_is_told_so():
    assert error_of({"model_type": "own", "auto_map": {"AutoModel": "x.Y"}}).startswith(
        "config.json: model_type is 'own', which dovetail does not have. It has code of its own (auto_map), which is "
        "never run.\n"
    )


@pytest.mark.parametrize("named", [["LlamaForSequenceClassification"], "LlamaForCausalLM", [1], {"a": 1}, 1])
def test_a_model_with_another_head_is_refused(named):
    assert error_of({**PLAIN["llama"], "architectures": named}) == (
        f"config.json: architectures is {named!r}, expected ['LlamaForCausalLM'] for model_type 'llama'.\n"
        "  Models with other heads, or for other input than text, are not implemented here."
    )


def test_a_file_that_does_not_name_its_architecture_is_that_of_its_type():
    there = {name: value for name, value in PLAIN["llama"].items() if name != "architectures"}
    assert read(there) == read({**there, "architectures": None}) == read(PLAIN["llama"])


def test_a_model_that_fits_together_nowhere_is_an_error_with_what_does_not_fit():
    assert error_of({**PLAIN["llama"], "num_key_value_heads": 3}).startswith(
        "config.json: describes a model that cannot be built: stack.layer.mixer (Attention): "
    )


def test_a_model_of_no_family_is_an_error_with_what_differs_from_the_one_it_came_from():
    changed = model("llama3-tiny").set(logit_cap=7.0)
    with pytest.raises(ConfigError) as e:
        published_as(changed, "llama")
    assert str(e.value) == (
        "this model is of no family that can be published. The nearest is llama, which differs:\n"
        "  logit_cap: 7.0, there None"
    )


def test_many_differences_are_cut_and_counted():
    changed = model("llama2-7b").set_in("stack.layer.mixer.soft_cap", 7.0)
    with pytest.raises(ConfigError) as e:
        published_as(changed, "llama")
    lines = str(e.value).splitlines()
    assert lines[1] == "  layer 0: mixer.soft_cap: 7.0, there None"
    assert len(lines) == 10
    assert lines[-1] == "  ... and 24 more"


def test_what_does_not_change_the_maths_does_not_keep_a_model_from_its_family():
    cfg = model("llama3-tiny").set(z_loss=0.1, loss_chunk=2)
    assert published_as(cfg)[1] == published_as(model("llama3-tiny"))[1]


WRONG: list[Any] = [
    "x",
    "",
    "\ud800",
    [],
    ["x"],
    [[]],
    {},
    {"a": None},
    True,
    False,
    -1,
    0,
    1,
    3,
    1.5,
    -0.5,
    1e-320,
    1e308,
]
WRONG += [2**31, 2**53, 2**64, 10**400, math.nan, math.inf, -math.inf, None, "auto", "silu", "Infinity", [0], [1, 0]]


def mutated(value: Any, rng: random.Random) -> Any:
    """Returns JSON data with one part of it changed, dropped or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.7:
        name = rng.choice(list(value))
        if rng.random() < 0.2:
            return {key: each for key, each in value.items() if key != name}
        return {**value, rng.choice([name, name, "factor", "type", "odd"]): mutated(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], *rng.choice([[], [value[at]] * 2, [mutated(value[at], rng)]]), *value[at + 1 :]]
    return rng.choice(WRONG)


@pytest.mark.long
@settings(max_examples=120)
@given(case=st.sampled_from(list(GOLDEN)), seed=st.integers(0, 2**32))
def test_any_change_of_a_field_gives_a_model_that_can_be_published_or_a_config_error(case, seed):
    rng, there = random.Random(seed), GOLDEN[case]
    known = sorted({*there, *published_as(read(there), there["model_type"])[1]})
    name = rng.choice(known)
    fields = {**there, name: mutated(there.get(name), rng)}
    note(f"{case}, seed {seed}: {name} = {fields[name]!r}")
    found = read_or_error(fields)
    if isinstance(found, str):
        assert found.startswith("config.json: ")
        return
    try:
        family, again = published_as(found, fields["model_type"])
    except ConfigError as e:
        if "expected finite numbers" in str(e):  # A length is a product, of a huge factor here.
            return
        raise
    assert family.model_type == fields["model_type"]
    assert published_as(read(again), family.model_type)[1] == again


def read_or_error(fields: Mapping[str, Any]) -> CausalLM.Config | str:
    try:
        return read(fields)
    except ConfigError as e:
        return str(e)


def kind_of(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


@pytest.mark.parametrize("case", [f"{kind}/2" for kind in TYPES])
def test_a_value_of_another_type_or_no_finite_number_is_refused_unless_the_field_says_nothing(case):
    there = GOLDEN[case]
    found = family_of(case, there).read(case, there)
    for name in sorted(set(there) - set(found.ignored) - {"model_type", "architectures"}):
        for wrong in ("x", ["x"], {"odd": 1}, True, 7, math.nan, 10**400):
            finite = not isinstance(wrong, int | float) or abs(wrong) < math.inf
            if there[name] is None or (finite and kind_of(wrong) == kind_of(there[name])):
                continue
            changed = read_or_error({**there, name: wrong})
            if isinstance(changed, str):
                assert changed.startswith("config.json: ")
            else:
                assert changed == found.model, f"{name} = {wrong!r} is taken for another"
