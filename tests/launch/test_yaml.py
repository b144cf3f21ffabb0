# SPDX-License-Identifier: Apache-2.0
"""What is written as YAML is read as it was, by a reader that is not ours."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dovetail.launch._yaml import documents, to_yaml

SURROGATES = st.characters(exclude_categories=["Cs"])
TEXTS = st.one_of(
    st.text(SURROGATES, max_size=30),
    st.text(st.sampled_from("ab:-#'\"{}[]|>&*!%@`,? \n\t.01eyn~<="), max_size=30),
    st.sampled_from(["", "yes", "No", "null", "~", "1e3", "0x1f", "12:30", "- a", "a: b", "a #b", "on", "2026-01-01"]),
)
SCALARS = st.one_of(
    TEXTS, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False, width=32)
)
VALUES = st.recursive(
    SCALARS,
    lambda inside: st.one_of(
        st.dictionaries(TEXTS, inside, max_size=4),
        st.lists(inside.filter(lambda each: not isinstance(each, list) or not each), max_size=4),
    ),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_is_written_is_read_as_it_was(value):
    assert (yaml.safe_load(to_yaml(value)) or {}) == value


@given(st.lists(st.text(st.sampled_from("abc $'\"\\#:{}|"), max_size=12), min_size=3, max_size=6))
def test_scripts_are_blocks_of_the_same_lines(lines):
    script = "\n".join(lines) + "\n"
    assert yaml.safe_load(to_yaml({"run": script, "command": ["-c", script]})) == {
        "run": script,
        "command": ["-c", script],
    }


def test_several_documents_are_read_apart():
    assert list(yaml.safe_load_all(documents({"a": 1}, {"b": [{"c": "d"}]}))) == [{"a": 1}, {"b": [{"c": "d"}]}]


def test_what_cannot_be_written_is_an_error():
    with pytest.raises(TypeError, match="not written as YAML"):
        to_yaml({"a": object()})
    with pytest.raises(TypeError, match="lists in lists"):
        to_yaml({"a": [[1]]})
    with pytest.raises(ValueError, match="Out of range"):
        to_yaml({"a": float("nan")})
