# SPDX-License-Identifier: Apache-2.0
"""The plot: valid, every point in its place, and the one in the documents that of the record."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from dovetail.loc._plot import growth_plot, plot

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def test_points_lie_on_two_logarithmic_axes():
    tree = ElementTree.fromstring(plot({"one": [(1, 1, 1), (10, 1, 10), (10, 100, 1000)]}))
    circles = [(float(each.get("cx", "")), float(each.get("cy", ""))) for each in tree.iter(f"{SVG}circle")]
    (x0, y0), (x1, y1), (x3, y3) = circles[:3]
    assert (x3 - x0, y0 - y3) == (3 * (x1 - x0), 420 - 110)
    assert y0 - y1 == pytest.approx((y0 - y3) / 3, abs=0.1)
    assert [each.text for each in tree.iter(f"{SVG}text")][-1] == "one"


def test_the_plot_in_the_documents_is_that_of_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "loc.json").read_text("utf-8"))
    assert (ROOT / "docs" / "loc-complexity.svg").read_text("utf-8") == growth_plot(record)
