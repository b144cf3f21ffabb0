# SPDX-License-Identifier: Apache-2.0
"""A step in its order."""

import pytest

from dovetail.aot import Stretch
from dovetail.plan import Passage
from dovetail.plan._timeline import timeline

TREE = {"stack": {"layer": {"ffn": {"up": {}}, "mixer": {}}}, "head": {}}


def _stretch(runs=0, inside=(), beside=0.0, waiting=0.0, **seconds):
    """Returns a stretch; names of seconds are paths below the model, with `__`; `back_` before those backward."""
    found = Stretch(runs)
    for name, value in seconds.items():
        words = "/".join(name.removeprefix("back_").split("__"))
        jax = (
            f"jit(step)/transpose(jvp(model))/{words}" if name.startswith("back_") else f"jit(step)/jvp(model)/{words}"
        )
        found.names[jax] += value
        found.parts["products"] += value
    if waiting:
        found.parts["exposed, fsdp"] += waiting
    if beside:
        found.beside["exposed, fsdp"] += beside
    found.inside = list(inside)
    for each in inside:
        found.add(each)
    return found


def test_loops_and_what_is_between_them_are_in_their_order():
    forward = _stretch(32, stack__layer__ffn=3.0, stack__layer__mixer=2.0, beside=0.5)
    loss, backward = _stretch(head=1.0), _stretch(32, back_stack__layer__ffn=9.0, waiting=1.0)
    assert timeline([forward, loss, backward], TREE) == [
        Passage("model.stack.layer", False, 32, 5.0, 0.0, 0.5),
        Passage("model.head", False, 1, 1.0, 0.0, 0.0),
        Passage("model.stack.layer.ffn", True, 32, 9.0, 1.0, 0.0),
    ]


def test_what_is_too_small_to_be_seen_is_part_of_its_neighbour_and_nothing_is_lost():
    small = [_stretch(head=0.001) for _ in range(5)]
    found = timeline(
        [small[0], _stretch(4, stack__layer=5.0), *small[1:3], _stretch(4, back_stack=5.0), *small[3:]], TREE
    )
    assert [each.runs for each in found] == [4, 4]
    assert sum(each.compute for each in found) == pytest.approx(10.005)


def test_a_loop_over_microbatches_is_shown_from_inside():
    inside = [_stretch(32, stack__layer=3.0), _stretch(32, back_stack__layer=6.0)]
    found = timeline([_stretch(8, inside=inside), _stretch(head=1.0)], TREE)
    assert [(each.runs, each.backward) for each in found] == [(32, False), (32, True), (1, False)]
    assert sum(each.compute for each in found) == pytest.approx(10.0)


def test_a_step_without_anything_has_no_timeline():
    assert timeline([], TREE) == []
    assert Passage("a", False, 1, 1.0, 2.0, 3.0).slowed(2.0) == Passage("a", False, 1, 2.0, 4.0, 6.0)
