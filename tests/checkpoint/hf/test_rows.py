# SPDX-License-Identifier: Apache-2.0
"""Tables of weights: each tensor is used once and each parameter filled once, in any stack; what else is refused."""

import types
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.checkpoint.hf import WeightMap, weight_map
from dovetail.checkpoint.hf._rows import check_stored
from dovetail.config import ConfigError, replace_all
from dovetail.nn import (
    Attention,
    Block,
    DenseGroupedLinear,
    DenseLinear,
    GatedFeedForward,
    GroupedLinear,
    LatentAttention,
    Linear,
    LoRAGroupedLinear,
    LoRALinear,
    Repeat,
)
from dovetail.zoo.families._common import LATENT_ATTENTION
from support.stacks import KINDS, ROWS, layers_in, model_of, numbered, shapes_of, stacks

MODEL = model_of(Repeat.Config(layer=KINDS["dense"], num_layers=2))


def mapped(model: Any, rows=ROWS, **options) -> WeightMap:
    return weight_map(rows, model.stack, shapes_of(model), **options)


def written(found: WeightMap, params) -> dict[str, np.ndarray]:
    """Returns all tensors of a model with these parameters."""
    return {name: found.write(name, np.int64, lambda path, at: params[path][at]) for name in found.tensors}


def filled(found: WeightMap, shapes, tensors) -> dict[str, np.ndarray]:
    """Returns all parameters of a model with these tensors; -1 where there is nothing."""
    params = {path: np.full(shape, -1) for path, shape in shapes.items()}
    for path, index in found.pieces:
        assert np.all(params[path][index] == -1), "filled once"
        whole = (slice(None),) * (params[path].ndim - len(index))
        params[path][index] = found.read((path, index), whole, tensors.__getitem__)
    return params


@settings(max_examples=40)
@given(stacks(), st.sampled_from([None, DenseLinear.Config()]))
def test_write_and_read_undo_each_other_and_each_number_has_one_place(stack, head):
    model = model_of(stack, head=head)
    found, shapes = mapped(model), shapes_of(model)
    params = numbered(shapes)
    tensors = written(found, params)
    assert {name: tensor.shape for name, tensor in found.tensors.items()} == {k: v.shape for k, v in tensors.items()}
    used = np.sort(np.concatenate([tensor.ravel() for tensor in tensors.values()]))
    np.testing.assert_array_equal(used, np.arange(used.size))
    assert used.size == sum(value.size for value in params.values())
    again = filled(found, shapes, tensors)
    for path, value in params.items():
        np.testing.assert_array_equal(again[path], value, path)
    tagged = numbered({name: tensor.shape for name, tensor in found.tensors.items()})
    back = written(found, filled(found, shapes, tagged))
    for name, value in tagged.items():
        np.testing.assert_array_equal(back[name], value, name)


@settings(max_examples=40)
@given(stacks())
def test_the_tensors_of_a_layer_are_those_of_its_number(stack):
    """Against transposes and joins by hand, of parameters found by the words of the docstring of `Repeat`."""
    model = model_of(stack)
    params = numbered(shapes_of(model))
    tensors, left = written(mapped(model), params), Counter({"model.embed_tokens", "model.norm", "lm_head"})
    np.testing.assert_array_equal(tensors["lm_head.weight"], params["head.weight"].T)
    for number, (layer, own) in enumerate(layers_in(stack, params)):
        there = {
            name.removeprefix(f"model.layers.{number}."): value
            for name, value in tensors.items()
            if name.startswith(f"model.layers.{number}.")
        }
        left[f"model.layers.{number}"] += 1
        np.testing.assert_array_equal(there["input_layernorm.weight"], own["mixer_norm.scale"])
        if isinstance(layer.mixer, Attention.Config):
            q, o = own["mixer.query.weight"], own["mixer.out.weight"]
            np.testing.assert_array_equal(there["self_attn.q_proj.weight"], q.reshape(q.shape[0], -1).T)
            np.testing.assert_array_equal(there["self_attn.o_proj.weight"], o.reshape(-1, o.shape[-1]).T)
            assert ("self_attn.q_proj.bias" in there) == (layer == KINDS["dense"])
        else:
            names = ("gate", "value", "key", "query", "delta")
            maps = [own[f"mixer.{name}.weight"] for name in names]
            joined = np.concatenate([each.reshape(each.shape[0], -1).T for each in maps])
            np.testing.assert_array_equal(there["mamba.in_proj.weight"], joined)
            convs = [own[f"mixer.{name}_conv.weight"] for name in ("value", "key", "query")]
            joined = np.concatenate([each.reshape(each.shape[0], -1).T for each in convs])
            np.testing.assert_array_equal(there["mamba.conv1d.weight"], joined[:, None])
        for e in range(3 if layer == KINDS["experts"] else 0):
            up, down = (there[f"mlp.experts.{e}.{name}_proj.weight"] for name in ("up", "down"))
            np.testing.assert_array_equal(up, own["ffn.up.weight"][e].T)
            np.testing.assert_array_equal(down, own["ffn.down.weight"][e].T)
    prefixes = {".".join(name.split(".")[:3]) if "layers" in name else name.removesuffix(".weight") for name in tensors}
    assert prefixes == set(left), "no others"


@settings(max_examples=30)
@given(stacks(), st.data())
def test_a_part_of_a_parameter_is_read_as_the_part_of_the_whole(stack, data):
    model = model_of(stack)
    found = mapped(model)
    tensors = numbered({name: tensor.shape for name, tensor in found.tensors.items()})
    for key in data.draw(st.lists(st.sampled_from(list(found.pieces)), min_size=1, max_size=8)):
        path, index = key
        shape = shapes_of(model)[path][len(index) :]
        starts = [data.draw(st.integers(0, size - 1)) for size in shape]
        pairs = zip(starts, shape, strict=True)
        part = tuple(slice(start, data.draw(st.integers(start + 1, size))) for start, size in pairs)
        whole = found.read(key, (slice(None),) * len(shape), tensors.__getitem__)
        got = found.read(key, part, tensors.__getitem__)
        np.testing.assert_array_equal(got, whole[part])
        assert got.base is None, "in memory of its own, and no more of it"


def test_only_tensors_that_a_part_needs_are_looked_at():
    model = model_of(Repeat.Config(layer=KINDS["experts"], num_layers=2))
    found, seen = mapped(model), []
    tensors = numbered({name: tensor.shape for name, tensor in found.tensors.items()})

    def view(name):
        seen.append(name)
        return tensors[name]

    found.read(("stack.layer.ffn.up.weight", (1,)), (slice(1, 3), slice(None), slice(0, 2)), view)
    assert seen == [f"model.layers.1.mlp.experts.{e}.up_proj.weight" for e in (1, 2)]


def test_a_numbered_axis_may_be_any_axis_of_the_parameter_and_beside_parts():
    rows = ("a.{h}.kv: (n + v) c = layer.mixer.key_up.weight: c h n, layer.mixer.value_up.weight: c h v",)
    latent = LatentAttention.Config(num_heads=3, kv_rank=4, nope_dim=2, rope_dim=2, value_dim=5)
    model = model_of(Block.Config(mixer=latent, ffn=None, ffn_norm=None))
    found, params = mapped(model, rows, partial=True), numbered(shapes_of(model))
    keys, values = params["stack.mixer.key_up.weight"], params["stack.mixer.value_up.weight"]
    tensors = written(found, params)
    assert list(tensors) == ["a.0.kv", "a.1.kv", "a.2.kv"]
    for h in range(3):
        np.testing.assert_array_equal(tensors[f"a.{h}.kv"], np.concatenate([keys[:, h].T, values[:, h].T]))
    again = found.read(("stack.mixer.value_up.weight", ()), (slice(1, 3), slice(1, 3), slice(0, 4)), tensors.get)
    np.testing.assert_array_equal(again, values[1:3, 1:3, 0:4])


def latent(query_rank):
    mixer = LatentAttention.Config(num_heads=2, kv_rank=4, nope_dim=2, rope_dim=2, value_dim=3, query_rank=query_rank)
    return Block.Config(mixer=mixer, ffn=None, ffn_norm=None)


def test_rows_count_for_layers_of_their_class_and_with_their_fields():
    """All kinds of layer have `query.weight`, with as many dimensions."""
    model = model_of(Repeat.Config(layer=(latent(None), latent(5), KINDS["states"]), num_layers=3))
    rows = [row for row in (*ROWS, *LATENT_ATTENTION) if "mixer.query" in row or ".query.weight" in row]
    found = mapped(model, rows, partial=True)
    names = [found.pieces[f"stack.layer[{i}].mixer.query.weight", (0,)].names for i in range(3)]
    assert names == [
        ("model.layers.0.self_attn.q_proj.weight",),
        ("model.layers.1.self_attn.q_b_proj.weight",),
        ("model.layers.2.mamba.in_proj.weight",),
    ]


def test_copies_count_where_there_is_the_one_and_not_the_other_and_ignored_names_know_the_number_of_layers():
    rows = (*ROWS, "model.layers.{n}.* -- predicts further tokens")
    tied, untied = mapped(MODEL.set(head=None), rows), mapped(MODEL, rows)
    assert (tied.copies, untied.copies) == ({"lm_head.weight": "model.embed_tokens.weight"}, {})
    assert tied.ignored["model.layers.2.*"] == "predicts further tokens"
    stored = like(tied)
    more = {"model.layers.2.a.weight": tensor(3), "lm_head.weight": tensor(7, 6), "x.rotary_emb.inv_freq": tensor(1)}
    assert check_stored("here", tied, {**stored, **more}) == tied
    with pytest.raises(ConfigError, match=r"has no place in the model: model\.layers\.3\.a\.weight"):
        check_stored("here", tied, {**stored, "model.layers.3.a.weight": tensor(3)})


# What is stored.


def tensor(*shape: int, dtype: str = "bfloat16") -> Any:
    return types.SimpleNamespace(shape=shape, dtype=dtype)


def like(found: WeightMap) -> dict[str, Any]:
    """Returns what a directory has that fits."""
    return {name: tensor(*each.shape) for name, each in found.tensors.items()}


def test_a_directory_without_the_head_has_names_without_their_first_word():
    rows = (*ROWS, "model.layers.{n}.* -- predicts further tokens")
    found = mapped(MODEL.set(head=None), rows)
    params = numbered(shapes_of(MODEL.set(head=None)))
    bare = {name.removeprefix("model."): value for name, value in written(found, params).items()}
    renamed = check_stored("here", found, {name: tensor(*value.shape) for name, value in bare.items()})
    assert set(renamed.tensors) == set(bare)
    again = filled(renamed, shapes_of(MODEL.set(head=None)), bare)
    for path, value in params.items():
        np.testing.assert_array_equal(again[path], value)
    more = {"layers.2.x": tensor(1), "layers.0.self_attn.rotary_emb.inv_freq": tensor(2)}
    assert check_stored("here", found, {**like(renamed), **more}) is not None, "patterns lack their first word, too"
    with pytest.raises(ConfigError, match=r"is missing: lm_head\.weight"):
        check_stored("here", mapped(MODEL), like(renamed))


def refusal(found: WeightMap, stored: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as e:
        check_stored("here", found, stored)
    first, *lines, last = str(e.value).splitlines()
    assert first == "here: its tensors are not those that its config.json describes:"
    assert last == "  Nothing was loaded."
    return lines


def test_missing_spare_misshapen_and_integer_tensors_are_refused_all_at_once():
    found = mapped(MODEL)
    stored = like(found)
    del stored["model.norm.weight"]
    stored["model.extra"] = tensor(2)
    stored["lm_head.weight"] = tensor(6, 7)
    stored["model.embed_tokens.weight"] = tensor(7, 6, dtype="int8")
    assert refusal(found, stored) == [
        "  is missing: model.norm.weight",
        "  has no place in the model: model.extra",
        "  lm_head.weight is (6, 7), expected (7, 6)",
        "  model.embed_tokens.weight is of type int8, expected floating point",
    ]


def test_a_long_list_is_cut():
    lines = refusal(mapped(MODEL), {})
    assert lines[-1] == f"  ... and {len(mapped(MODEL).tensors) - 12} more"
    assert len(lines) == 13


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_floating_point_is_not_refused(dtype):
    found = mapped(MODEL)
    assert check_stored("here", found, {n: tensor(*t.shape, dtype=dtype) for n, t in found.tensors.items()}) == found


# What a table must be.


def error_of(rows, model: Any = MODEL, **options) -> str:
    with pytest.raises(ConfigError) as e:
        mapped(model, rows, **options)
    return str(e.value)


def test_a_parameter_without_a_row_is_refused_unless_that_is_allowed():
    rows = [row for row in ROWS if "input_layernorm" not in row and "model.norm" not in row]
    assert error_of(rows) == (
        "this model has parameters for which the format of its family has no place:\n"
        "  norm.scale\n  stack.layer.mixer_norm.scale\n"
        "  Leave out what they belong to, or use a family that has it."
    )
    paths = {path for path, _ in mapped(MODEL, rows, partial=True).pieces}
    assert set(shapes_of(MODEL)) - paths == {"norm.scale", "stack.layer.mixer_norm.scale"}


def test_a_parameter_that_only_some_layers_fill_is_unfilled():
    """A row of two parameters counts only where a layer has both."""
    rows = [row for row in ROWS if "gate_proj" not in row and "up_proj" not in row]
    rows.append("model.layers.{l}.x: (f + f) d = layer.ffn.gate.weight: d f, layer.ffn.nothing.weight: d f")
    assert "  stack.layer.ffn.gate.weight\n  stack.layer.ffn.up.weight" in error_of(rows)


def test_a_tensor_or_a_parameter_twice_is_refused():
    assert error_of([*ROWS, "model.norm.weight: v d = embedding.table: v d"]) == (
        "the table of weights uses 'model.norm.weight' twice."
    )
    assert error_of([*ROWS, "model.other.weight: v d = embedding.table: v d"]) == (
        "the table of weights fills 'embedding.table' twice."
    )


def test_shapes_that_do_not_agree_are_refused_with_the_row():
    rows = [row for row in ROWS if "model.embed_tokens" not in row]
    text = error_of([*rows, "a: (d d2) = norm.scale: (d d2)"])
    assert text == "norm.scale: shapes [(6,)] do not fit the row of the table for 'a'."


@pytest.mark.parametrize("row", ["a: b", "a = b", "a: d = b", "a: d = norm.scale: d = c", "a: d: e = norm.scale: d"])
def test_what_is_not_a_row_is_refused_with_its_text(row):
    assert error_of([row]) == f"a row of weights is {row!r}, expected `tensor: axes = parameter: axes`."


@pytest.mark.parametrize(
    "row, why",
    [
        ("a: (d + d) = norm.scale: d", "it has not as many parameters as the tensor has parts."),
        ("a: d = norm.scale: d, head.weight: d", "it has not as many parameters as the tensor has parts."),
        ("a: d = norm.scale: e", "norm.scale has other axes than its part of the tensor."),
        ("a: d = norm.scale: d e", "norm.scale has other axes than its part of the tensor."),
        ("a: d 2 = norm.scale: d", "norm.scale has other axes than its part of the tensor."),
        ("a: (d + e) = norm.scale: d, head.weight: d", "head.weight has other axes than its part of the tensor."),
        ("a: d e = norm.scale: (d + e)", "norm.scale can be no such part of a tensor."),
        ("a.{e}: d = head.weight: (e d)", "head.weight can be no such part of a tensor."),
    ],
)
def test_a_row_whose_sides_do_not_hold_the_same_numbers_is_refused(row, why):
    assert error_of([row]) == f"a row of weights is {row!r}: {why}"


def test_more_tensors_than_any_model_has_are_refused_at_once():
    """The number of experts is from a file that may say anything."""
    stack = Repeat.Config(layer=KINDS["experts"].set_in("ffn.num_experts", 10**12), num_layers=2)
    assert error_of(ROWS, model_of(stack)) == (
        "stack.layer.ffn.gate.weight: 1,000,000,000,000 tensors in one layer. "
        "With those before, that is more than 262,144."
    )


# Adapters.

ADAPTED = {
    "dense": replace_all(Linear.Config, lambda old: LoRALinear.Config(rank=2, inner=old)),
    "experts": replace_all(GroupedLinear.Config, lambda old: LoRAGroupedLinear.Config(rank=2, inner=old)),
}


@pytest.mark.parametrize("kind", ADAPTED)
def test_a_map_with_an_adapter_is_filled_inside_and_the_adapter_left(kind):
    plain = model_of(Repeat.Config(layer=KINDS[kind], num_layers=2))
    model = plain.set(stack=ADAPTED[kind](plain.stack))
    named = [line.strip() for line in error_of(ROWS, model).splitlines()[1:-1] if "... and" not in line]
    assert all(".lora_" in line for line in named)
    assert named[0].startswith("stack.layer.")
    found = mapped(model, partial=True)
    assert {n: t.shape for n, t in found.tensors.items()} == {n: t.shape for n, t in mapped(plain).tensors.items()}
    filled_paths = {path for path, _ in found.pieces}
    assert {path.replace(".inner.", ".") for path in filled_paths} == set(shapes_of(plain))
    assert all(".lora_" in path for path in set(shapes_of(model)) - filled_paths)


def test_kinds_of_layers_here_have_what_these_tests_need():
    assert isinstance(KINDS["experts"].get_in("ffn.up"), DenseGroupedLinear.Config)
    assert isinstance(KINDS["dense"].get_in("ffn"), GatedFeedForward.Config)
