# SPDX-License-Identifier: Apache-2.0
"""The pictures of the documents are those that commands draw, and can be read."""

import pytest

import draw_pictures
from dovetail.pictures import Picture
from support.drawn import check_texts, checked

PICTURES = draw_pictures.pictures()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_in_the_documents_is_what_is_drawn_of_what_was_recorded(name: str):
    drawn = PICTURES[name]()
    assert (draw_pictures.DIRECTORY / name).read_text("utf-8") == drawn.svg, "run `make pictures`"
    check_texts(checked(drawn))


def test_there_is_no_picture_that_nothing_draws():
    assert {each.name for each in draw_pictures.DIRECTORY.glob("*.svg")} == set(PICTURES)


@pytest.mark.parametrize("path", ["docs/foresight.svg", "docs/scaling.svg", "benchmarks/results/schedule.svg"])
def test_other_pictures_of_the_same_look_can_be_read_as_well(path: str):
    check_texts(checked(Picture((draw_pictures.DIRECTORY.parents[1] / path).read_text("utf-8"))))
