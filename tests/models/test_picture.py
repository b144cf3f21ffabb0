# SPDX-License-Identifier: Apache-2.0
"""Models as pictures."""

import pytest

from dovetail.models import model_picture
from dovetail.module import specs
from dovetail.nn import Block
from dovetail.pictures import number
from dovetail.zoo import recipe
from support.drawn import SVG, check_texts, checked, texts

ARROW, TIMES = "\N{RIGHTWARDS ARROW}", "\N{MULTIPLICATION SIGN}"


def _picture(name: str):
    model = recipe(name).model.build(path="model")
    root = checked(model_picture(name, model))
    check_texts(root)
    return model, texts(root), [each.get("r") for each in root.iter(f"{SVG}circle")].count("7")


@pytest.mark.parametrize("name", ["gpt-neox-tiny", "gemma2-tiny", "deepseek-v3-tiny", "hybrid-tiny", "qwen3-moe-tiny"])
def test_every_kind_of_layer_is_there_with_its_branches(name: str):
    model, found, joins = _picture(name)
    import jax

    total = sum(spec.size for spec in jax.tree.leaves(specs(model), is_leaf=lambda x: hasattr(x, "axes")))
    assert any(f"{number(total)} parameters" in text for text in found)
    kinds = sum(text.startswith("Block") for text in found)
    assert joins == 2 * kinds
    assert {"embedding", "stack", "norm", "mixer", "ffn"} <= set(found)


def test_maps_are_written_as_from_what_to_what():
    _, found, _ = _picture("qwen3-moe-tiny")
    assert any(ARROW in text and TIMES not in text for text in found)
    assert any(text.startswith("8 ") or f" {TIMES} " in text for text in found if ARROW in text)  # Experts.


def test_kinds_of_layers_are_counted_where_they_alternate():
    _, found, _ = _picture("hybrid-tiny")
    counted = [text for text in found if text.startswith("Block")]
    assert len(counted) == 2
    assert len({text for text in found if text.endswith(" each")}) >= 1


def test_a_layer_of_another_kind_than_blocks_is_a_card():
    cfg = recipe("gpt-neox-tiny").model
    block = cfg.stack.layer
    assert isinstance(block, Block.Config)
    _, found, joins = (None, *_drawn(cfg.set_in("stack.layer", block.ffn)))
    assert joins == 0
    assert any("DenseFeedForward" in text for text in found)


def _drawn(cfg):
    root = checked(model_picture("a model", cfg.build(path="model")))
    check_texts(root)
    return texts(root), [each.get("r") for each in root.iter(f"{SVG}circle")].count("7")
