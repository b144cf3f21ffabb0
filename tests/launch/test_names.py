# SPDX-License-Identifier: Apache-2.0
"""Names of jobs: any recipe has one that an engine takes, and what tells jobs apart is never cut."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.launch import Bundle, Job
from dovetail.launch._names import job_name

# As engines have it, in words of their own: RFC 1035.
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
BUNDLE = Bundle({"config.json": b"{}"})


def job(recipe="tiny-lm", name="", bundle: Bundle | None = BUNDLE) -> Job:
    return Job(("train", recipe), Path("/runs/a"), name=name, bundle=bundle)


@given(st.text(max_size=80), st.text(max_size=80), st.booleans(), st.integers(25, 60))
def test_every_job_has_a_name_that_engines_take(recipe, name, bundled, most):
    found = job_name(job(recipe, name, BUNDLE if bundled else None), "", most=most)
    assert LABEL.fullmatch(found)
    assert len(found) <= most


def test_without_a_name_it_is_the_recipe_and_the_hash():
    assert job_name(job(), "", most=40) == f"tiny-lm-{BUNDLE.hash[:8]}"
    assert job_name(job("zoo/My_model.py:big"), "", most=40) == f"my-model-py-big-{BUNDLE.hash[:8]}"
    assert job_name(job(bundle=None), "", most=40) == "tiny-lm"
    assert job_name(Job((), Path("/runs/a")), "", most=40) == "job"


def test_a_name_that_is_taken_is_taken_as_it_is():
    assert job_name(job(), "mine", most=40) == "mine"
    assert job_name(job(name="mine-7"), "mine", most=40) == "mine-7"  # One of several.


@given(st.text("abcXYZ-_019", min_size=1, max_size=80), st.integers(25, 50))
def test_runs_of_a_sweep_have_names_of_their_own_however_much_is_cut(recipe, most):
    sweep = (f"{recipe}-{BUNDLE.hash[:8]}-{number}" for number in (0, 1, 10, 99, 100, 999, 1000, 1001, 9999))
    found = [job_name(job(name=name), "", most=most) for name in sweep]
    assert len(set(found)) == len(found)
    assert all(BUNDLE.hash[:8] in name for name in found)


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("My Run", "my-run"),
        ("7b", "j-7b"),
        ("a-", "a"),
        ("a_b", "a-b"),
        ("x" * 30, "x" * 20),
        ("é", "j"),
        ("a\n", "a"),
    ],
)
def test_a_name_that_engines_do_not_take_is_refused_with_one_that_they_do(name, nearest):
    with pytest.raises(ConfigError) as raised:
        job_name(job(), name, most=20)
    assert str(raised.value) == (
        f"launch.name is {name!r} ({len(name)} characters), expected at most 20 of a-z, 0-9 and -, with a letter "
        f"first.\n  Say another one, as in launch.name={nearest}."
    )
    assert job_name(job(), nearest, most=20) == nearest
