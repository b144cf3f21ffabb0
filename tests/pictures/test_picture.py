# SPDX-License-Identifier: Apache-2.0
"""Writing pictures."""

import sys

import pytest

from dovetail.pictures import Canvas, PictureError


def _drawn(text: str = "loss"):
    canvas = Canvas(100, "a picture")
    canvas.text(10, 20, text)
    return canvas.picture(40)


def test_the_name_of_the_file_says_what_is_written(tmp_path):
    drawn = _drawn()
    assert drawn.save(tmp_path / "new" / "a.svg").read_text("utf-8") == drawn.svg
    data = drawn.save(tmp_path / "a.PNG").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20]) == 2 * 100
    assert int.from_bytes(data[20:24]) == 2 * 40


def test_a_png_has_the_texts_of_the_picture():
    assert _drawn("loss").png() != _drawn("").png()


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(PictureError, match=r"'curves.jpg': expected a file that ends with .svg or .png"):
        _drawn().save("curves.jpg")


def test_without_what_draws_pixels_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(PictureError, match=r"(?s)a.png: PNG needs resvg-py.*dovetail.pictures.*, or write .svg"):
        _drawn().save(tmp_path / "a.png")
    _drawn().save(tmp_path / "a.svg")


def test_a_place_that_cannot_be_written_is_one_message(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PictureError, match=r"file/a.svg: cannot be written: "):
        _drawn().save(tmp_path / "file" / "a.svg")


def test_a_notebook_is_given_the_svg():
    assert _drawn()._repr_svg_() == _drawn().svg
    assert repr(_drawn()).startswith("Picture(")
