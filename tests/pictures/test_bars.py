# SPDX-License-Identifier: Apache-2.0
"""Bars."""

import pytest

from dovetail.pictures import Bar, Canvas, Part, draw_bar, draw_bars
from support.drawn import SVG, check_texts, checked


def _bars(bars):
    canvas = Canvas(400, "bars")
    end = draw_bars(canvas, 10, 10, 380, bars)
    return checked(canvas.picture(end + 10))


def test_bars_are_as_long_as_what_they_stand_for():
    root = _bars([Bar("one", [Part(0, 2.0), Part(1, 1.0)], "3"), Bar("two", [Part(0, 6.0)], "6")])
    wide = [float(each.get("width", 0)) + 1 for each in root.iter(f"{SVG}rect")][1:]
    assert wide[0] == pytest.approx(2 * wide[1], abs=0.2)
    assert wide[2] == pytest.approx(3 * wide[0], abs=0.2)


def test_long_names_and_no_values_leave_room_for_all():
    check_texts(_bars([Bar("model.stack.layer." * 20, [Part(0, 1.0)], "1 GiB"), Bar("b", [], "0")]))
    assert len(list(_bars([]).iter(f"{SVG}text"))) == 0


def test_parts_stand_behind_each_other():
    canvas = Canvas(100, "bar")
    assert draw_bar(canvas, 0, 0, 100, [Part(0, 1.0), Part(1, 1.0)], 4.0) == 50.0
