# SPDX-License-Identifier: Apache-2.0
"""Models as blocks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.pictures import BlockBranch, BlockLayer, Card, Row, Section, Stack, blocks_picture
from support.drawn import SVG, check_texts, checked, texts


def _layer(name: str, rows: int = 3, **more) -> BlockLayer:
    inner = Card("shared", "FeedForward", "1K", [Row("up", "8 to 16", "128")])
    card = Card("mixer", name, "1.2M", [*(Row(f"row{i}", f"{2**i} to 8", "12K") for i in range(rows)), inner])
    ffn = Card("ffn", "Experts", "9B", [Row("gate", "8 x 8 to 16", "1K")], many=True)
    return BlockLayer("Block", "1.2M", [BlockBranch(card, ["norm"]), BlockBranch(ffn, ["norm"], ["out"])], **more)


@pytest.mark.parametrize("kinds", [1, 2, 3, 5])
def test_all_of_a_model_can_be_read(kinds: int):
    stack = Stack("stack", "9B", [i % kinds for i in range(4 * kinds)], [_layer(f"Kind{i}", i) for i in range(kinds)])
    items = [Card("embedding", "Embedding", "1M"), stack, Card("head", "Linear", "1M"), Section("more", "MTP", "1B")]
    root = checked(blocks_picture("a model", "about it", [*items, stack._replace(order=[0], kinds=stack.kinds[:1])]))
    check_texts(root)
    assert {"embedding", "stack", "head", "more", "Kind0"} <= set(texts(root))


def test_layers_of_several_kinds_are_cells_in_their_order():
    order = [0, 0, 1, 0, 0, 1]
    root = checked(blocks_picture("a model", "", [Stack("stack", "", order, [_layer("A"), _layer("B")])]))
    cells = [each for each in root.iter(f"{SVG}rect") if (each.get("width"), each.get("height")) == ("12", "12")]
    cells = [each.get("fill") for each in cells if each.get("rx") == "2"][: len(order)]
    assert [cells.index(fill) for fill in cells] == [0, 0, 2, 0, 0, 2]
    assert any(text.startswith("Block") and text.endswith("4") for text in texts(root))


def test_each_branch_joins_the_stream_and_parallel_ones_read_it_once():
    def taps(layer: BlockLayer) -> tuple[int, int]:
        root = checked(blocks_picture("a model", "", [Stack("stack", "", [0], [layer])]))
        radii = [each.get("r") for each in root.iter(f"{SVG}circle")]
        return radii.count("7"), radii.count("2.5")

    assert taps(_layer("A")) == (2, 2)
    assert taps(_layer("A", parallel=True)) == (2, 1)


@settings(max_examples=20)
@given(st.text(max_size=80), st.text(max_size=80))
def test_names_of_others_are_text(name: str, shape: str):
    card = Card(name, shape, "1", [Row(name, shape, "1"), Card(name, shape, "1", [Row(name, shape)])])
    layer = BlockLayer(name, "1", [BlockBranch(card, [name], [shape], joined=name)])
    root = checked(blocks_picture(name, shape, [card, Stack(name, "1", [0, 0], [layer]), Section(name, shape, "1")]))
    check_texts(root)
