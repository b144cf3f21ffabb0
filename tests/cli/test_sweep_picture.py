# SPDX-License-Identifier: Apache-2.0
"""The picture of a sweep."""

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from dovetail.cli._sweep_picture import sweep_picture
from dovetail.cli._sweep_results import Result, table_of

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_has_a_point_for_each_run_and_a_line_for_each_of_the_other_settings():
    rows = [
        Result((f"a={a}", f"b={b}", f"seed={seed}"), "done", 9, a + b + seed / 10)
        for a in range(3)
        for b in range(2)
        for seed in range(2)
    ]
    root = ET.fromstring(sweep_picture([*rows, Result(("a=4", "b=0", "seed=0"), "running", 0, None)], "loss").svg)
    assert len([each for each in root.iter(f"{SVG}path") if each.get("stroke-width") == "1.5"]) == 2
    points = [each for each in root.iter(f"{SVG}circle") if len(each)]
    assert len(points) == len(rows)
    lowest = max(points, key=lambda each: float(each.get("cy", 0)))  # SVG counts down.
    assert lowest[0].text == "a=0 b=0: 0"
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert {"loss", "a", "0", "1", "2", "4", "b=0", "b=1"} <= set(texts)


_ANY = st.text(min_size=1, max_size=200)
_NUMBERS = st.none() | st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(_ANY, _ANY, _NUMBERS), min_size=1, max_size=8), _ANY)
def test_the_picture_is_xml_and_all_of_it_is_inside_whatever_the_values_are(rows, metric):
    results = [Result((f"a={first}", f"b={other}"), "done", 1, value) for first, other, value in rows]
    root = ET.fromstring(sweep_picture(results, metric).svg)
    _, _, wide, high = map(float, root.get("viewBox", "").split())
    for each in root.iter():
        for name, most in (("x", wide), ("y", high), ("cx", wide), ("cy", high)):
            assert 0 <= float(each.get(name, 0)) <= most
    table_of(results, metric)
