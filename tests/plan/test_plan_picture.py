# SPDX-License-Identifier: Apache-2.0
"""Plans as pictures."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.plan import Option, options_picture
from support.drawn import SVG, check_texts, checked, hints, texts


def _option(days=10.0, cost: float | None = 100.0, **more) -> Option:
    figures = {
        "group": "tpu-v5p",
        "hardware": "tpu-v5p-8",
        "how": "fsdp=4, full",
        "chips": 4,
        "gib": 10.0,
        "limit": 12.0,
    }
    return Option(**{**figures, "days": days, "cost": cost, "rate": 1e9 / days, "fits": True, **more})


def _listed(root) -> list[str]:
    """Returns the times of the ways to train that are listed by number."""
    return [text for text in texts(root) if text.endswith(" days")]


def test_those_that_nothing_beats_are_numbered_and_listed():
    options = [_option(10, 300), _option(20, 200), _option(15, 400), _option(30, 250), _option(40, 100)]
    options = [each._replace(hardware=f"tpu-v5p-{i}") for i, each in enumerate(options)]
    root = checked(options_picture("a plan", options, "tokens"))
    check_texts(root)
    assert _listed(root) == ["10 days", "20 days", "40 days"]
    assert {"US dollars", "1", "2", "3"} <= set(texts(root))


def test_what_does_not_fit_or_is_late_is_marked_and_never_best_if_it_does_not_fit():
    options = [_option(5, 50, fits=False, hardware="tpu-v5p-4"), _option(10, 100), _option(99, 90, late=True)]
    root = checked(options_picture("a plan", options, "tokens"))
    assert {"does not fit in memory", "misses the deadline"} <= set(texts(root))
    assert "5 days" not in _listed(root)
    assert any(hint.endswith("does not fit") for hint in hints(root))


def test_on_one_hardware_time_is_drawn_against_memory():
    options = [_option(10 + i, 100 + i, gib=11.5 - i) for i in range(4)]
    found = texts(checked(options_picture("a plan", options, "tokens")))
    assert "GiB of a chip" in found
    assert "a chip has 12" in found
    assert "GiB of a chip" in texts(checked(options_picture("a plan", [_option(cost=None)], "tokens")))


def test_with_several_numbers_of_chips_it_shows_how_they_scale():
    options = [_option(80 / chips, 100 + chips, chips=chips, hardware=f"tpu-v5p-{chips}") for chips in (1, 2, 4, 8)]
    root = checked(options_picture("a plan", options, "tokens"))
    assert "tokens a second, by chips" in texts(root)
    assert "tpu-v5p, 8 chips: 100M tokens/s" in hints(root)
    assert "chips" not in texts(checked(options_picture("a plan", options[:2], "tokens")))


_FIGURES = st.floats(1e-3, 1e6)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(_FIGURES, _FIGURES, _FIGURES, st.booleans(), st.text(max_size=60), st.integers(1, 9)), max_size=12
    )
)
def test_whatever_the_options_are_all_can_be_read(rows):
    options = [
        _option(days, cost, gib=gib, fits=fits, group=name[:9], hardware=name[:30], how=name, chips=2**chips)
        for days, cost, gib, fits, name, chips in rows
    ]
    root = checked(options_picture("a plan", options, "tokens"))
    points = [each for each in root.iter(f"{SVG}circle") if each.get("r") == "4.5"]
    assert len(points) == sum(each.fits for each in options)
