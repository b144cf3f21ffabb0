# SPDX-License-Identifier: Apache-2.0
"""The plot: every point in its place, slopes that are exponents, and the one in the documents that of the record."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from dovetail.loc._plot import growth_plot

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def record(lines):
    features = {"points": [(n, m, lines(n, m)) for n in (1, 10, 100) for m in (1, 10)]}
    both = {"rope": features, "moe": features}
    return {"features": both, "designs": {"flat": both, "subclass": both}}


@pytest.mark.parametrize(
    "lines, by_models, by_variants",
    [(lambda n, m: 5, 0, 0), (lambda n, m: 2 * m, 0, 1), (lambda n, m: n * m, 1, 1)],
)
def test_the_slope_of_a_line_is_the_exponent(lines, by_models, by_variants):
    tree = ElementTree.fromstring(growth_plot(record(lines)))
    found = [
        [tuple(map(float, point.split())) for point in each.get("d", "").removeprefix("M").split("L")]
        for each in tree.iter(f"{SVG}path")
        if each.get("stroke-width") == "2"
    ]
    assert len(found) == 3 * 2 * 2  # Designs, features and panels.
    for points, slope in zip(found, 6 * [by_models, by_variants], strict=True):
        (x0, y0), (x1, y1) = points[0], points[-1]
        assert x1 > x0
        assert (y0 - y1) / (x1 - x0) == pytest.approx(slope, abs=0.01)
    assert [each.text for each in tree.iter(f"{SVG}text")][-1] == "subclass, moe"


def test_the_plot_in_the_documents_is_that_of_the_record():
    found = json.loads((ROOT / "benchmarks" / "results" / "loc.json").read_text("utf-8"))
    assert (ROOT / "docs" / "loc-complexity.svg").read_text("utf-8") == growth_plot(found)
