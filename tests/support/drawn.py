# SPDX-License-Identifier: Apache-2.0
"""What must hold of every picture: it is XML, harmless, and all of it can be read."""

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import NamedTuple

from dovetail.pictures import Picture, width_of

SVG = "{http://www.w3.org/2000/svg}"
_ELEMENTS = {"svg", "title", "style", "rect", "text", "path", "circle"}
_ATTRIBUTES = re.compile(
    r"viewBox|width|height|font-(family|size|weight)|role|x|y|r|rx|cx|cy|d|class|text-anchor|transform"
    r"|fill(-opacity)?|stroke(-width|-dasharray|-opacity|-linejoin)?"
)


class Box(NamedTuple):
    """Where a text stands."""

    text: str
    left: float
    right: float
    top: float
    bottom: float


def checked(picture: Picture) -> ET.Element:
    """Returns a picture as XML; asserts that it can do no harm, and that nothing of it is outside."""
    assert all(c in "\n" or ord(c) >= 32 for c in picture.svg)
    root = ET.fromstring(picture.svg)
    assert root.tag == f"{SVG}svg"
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for each in root.iter():
        assert each.tag.removeprefix(SVG) in _ELEMENTS
        assert all(_ATTRIBUTES.fullmatch(name) for name in each.attrib), each.attrib
        for name, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            assert 0 <= float(each.get(name, 0)) <= most, (each.tag, each.attrib)
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", each.get("d", ""))]
        assert all(0 <= x <= width for x in numbers[::2]), each.get("d")
        assert all(0 <= y <= height for y in numbers[1::2]), each.get("d")
    styles = [each.text or "" for each in root.iter(f"{SVG}style")]
    assert not re.search(r"@import|url|expression", "".join(styles))
    classes = {name for each in root.iter() for name in each.get("class", "").split()}
    assert all(f".{name} {{" in styles[0] for name in classes), "a colour for the dark is missing"
    return root


def texts(root: ET.Element) -> list[str]:
    """Returns what is written in a picture."""
    return ["".join(each.itertext()) if len(each) == 0 else each[0].tail or "" for each in root.iter(f"{SVG}text")]


def hints(root: ET.Element) -> list[str]:
    """Returns what shapes say when they are pointed at."""
    return [each.text or "" for shape in root for each in shape.iter(f"{SVG}title") if shape is not each]


def boxes(root: ET.Element) -> Iterator[Box]:
    """Yields where texts stand, a little smaller than the widest font would make them."""
    for each, text in zip(root.iter(f"{SVG}text"), texts(root), strict=True):
        if each.get("transform"):
            continue
        size = float(each.get("font-size", 12))
        wide = 0.9 * width_of(text, size)
        left = float(each.get("x", 0)) - wide * {"middle": 0.5, "end": 1.0}.get(each.get("text-anchor", ""), 0.0)
        y = float(each.get("y", 0))
        yield Box(text, left, left + wide, y - 0.7 * size, y + 0.1 * size)


def check_texts(root: ET.Element) -> None:
    """Asserts that no text covers another one, and that none is cut off."""
    width = float(root.get("width", 0))
    found = list(boxes(root))
    for each in found:
        inside = each.left >= -1 and each.right <= width + 1
        assert inside, f"{each.text!r} is cut off"
    for one, other in itertools.combinations(found, 2):
        across = min(one.right, other.right) - max(one.left, other.left)
        down = min(one.bottom, other.bottom) - max(one.top, other.top)
        assert across <= 0.5 or down <= 0.5, f"{one.text!r} covers {other.text!r}"
