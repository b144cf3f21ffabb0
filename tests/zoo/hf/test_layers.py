# SPDX-License-Identifier: Apache-2.0
"""Fields that say what each layer is: any list becomes a stack and comes back; what fits no layer is refused."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.nn import NoRotary
from dovetail.zoo.hf import families, published_as
from dovetail.zoo.hf._tree import Tree
from support.published import golden_configs

TYPES = {family.model_type: family for family in families()}
GOLDEN = golden_configs()
LISTED = ("layer_types", "no_rope_layers", "sliding_window", "use_sliding_window", "mlp_only_layers")
OTHERS = ("max_window_layers", "decoder_sparse_step", "no_rope_layer_interval", "_sliding_window_pattern")
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"


def config(kind: str, layers: int, **fields: Any) -> dict[str, Any]:
    """Returns a config of a family with so many layers, of which nothing is said but these fields."""
    plain = {name: value for name, value in GOLDEN[f"{kind}/0"].items() if name not in (*LISTED, *OTHERS)}
    return {**plain, "num_hidden_layers": layers, **fields}


def read(fields: dict[str, Any]) -> Tree:
    """Returns the model, when it has come back from a config.json of its own."""
    kind = fields["model_type"]
    found = TYPES[kind].read("config.json", fields).model
    family, written = published_as(found, kind)
    assert family.model_type == kind
    again = Tree(TYPES[kind].read("config.json", written).model)
    for path in ("layer.mixer.window", "layer.ffn.hidden_dim", "layer.mixer.rotary"):
        assert again.values(path) == Tree(found).values(path)
    return again


def windows(fields: dict[str, Any]) -> list[int | None]:
    return [value for _, value in read(fields).values("layer.mixer.window")]


def parts(fields: dict[str, Any], path: str) -> list[str]:
    """Returns the class of a part of each layer."""
    return [type(value).__qualname__.partition(".")[0] for _, value in read(fields).values(f"layer.{path}")]


def error_of(fields: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as e:
        TYPES[fields["model_type"]].read("config.json", fields)
    return str(e.value)


LISTS = st.lists(st.booleans(), min_size=1, max_size=8)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "olmo3", "gpt_oss", "qwen2", "qwen3", "smollm3"])
@settings(max_examples=8)
@given(listed=LISTS)
def test_any_list_of_windows_comes_back(kind, listed):
    types = [SLIDING if each else FULL for each in listed]
    switch = {"use_sliding_window": True} if kind in ("qwen2", "qwen3", "smollm3") else {}
    assert windows(config(kind, len(types), layer_types=types, sliding_window=5, **switch)) == [
        5 if each else None for each in listed
    ]


@pytest.mark.parametrize("kind", ["granitemoehybrid", "qwen3_next", "bamba"])
@settings(max_examples=8)
@given(listed=LISTS)
def test_any_list_of_mixers_comes_back(kind, listed):
    names = [FULL if each else LINEAR for each in listed]
    at = {"attn_layer_indices": [i for i, each in enumerate(listed) if each]}
    fields = config(kind, len(listed), **(at if kind == "bamba" else {"layer_types": names}))
    other = "GatedDeltaNet" if kind == "qwen3_next" else "Mamba2"
    assert parts(fields, "mixer") == ["Attention" if each else other for each in listed]


@pytest.mark.parametrize("kind", ["qwen3_moe", "qwen3_next"])
@settings(max_examples=8)
@given(layers=st.integers(1, 7), step=st.integers(1, 4), data=st.data())
def test_experts_at_any_layers_come_back(kind, layers, step, data):
    dense = data.draw(st.lists(st.integers(0, layers - 1), unique=True))
    fields = config(kind, layers, decoder_sparse_step=step, mlp_only_layers=dense)
    assert parts(fields, "ffn") == [
        "MoEFeedForward" if (i + 1) % step == 0 and i not in dense else "GatedFeedForward" for i in range(layers)
    ]


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
@pytest.mark.parametrize("first", [0, 1, 3, 4, 9])
def test_the_first_layers_are_dense_and_the_others_have_experts(kind, first):
    fields = config(kind, 4, first_k_dense_replace=first)
    dense = min(first, 4)
    assert parts(fields, "ffn") == ["GatedFeedForward"] * dense + ["MoEFeedForward"] * (4 - dense)


@settings(max_examples=20)
@given(listed=LISTS)
def test_any_list_of_layers_without_positions_comes_back(listed):
    fields = config("smollm3", len(listed), no_rope_layers=[int(each) for each in listed])
    found = [not isinstance(value, NoRotary.Config) for _, value in read(fields).values("layer.mixer.rotary")]
    assert found == listed


def test_positions_are_left_out_at_an_interval_where_no_list_says_it():
    for fields, every in (({}, 4), ({"no_rope_layer_interval": 3}, 3), ({"no_rope_layers": None}, 4)):
        found = read(config("smollm3", 8, **fields)).values("layer.mixer.rotary")
        assert [i for i, value in found if isinstance(value, NoRotary.Config)] == list(range(every - 1, 8, every))


def test_granite_has_experts_in_all_layers_or_in_none():
    plain = config("granitemoehybrid", 2, layer_types=["mamba", "attention"])
    assert parts({**plain, "num_local_experts": 0}, "ffn") == ["GatedFeedForward"] * 2
    assert parts({**plain, "num_local_experts": 4, "num_experts_per_tok": 2}, "ffn") == ["MoEFeedForward"] * 2


@pytest.mark.parametrize(
    "kind, fields, expected",
    [
        ("gemma2", {"sliding_window": 5}, [5, None, 5, None, 5, None, 5]),
        ("gpt_oss", {"sliding_window": 5}, [5, None, 5, None, 5, None, 5]),
        ("olmo3", {"sliding_window": 5}, [5, 5, 5, None, 5, 5, 5]),
        ("gemma3_text", {"sliding_window": 5}, [5, 5, 5, 5, 5, None, 5]),
        ("gemma3_text", {"sliding_window": 5, "sliding_window_pattern": 3}, [5, 5, None, 5, 5, None, 5]),
        ("qwen2", {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 5}, [None] * 5 + [5, 5]),
        ("qwen3", {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 0}, [5] * 7),
        ("qwen2", {"sliding_window": 5, "max_window_layers": 0}, [None] * 7),
        ("qwen2", {"sliding_window": 5, "layer_types": [SLIDING] * 7}, [None] * 7),
        ("smollm3", {"sliding_window": 5, "use_sliding_window": True}, [None, None, None, 5, None, None, None]),
        ("smollm3", {"sliding_window": None, "use_sliding_window": True}, [None] * 7),
        ("mistral", {"sliding_window": 5}, [5] * 7),
        ("mistral", {"sliding_window": None}, [None] * 7),
        ("mistral", {}, [4096] * 7),
        ("mixtral", {}, [None] * 7),
        ("qwen3_moe", {"sliding_window": 5}, [None] * 7),
        ("qwen3_moe", {"sliding_window": 5, "use_sliding_window": True}, [5] * 7),
    ],
)
def test_windows_are_by_the_rule_of_the_family_where_no_list_says_it(kind, fields, expected):
    assert windows(config(kind, 7, **fields)) == expected


def test_attention_is_at_an_interval_in_qwen3_next_where_no_list_says_it():
    other = "GatedDeltaNet"
    assert parts(config("qwen3_next", 5), "mixer") == [other, other, other, "Attention", other]
    assert parts(config("qwen3_next", 3, full_attention_interval=2), "mixer") == [other, "Attention", other]


@pytest.mark.parametrize("by_layer", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_scores_of_gpt2_are_scaled_by_the_head_dim_and_by_the_layer(scaled, by_layer):
    plain = {**GOLDEN["gpt2/0"], "n_layer": 3, "n_embd": 32, "n_head": 2}
    found = Tree(
        TYPES["gpt2"]
        .read("x", {**plain, "scale_attn_weights": scaled, "scale_attn_by_inverse_layer_idx": by_layer})
        .model
    )
    scale = 0.25 if scaled else 1.0
    assert [value for _, value in found.values("layer.mixer.scale")] == [
        scale / (i + 1 if by_layer else 1) for i in range(3)
    ]
    assert published_as(found.config(), "gpt2")[0].model_type == "gpt2"


EXPECTED = "which are all that there are here."
WRONG = [
    ("gemma2", {"layer_types": [SLIDING]}, f"expected 2 of {SLIDING}, {FULL}, {EXPECTED}"),
    ("gemma2", {"layer_types": [SLIDING, "mamba"]}, f"expected 2 of {SLIDING}, {FULL}, {EXPECTED}"),
    ("gemma2", {"layer_types": [SLIDING, [FULL]]}, f"expected 2 of {SLIDING}, {FULL}, {EXPECTED}"),
    ("gemma2", {"layer_types": {"0": SLIDING}}, f"expected 2 of {SLIDING}, {FULL}, {EXPECTED}"),
    ("gemma2", {"sliding_window": None}, "some layers have a window, so it must be a number."),
    ("gemma2", {"sliding_window": 2.0}, "expected a whole number of at least 1."),
    ("mistral", {"sliding_window": -1}, "expected a whole number of at least 1."),
    ("gemma3_text", {"sliding_window_pattern": 0}, "expected a whole number of at least 1."),
    ("qwen2", {"use_sliding_window": "yes"}, "expected true or false."),
    ("qwen3_moe", {"mlp_only_layers": [2]}, "expected numbers of layers, from 0 to 1."),
    ("qwen3_moe", {"mlp_only_layers": [True]}, "expected numbers of layers, from 0 to 1."),
    ("qwen3_moe", {"decoder_sparse_step": 0}, "expected a whole number of at least 1."),
    ("bamba", {"attn_layer_indices": 1}, "expected numbers of layers, from 0 to 1."),
    ("deepseek_v3", {"first_k_dense_replace": -1}, "expected a whole number of at least 0."),
    (
        "granitemoehybrid",
        {"layer_types": [FULL] * 2, "num_local_experts": -1},
        "expected a whole number of at least 0.",
    ),
    ("smollm3", {"no_rope_layers": [1]}, "expected 0 or 1 for each layer."),
    ("smollm3", {"no_rope_layers": [1, 2]}, "expected 0 or 1 for each layer."),
    ("smollm3", {"no_rope_layers": [1, 0, 1]}, "expected 0 or 1 for each of 2 layers."),
    ("llama", {"num_hidden_layers": 1001}, "expected at most 1,000 layers."),
    ("llama", {"num_hidden_layers": 0}, "expected a whole number of at least 1."),
]


@pytest.mark.parametrize("kind, fields, why", WRONG)
def test_a_list_that_fits_no_layers_is_refused(kind, fields, why):
    name, value = list(fields.items())[-1]
    assert error_of(config(kind, 2, **fields)) == f"config.json: {name} is {value!r}: {why}"


def test_a_hybrid_without_a_list_is_refused():
    assert error_of(config("granitemoehybrid", 2)) == (
        "config.json: has no field 'layer_types', which its model needs."
    )


@pytest.mark.parametrize(
    "kind, path, values, why",
    [
        ("gemma2", "mixer.window", (4, 5), "layer.mixer.window: windows of several sizes, [4, 5]"),
        ("mistral", "mixer.window", (4, None), "layers 0 and 1 differ in mixer.window"),
        ("llama", "ffn.hidden_dim", (4, 5), "layers 0 and 1 differ in ffn.hidden_dim"),
    ],
)
def test_layers_that_no_field_can_say_are_an_error_that_names_them(kind, path, values, why):
    tree = Tree(TYPES[kind].read("config.json", config(kind, 2)).model)
    tree.layers = [layer.set_in(path, value) for layer, value in zip(tree.layers, values, strict=True)]
    with pytest.raises(ConfigError) as e:
        TYPES[kind].write(tree.config())
    assert str(e.value) == why


def test_a_dense_layer_after_experts_is_no_deepseek():
    tree = Tree(TYPES["deepseek_v3"].read("config.json", config("deepseek_v3", 2, first_k_dense_replace=1)).model)
    tree.layers.reverse()
    with pytest.raises(ConfigError, match=r"^layer\.ffn: a layer without experts comes after one with experts$"):
        TYPES["deepseek_v3"].write(tree.config())
