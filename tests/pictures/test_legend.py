# SPDX-License-Identifier: Apache-2.0
"""Legends."""

import pytest

from dovetail.pictures import Canvas, Entry, draw_legend, line_look
from support.drawn import check_texts, checked, texts


@pytest.mark.parametrize("count", [0, 1, 3, 12])
@pytest.mark.parametrize("name", ["run", "a name that is not short", "x" * 300])
def test_all_entries_are_there_and_can_be_read(count: int, name: str):
    canvas = Canvas(700, "legend")
    entries = [Entry(f"{i} {name}", i, "" if i % 2 else None, note=f"{i}.5") for i in range(count)]
    end = draw_legend(canvas, 20, 10, 660, entries)
    root = checked(canvas.picture(end + 10))
    check_texts(root)
    assert [text for text in texts(root) if text.endswith(".5")] == [f"{i}.5" for i in range(count)]


def test_no_two_of_24_lines_look_the_same():
    assert len({line_look(i) for i in range(24)}) == 24
