# SPDX-License-Identifier: Apache-2.0
"""The shapes of pictures."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.pictures import Canvas, printable
from support.drawn import SVG, checked, hints, texts


@given(st.text(max_size=50), st.text(max_size=50))
def test_names_of_others_are_text_wherever_they_stand(name: str, hint: str):
    canvas = Canvas(200, name)
    canvas.text(10, 20, name)
    canvas.rect(0, 0, 10, 10, 0, edge="edge", hint=hint)
    root = checked(canvas.picture(100))
    assert texts(root) == [printable(name)]
    assert root[0].text == (printable(name) or None)
    assert hints(root) == ([printable(hint)] if hint else [])


def test_a_text_that_is_shortened_is_there_as_a_whole_when_it_is_pointed_at():
    canvas = Canvas(200, "a picture")
    canvas.text(10, 20, "model.stack.layer.mixer.query", room=60)
    root = checked(canvas.picture(100))
    assert texts(root)[0].endswith("…")
    assert "model.stack.layer.mixer.query" in hints(root)


def test_each_colour_has_another_one_for_the_dark():
    canvas = Canvas(100, "a picture")
    for color in range(6):
        canvas.circle(10, 10, 3, color)
        canvas.line(0, 0, 9, 9, color)
    root = checked(canvas.picture(20))
    style = next(root.iter(f"{SVG}style")).text or ""
    assert style.startswith("@media (prefers-color-scheme: dark)")
    light = {each.get("fill") for each in root.iter(f"{SVG}circle")}
    assert len(light) == 6
    assert not any(color in style for color in light if color)
