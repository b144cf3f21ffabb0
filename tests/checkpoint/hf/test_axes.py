# SPDX-License-Identifier: Apache-2.0
"""Texts about axes mean what NumPy, written by hand, does; one direction undoes the other."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.checkpoint.hf._axes import Axes, parse_axes, put, sizes_of, taken
from dovetail.config import ConfigError


@st.composite
def correspondences(draw) -> tuple[str, list[str], dict[str, int], bool]:
    """Draws a left side, its right sides, sizes, and whether a right side merges axes."""
    shared = draw(st.lists(st.sampled_from("abc"), unique=True))
    parts = draw(st.integers(1, 3))
    axes = st.lists(st.sampled_from(["p", "q", "r", "1", "2"]), unique=True, min_size=1, max_size=3)
    own = [draw(axes) for _ in range(parts)] if parts > 1 else [[]]
    sizes = {name: draw(st.integers(1, 3)) for name in {*itertools.chain(shared, *own)} - {*"12"}}
    shared += draw(st.lists(st.sampled_from("12"), max_size=2))
    shared = draw(st.permutations(shared))
    dims, merged = draw(_grouped(shared, int(parts > 1))), False
    if parts > 1:
        at = draw(st.integers(0, len(dims) - 1))
        where = draw(st.integers(0, len(dims[at])))
        sums = " + ".join(" ".join(each) for each in own)
        # Alone in its dimension, a sum needs no parentheses of its own.
        dims[at] = [*dims[at][:where], f"({sums})" if dims[at] else sums, *dims[at][where:]]
    left = " ".join(f"({' '.join(dim)})" if len(dim) != 1 or "+" in dim[0] else dim[0] for dim in dims)
    rights = []
    for each in own:
        groups = draw(_grouped(draw(st.permutations([*shared, *each])), 0))
        merged |= any(len([axis for axis in group if axis != "1"]) > 1 for group in groups)
        rights.append(" ".join(f"({' '.join(group)})" if len(group) > 1 else group[0] for group in groups))
    return left, rights, sizes, merged


@st.composite
def _grouped(draw, axes: list[str], least: int) -> list[list[str]]:
    """Draws how a list falls into groups; none is empty, but for one if there must be some."""
    groups: list[list[str]] = []
    for axis in axes:
        if groups and draw(st.booleans()):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups or [[]] * least


def tagged(axes: Axes, sizes: dict[str, int]) -> np.ndarray:
    """Returns an array on the left in which each number is another."""
    shape = axes.shape(sizes)
    return np.arange(1, 1 + math.prod(shape)).reshape(shape)


@given(correspondences())
def test_each_number_is_in_one_part_and_put_undoes_taken(drawn):
    left, rights, sizes, merged = drawn
    axes, targets = parse_axes(left), [parse_axes(right) for right in rights]
    assert len(targets) == max(1, len(axes.terms))
    whole = tagged(axes, sizes)
    parts = [taken(whole, axes, i, to, sizes) for i, to in enumerate(targets)]
    assert [part.shape for part in parts] == [to.shape(sizes) for to in targets]
    used = np.concatenate([part.ravel() for part in parts])
    np.testing.assert_array_equal(np.sort(used), np.arange(1, 1 + whole.size))
    again = np.zeros_like(whole)
    for i, (part, to) in enumerate(zip(parts, targets, strict=True)):
        put(again, axes, i, np.ascontiguousarray(part), to, sizes)
    np.testing.assert_array_equal(again, whole)
    if not merged:
        assert all(np.shares_memory(part, whole) for part in parts), "splitting and transposing copies nothing"


@given(correspondences())
def test_sizes_follow_from_the_arrays_on_the_right(drawn):
    _left, rights, sizes, _ = drawn
    targets = [parse_axes(right) for right in rights]
    found = sizes_of([(to, to.shape(sizes)) for to in targets])
    # Where two axes are in one dimension only, their product is all that is known.
    dims = [[axis for axis in dim if not axis.isdigit()] for to in targets for dim in to.dims]
    if all(any([axis] == dim for dim in dims) for axis in sizes):
        assert found == sizes
    if found is not None:
        assert all(to.shape(found) == to.shape(sizes) for to in targets)


def one(text: str, whole: np.ndarray, **sizes: int) -> list[np.ndarray]:
    """Returns the parts of an array by a text like those of a table."""
    left, _, right = text.partition(" = ")
    axes = parse_axes(left)
    return [taken(whole, axes, i, parse_axes(each), sizes) for i, each in enumerate(right.split(", "))]


def numbers(*shape: int) -> np.ndarray:
    return np.arange(math.prod(shape)).reshape(shape)


SIX = numbers(6, 5)  # h = 2 heads of k = 3.


Case = tuple[str, np.ndarray, dict[str, int], list[np.ndarray]]  # A text, an array, sizes, what NumPy makes of them.


def by_hand() -> dict[str, Case]:
    """Returns what the tables do with attention and convolutions."""
    fused = numbers(2 * 3 + 1 * 3 + 1 * 3, 5)  # h = 2, g = 1, k = 3.
    pairs, rotary = numbers(7, 8), numbers(2 * 2 * 3, 5)
    conv = numbers(2 * 3 + 1 * 2 + 1 * 2, 1, 4)
    hk = {"h": 2, "k": 3, "d": 5}
    return {
        "transposed": ("f d = d f", SIX, {"f": 6, "d": 5}, [SIX.T]),
        "split into heads": ("(h k) d = d h k", SIX, hk, [SIX.reshape(2, 3, 5).transpose(2, 0, 1)]),
        "heads merged": ("d h k = (h k) d", numbers(5, 2, 3), hk, [numbers(5, 2, 3).reshape(5, 6).T]),
        "fused qkv": (
            "(h k + g k + g k) d = d h k, d g k, d g k",
            fused,
            {**hk, "g": 1},
            [
                fused[:6].reshape(2, 3, 5).transpose(2, 0, 1),
                fused[6:9].reshape(1, 3, 5).transpose(2, 0, 1),
                fused[9:].reshape(1, 3, 5).transpose(2, 0, 1),
            ],
        ),
        "gate and up in turn": (
            "d (f (1 + 1)) = d f, d f",
            pairs,
            {"d": 7, "f": 4},
            [pairs[:, 0::2], pairs[:, 1::2]],
        ),
        "rotary halves to neighbours": (
            "(h 2 k) d = d h (k 2)",
            rotary,
            {"h": 2, "k": 3, "d": 5},
            [rotary.reshape(2, 2, 3, 5).transpose(3, 0, 2, 1).reshape(5, 2, 6)],
        ),
        "convolution": (
            "(h p + g n + g n) 1 w = w h p, w g n, w g n",
            conv,
            {"h": 2, "p": 3, "g": 1, "n": 2, "w": 4},
            [
                conv[:6, 0].T.reshape(4, 2, 3),
                conv[6:8, 0].T.reshape(4, 1, 2),
                conv[8:, 0].T.reshape(4, 1, 2),
            ],
        ),
    }


def by_hand_in_turn() -> dict[str, Case]:
    """Returns what the tables do with dimensions in which several parts follow each other for each head."""
    by_head = numbers(2, 3, 4, 5)  # h = 2, three of k = 4.
    latent = numbers(2 * (3 + 4), 5)
    qkvz = numbers(2, 3 + 3 + 2 * 4 + 2 * 4, 5)  # g = 2, k = 3, r = 2, v = 4.
    return {
        "qkv in turn for each head": (
            "(h (k + k + k)) d = d h k, d h k, d h k",
            by_head.reshape(24, 5),
            {"h": 2, "k": 4, "d": 5},
            [by_head[:, i].transpose(2, 0, 1) for i in range(3)],
        ),
        "kv_b of latent attention": (
            "(h (n + v)) c = c h n, c h v",
            latent,
            {"h": 2, "n": 3, "v": 4, "c": 5},
            [
                latent.reshape(2, 7, 5)[:, :3].transpose(2, 0, 1),
                latent.reshape(2, 7, 5)[:, 3:].transpose(2, 0, 1),
            ],
        ),
        "qkvz of a delta net": (
            "(g (k + k + r v + r v)) d = d g k, d g k, d (g r) v, d (g r) v",
            qkvz.reshape(44, 5),
            {"g": 2, "k": 3, "r": 2, "v": 4, "d": 5},
            [
                qkvz[:, :3].transpose(2, 0, 1),
                qkvz[:, 3:6].transpose(2, 0, 1),
                qkvz[:, 6:14].reshape(4, 4, 5).transpose(2, 0, 1),
                qkvz[:, 14:].reshape(4, 4, 5).transpose(2, 0, 1),
            ],
        ),
    }


BY_HAND = {**by_hand(), **by_hand_in_turn()}


@pytest.mark.parametrize("name", BY_HAND)
def test_what_tables_ask_for_is_what_numpy_does(name):
    text, whole, sizes, wanted = BY_HAND[name]
    found = one(text, whole, **sizes)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_rotary_neighbours_of_a_head_come_from_its_two_halves():
    """Frequency `i` of a head is at `i` and `i + k` there, at `2 i` and `2 i + 1` here."""
    heads, half = 3, 4
    (found,) = one("(h 2 k) d = d h (k 2)", np.arange(heads * 2 * half)[:, None], h=heads, k=half, d=1)
    for head, i in itertools.product(range(heads), range(half)):
        first = head * 2 * half + i
        assert found[0, head, 2 * i : 2 * i + 2].tolist() == [first, first + half]


SOLVED: list[Any] = [
    ("d h k", (5, 2, 3), {"d": 5, "h": 2, "k": 3}),
    ("d (g r), d g", ((5, 6), (5, 2)), {"d": 5, "g": 2, "r": 3}),
    ("(k 2) 1", (6, 1), {"k": 3}),
    ("d, d", ((5,), (6,)), None),
    ("(g r)", (6,), None),
    ("(g r), g", ((6,), (4,)), None),
    ("(k 2)", (5,), None),
    ("d 1", (5, 2), None),
    ("(g r), g", ((0,), (0,)), None),
    ("2", (3,), None),
]


@pytest.mark.parametrize("text, shapes, wanted", SOLVED, ids=[f"{text}-{shapes}" for text, shapes, _ in SOLVED])
def test_sizes_are_found_or_do_not_agree_or_are_not_told(text, shapes, wanted):
    shapes = [shapes] if "," not in text else shapes
    pairs = [(parse_axes(axes), shape) for axes, shape in zip(text.split(", "), shapes, strict=True)]
    assert sizes_of(pairs) == wanted


@pytest.mark.parametrize(
    "text",
    ["a-b", "a + b", ") a (", "(a b", "a b)", "()", "(a +)", "(+ a)", "(a + + b)", "(a (b c))", "(a + (b + c))",
     "((a + b) (c + d))", "(a (b (c + d)))", "a, b", "a=b", "*"],
)  # fmt: skip
def test_what_is_not_a_list_of_axes_is_an_error_with_the_text(text):
    with pytest.raises(ConfigError) as e:
        parse_axes(text)
    assert str(e.value) == f"{text!r} is not a list of axes, such as `(h k) d`."


def test_parts_in_two_dimensions_and_an_axis_twice_are_errors_with_the_text():
    with pytest.raises(ConfigError) as e:
        parse_axes("(a + b) (c + d)")
    assert str(e.value) == "'(a + b) (c + d)' has parts in two dimensions, expected one at most."
    for text in ("a b a", "(a a)", "(a + b) a", "(a (b + a))"):
        with pytest.raises(ConfigError) as e:
            parse_axes(text)
        assert str(e.value) == f"{text!r} has the axis 'a' twice."
    assert parse_axes("(a + a) 2 2").terms == (("a",), ("a",)), "each part is an array of its own"
