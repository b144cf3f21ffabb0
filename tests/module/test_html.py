# SPDX-License-Identifier: Apache-2.0
"""Modules as notebooks show them."""

import xml.etree.ElementTree as ET

from dovetail.zoo import recipe


def test_the_tree_has_each_parameter_with_shape_and_axes():
    model = recipe("gpt-neox-tiny").model.build(path="model")
    root = ET.fromstring(model._repr_html_())
    rows = [[cell.text for cell in row] for row in root.iter("tr")]
    assert ["table", "(260, 32)", "vocab, embed", "8,320"] in rows
    assert ["weight", "(32, 64)", "embed, mlp", "4,096"] in rows  # Of both layers.
    heads = ["".join(each.itertext()) for each in root.iter("summary")]
    assert heads[0].startswith("CausalLM 33.8K")
    assert any(head.startswith("layer Block") and "2" in head for head in heads)


def test_it_is_small_and_nothing_is_computed_for_it():
    model = recipe("deepseek-v3-tiny").model.build()
    assert len(model._repr_html_()) < 20_000
    assert repr(model) == "(root) (CausalLM)"
    assert getattr(model, "_ipython_canary_method_should_not_exist_", None) is None
