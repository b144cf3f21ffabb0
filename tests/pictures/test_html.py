# SPDX-License-Identifier: Apache-2.0
"""Pieces of HTML for notebooks."""

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from dovetail.pictures import Canvas, bold, code, dim, folded, html_table, inline, lines_of_text, printable, row, shown

_ALLOWED = {"div", "style", "details", "summary", "code", "span", "b", "table", "tr", "th", "td", "pre", "br", "img"}


@given(st.text(max_size=40))
def test_texts_of_others_are_text(text: str):
    table = html_table((text, "b"), [(text, text)], numeric=(False, True))
    page = shown(folded(code(text), [row(bold(text), dim(text)), table], unfolded=True), lines_of_text(text))
    root = ET.fromstring(page.replace("<br>", "<br/>"))
    assert {each.tag for each in root.iter()} <= _ALLOWED
    (found,) = [each.text for each in root.iter("code")]
    assert found == (printable(text) or None)


def test_a_picture_inside_is_an_image_that_needs_nothing_from_elsewhere():
    canvas = Canvas(10, "a picture")
    found = inline(canvas.picture(10), 'about "it"')
    assert found.startswith('<img alt="about &quot;it&quot;"')
    assert 'src="data:image/svg+xml;base64,' in found


def test_what_has_nothing_inside_does_not_fold():
    assert "details" not in folded("head", [])
    assert folded("head", ["<p></p>"], unfolded=True).startswith('<details open="">')
