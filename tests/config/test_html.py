# SPDX-License-Identifier: Apache-2.0
"""Configs as notebooks show them."""

import xml.etree.ElementTree as ET

import pytest

from dovetail.config import REQUIRED, ConfigBase


class Inner(ConfigBase):
    dim: int = 8
    name: str = "a"


class Outer(ConfigBase):
    rate: float = REQUIRED
    steps: int = 10
    inner: Inner = Inner()
    others: tuple[Inner, ...] = ()


def _shown(cfg: ConfigBase) -> ET.Element:
    return ET.fromstring(cfg._repr_html_())


def _texts(root: ET.Element, tag: str) -> list[str]:
    return ["".join(each.itertext()) for each in root.iter(tag)]


def test_what_differs_from_the_defaults_is_before_what_does_not():
    root = _shown(Outer(rate=0.1, inner=Inner(dim=9)))
    top = root.find("details")
    assert top is not None
    assert top.get("open") is not None
    rows = [text for text in _texts(top, "div") if "=" in text]
    assert rows[0] == "rate = 0.1"
    assert "dim = 9" in rows
    assert "2 by default" in _texts(top, "summary")
    assert "steps = 10" in _texts(top, "code")
    closed = [each for each in top.iter("details") if each.get("open") is None]
    assert {"rate", "steps = 10"} & set(_texts(closed[-1], "code")) == {"steps = 10"}


def test_what_is_not_set_yet_is_said():
    assert "rate = REQUIRED" in _texts(_shown(Outer()), "code")


def test_configs_in_a_list_have_their_places():
    found = _texts(_shown(Outer(rate=1.0, others=(Inner(), Inner(dim=3)))), "summary")
    assert "others[1] Inner" in found


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "a&b", "\x1b[31m", "\u202eevil", "x" * 10_000, "'\"<b>"])
def test_values_are_text_and_no_longer_than_can_be_read(text: str):
    page = Inner(name=text)._repr_html_()
    assert len(page) < 4000
    root = ET.fromstring(page)
    assert {each.tag for each in root.iter()} <= {"div", "style", "details", "summary", "b", "code", "span"}
    assert all(character.isprintable() for character in page)


def test_the_plain_form_is_as_before():
    assert repr(Inner(dim=9)) == "Inner(dim=9, name='a')"
