# SPDX-License-Identifier: Apache-2.0
"""Curves of runs."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.pictures import Curve, Panel, curves_picture
from support.drawn import SVG, check_texts, checked, hints, texts

HOSTILE = ["<script>alert(1)</script>", "a&b", "\x1b[31m\x00", "\u202eevil", "שלום עולם", "x" * 500, "量子" * 60, ""]
_FLOATS = st.floats(allow_nan=True, allow_infinity=True)


def _line(count: int, start: float = 4.0) -> list[float]:
    return [1 + start * math.exp(-i / count * 3) + 0.1 * math.sin(i * 12.9898) for i in range(count)]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.text(), st.lists(_FLOATS, max_size=30)), max_size=6), st.booleans(), st.booleans())
def test_whatever_names_and_values_are_it_is_a_picture(runs, log, smooth):
    curves = [Curve(name, list(range(len(values))), values, [len(values) / 2]) for name, values in runs]
    checked(curves_picture([Panel("loss", curves)], log=log, smooth=0.9 if smooth else 0.0))


@pytest.mark.parametrize("count", [1, 2, 6, 12])
def test_names_cover_neither_each_other_nor_anything_else(count: int):
    names = [*HOSTILE, *(f"sweep/learner.schedule.peak={10**-i:g}" for i in range(count))][-count:]
    names = HOSTILE + names if count == 12 else names
    curves = [Curve(name, list(range(50)), _line(50, i)) for i, name in enumerate(dict.fromkeys(names))]
    for panels in ([Panel("loss", curves)], [Panel("loss", curves), Panel("eval/loss", curves[:1])]):
        root = checked(curves_picture(panels))
        check_texts(root)


def _lines(root) -> list[list[tuple[float, float]]]:
    """Returns the points of each line of a run."""
    found = [each.get("d", "") for each in root.iter(f"{SVG}path") if each.get("stroke-width") == "1.8"]
    return [[(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", d)] for d in found]


def test_a_long_line_is_thinned_to_means_and_the_band_around_has_the_extremes():
    values = _line(20_000)
    values[7000] = 9.0
    root = checked(curves_picture([Panel("loss", [Curve("a", list(range(20_000)), values)])]))
    (line,) = _lines(root)
    assert 250 <= len(line) <= 301
    (band,) = [each for each in root.iter(f"{SVG}path") if each.get("fill-opacity") == "0.18"]
    tops = [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", band.get("d", ""))]
    assert min(tops) < min(y for _, y in line) - 50  # The one high value is in the band, not in the line.


def test_what_is_not_finite_leaves_a_gap_and_a_mark():
    values = _line(100)
    values[40:60] = [math.nan] * 20
    root = checked(curves_picture([Panel("loss", [Curve("a", list(range(100)), values)])]))
    assert len(_lines(root)) == 2
    assert any("not finite at 40" in hint for hint in hints(root))
    assert "not finite" in texts(root)


def test_a_restart_is_marked_where_the_run_went_on():
    root = checked(curves_picture([Panel("loss", [Curve("a", [0, 100], [2, 1], [50])])]))
    assert "a: went on after 50" in hints(root)
    assert "went on after a stop" in texts(root)
    marks = [each for each in root.iter(f"{SVG}path") if each.get("stroke-dasharray") == "1 4"]
    (x,) = {float(part.split()[0]) for part in marks[0].get("d", "").removeprefix("M").split("L")}
    assert x == pytest.approx((62 + 746) / 2, abs=1)


def test_smoothing_keeps_what_is_constant_and_begins_at_the_first_value():
    root = checked(curves_picture([Panel("loss", [Curve("a", list(range(50)), [2.0] * 50)])], smooth=0.9))
    (line,) = _lines(root)
    assert len({y for _, y in line}) == 1
    jump = [0.0] * 25 + [1.0] * 25
    root = checked(curves_picture([Panel("loss", [Curve("a", list(range(50)), jump)])], smooth=0.5))
    (line,) = _lines(root)
    heights = [y for _, y in line]
    assert heights == sorted(heights, reverse=True)
    assert len(set(heights)) > 5
    faint = [each for each in root.iter(f"{SVG}path") if each.get("stroke-opacity")]
    assert len(faint) == 1  # The plain line is behind.


def test_time_is_in_the_unit_that_suits_it():
    for seconds, unit in ((50, "seconds"), (600, "minutes"), (36_000, "hours"), (864_000, "days")):
        root = checked(curves_picture([Panel("loss", [Curve("a", [0, seconds], [2, 1])])], "time", time=True))
        assert f"time, {unit}" in texts(root)


def test_a_picture_without_values_says_so():
    assert "nothing was measured" in texts(checked(curves_picture([Panel("loss", [Curve("a", [], [])])])))


def test_lines_of_many_runs_differ_in_colour_or_in_dashes():
    curves = [Curve(str(i), [0, 1, 2], [i, i + 1, i]) for i in range(24)]
    root = checked(curves_picture([Panel("loss", curves)]))
    looks = [
        (each.get("stroke"), each.get("stroke-dasharray"))
        for each in root.iter(f"{SVG}path")
        if each.get("stroke-width") == "1.8"
    ]
    assert len(looks) == len(set(looks)) == 24
