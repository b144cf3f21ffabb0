# SPDX-License-Identifier: Apache-2.0
"""Texts in pictures."""

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from dovetail.pictures import marked_up, number, printable, shortened, width_of


@given(st.text())
def test_any_text_is_text_in_xml_and_says_the_same(text: str):
    assert ET.fromstring(f"<a>{marked_up(text)}</a>").text == (printable(text) or None)


@given(st.text(), st.floats(10, 500), st.booleans())
def test_what_is_shortened_has_room_and_keeps_its_beginning(text: str, room: float, middle: bool):
    found = shortened(text, room, middle=middle)
    assert width_of(found) <= max(room, width_of("…"))
    kept = found.partition("…")[0]
    assert found == printable(text) or printable(text).startswith(kept)


def test_a_text_that_is_shortened_in_the_middle_keeps_its_end():
    found = shortened("model.stack.layer.ffn.gate", 100, middle=True)
    assert found.startswith("model")
    assert found.endswith("gate")
    assert "…" in found


@given(st.floats(1e-3, 1e15, exclude_max=True))
def test_numbers_are_short_and_right_to_two_digits(value: float):
    text = number(value)
    assert len(text) <= 7
    scale = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text[-1], 1.0)
    assert abs(float(text.rstrip("KMBT").replace(",", "")) * scale - value) <= 0.01 * value
