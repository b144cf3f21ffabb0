# SPDX-License-Identifier: Apache-2.0
"""Trees: paths of the model and of its layers, whatever stack these are in."""

import pytest
from hypothesis import given, settings

from dovetail.config import ConfigError
from dovetail.nn import Repeat, Sequence, layers_of
from dovetail.zoo.hf._tree import PerLayer, Tree
from support.stacks import KINDS, model_of, stacks

DENSE, EXPERTS, STATES = KINDS["dense"], KINDS["experts"], KINDS["states"]
MIXED = model_of(Sequence.Config(layers=(Repeat.Config(layer=(DENSE, STATES), num_layers=3), EXPERTS)))


@settings(max_examples=40)
@given(stack=stacks())
def test_the_layers_are_those_of_the_stack_and_a_config_has_the_same(stack):
    tree = Tree(model_of(stack))
    assert tree.layers == [place.layer for place in layers_of(stack)]
    assert [place.layer for place in layers_of(tree.config().stack)] == tree.layers


def test_equal_layers_become_one_that_is_repeated():
    tree = Tree(model_of(Sequence.Config(layers=(DENSE, DENSE, DENSE))))
    assert tree.config().stack == Repeat.Config(layer=DENSE, num_layers=3)


def test_a_path_of_the_model_is_set_in_the_model():
    tree = Tree(MIXED)
    tree.set("norm.eps", 0.5)
    assert tree.get("norm.eps") == 0.5
    assert tree.config() == Tree(MIXED.set_in("norm.eps", 0.5)).config()
    assert MIXED.get_in("norm.eps") != 0.5


def test_a_path_of_layers_is_set_where_it_is_and_others_are_passed_over():
    tree = Tree(MIXED)
    tree.set("layer.ffn.hidden_dim", 9)
    assert tree.values("layer.ffn.hidden_dim") == [(0, 9), (2, 9), (3, 9)]
    tree.set("layer.ffn.router.top_k", 1)
    assert tree.values("layer.ffn.router.top_k") == [(3, 1)]
    tree.set("layer.nothing.there", 1)
    assert tree.layers[1] == STATES


def test_a_class_in_a_path_picks_parts_of_that_class():
    tree = Tree(MIXED)
    assert [i for i, _ in tree.values("layer.mixer:Mamba2.head_dim")] == [1]
    assert [i for i, _ in tree.values("layer.mixer:Attention.head_dim")] == [0, 2, 3]
    assert tree.values("layer.mixer:Attn.head_dim") == []


def test_a_value_for_each_layer_is_set_in_each():
    tree = Tree(MIXED)
    tree.set("layer.mixer.head_dim", PerLayer((4, 5, 6, 8)))
    assert tree.values("layer.mixer.head_dim") == [(0, 4), (1, 5), (2, 6), (3, 8)]
    with pytest.raises(ValueError, match="shorter"):
        tree.set("layer.mixer.head_dim", PerLayer((4, 5)))


def test_a_value_is_one_for_all_layers_or_an_error_with_two_that_differ():
    tree = Tree(MIXED)
    assert tree.get("layer.ffn.num_experts") == 3
    assert tree.get("layer.ffn.nothing", "missing") == "missing"
    assert tree.get("nothing.there") is None
    with pytest.raises(ConfigError, match=r"^layers 0 and 3 differ in ffn\.hidden_dim$"):
        tree.get("layer.ffn.hidden_dim")


def test_a_field_is_there_if_the_model_or_a_layer_has_it():
    tree = Tree(MIXED)
    paths = ("norm.eps", "layer.ffn.router.top_k", "layer.mixer:Mamba2.head_dim", "norm.odd", "layer.mixer:Odd.scale")
    assert [tree.has(path) for path in paths] == [True, True, True, False, False]


def test_a_count_is_told_from_other_numbers():
    tree = Tree(MIXED)
    paths = ("vocab_size", "layer.mixer.window", "layer.ffn.num_experts", "norm.eps", "layer.mixer.scale", "layer.odd")
    assert [tree.counts(path) for path in paths] == [True, True, True, False, False, False]
