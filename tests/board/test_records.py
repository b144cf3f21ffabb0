# SPDX-License-Identifier: Apache-2.0
"""What is cut out of lines is what a parser of JSON finds in them, however the file has grown and whatever is in it."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.board._records import Catalog, Column, Heads, advance, record_of

NAMES = ("loss", "eval/loss", "grad_norm", "total_loss", "a b", 'quo"te', "ünï", "back\\slash", "x1", "x2")
NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(10**20), 10**20),
    st.sampled_from(["nan", "inf", "-inf"]),
)
OTHERS: st.SearchStrategy[Any] = st.one_of(
    st.text(max_size=20),
    st.none(),
    st.booleans(),
    st.lists(st.integers(), max_size=2),
    st.sampled_from([{"loss": 7.0}, {"step": 3, "time": 1.0}, '{"step": 1, "time": 2.0, "loss": 5}', '"loss": 3,']),
)
RECORDS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(NAMES), st.one_of(NUMBERS, NUMBERS, OTHERS), max_size=5
)


def line_of(step: int, record: dict[str, Any], style: int) -> bytes:
    whole = {"step": step, "time": 1.5 * step, **record}
    separators = (",", ":") if style == 1 else None
    return json.dumps(whole, ensure_ascii=style == 2, separators=separators).encode(errors="replace") + b"\n"


@st.composite
def files(draw: st.DrawFn) -> bytes:
    pieces: list[bytes] = []
    for _ in range(draw(st.integers(0, 12))):
        line = line_of(draw(st.integers(0, 10**15 - 1)), draw(RECORDS), draw(st.integers(0, 2)))
        match draw(st.integers(0, 9)):
            case 0:  # Torn, and appended to.
                line = line[: draw(st.integers(0, len(line) - 1))]
            case 1:  # Without a brace: what begins and ends as a record does is taken for one.
                line = draw(st.binary(max_size=20)).replace(b"}", b"") + b"\n"
            case 2:  # Half a letter.
                line = line.replace(b"\xc3\xaf", b"\xc3")
            case _:
                pass
        pieces.append(line)
    return b"".join(pieces)


def expected(data: bytes) -> list[tuple[int, float, dict[str, float]] | None]:
    """Parses each whole line as JSON, by itself."""
    rows: list[tuple[int, float, dict[str, float]] | None] = []
    for line in data.split(b"\n")[:-1]:
        record = record_of(line)
        if record is None:
            rows.append(None)
            continue
        values: dict[str, float] = {}
        for name, value in record.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if name in NAMES and (is_number or value in ("nan", "inf", "-inf")):
                values[name] = float(value)
        rows.append((record["step"], float(record["time"]), values))
    return rows


@given(files(), st.lists(st.integers(0, 500), max_size=4), st.integers(20, 300))
@settings(max_examples=100, deadline=None)
def test_all_that_is_taken_is_what_json_says_wherever_the_file_was_cut(
    data: bytes, cuts: list[int], piece: int
) -> None:
    heads, catalog, columns = Heads(), Catalog(), {name: Column(name) for name in NAMES}
    for size in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        advance(lambda offset, count: data[offset : offset + count], size, [heads, catalog], piece=piece)
    advance(lambda offset, count: data[offset : offset + count], len(data), [*columns.values(), heads], piece=piece)
    rows = expected(data)
    assert heads.steps.tolist() == [-1 if row is None else row[0] for row in rows]
    assert heads.times.tolist() == [0.0 if row is None else row[1] for row in rows]
    for name, column in columns.items():
        # A line whose head is no record's may still give a value to a column; it has no step, and never counts.
        known = heads.steps[column.at] >= 0
        wanted = [(i, row[2][name]) for i, row in enumerate(rows) if row is not None and name in row[2]]
        assert column.at[known].tolist() == [i for i, _ in wanted]
        np.testing.assert_array_equal(column.values[known], [value for _, value in wanted])
    assert set(catalog.metrics) & set(NAMES) == {name for row in rows if row for name in row[2]}
    assert catalog.bad == sum(
        row is None and bool(line.strip()) for row, line in zip(rows, data.split(b"\n"), strict=False)
    )


def test_a_torn_line_costs_one_record_and_the_next_one_counts() -> None:
    torn = line_of(5, {"loss": 1.5, "acc": 0.25}, 0)[:-6] + line_of(6, {"loss": 2.5, "acc": 0.5}, 0)
    data = line_of(4, {"loss": 9.0}, 0) + torn
    heads, loss = Heads(), Column("loss")
    advance(lambda offset, count: data[offset : offset + count], len(data), [heads, loss])
    assert heads.steps.tolist() == [4, 6]
    assert loss.values.tolist() == [9.0, 2.5]


def test_the_last_line_waits_until_it_has_its_end() -> None:
    data = line_of(1, {"loss": 1.0}, 0) + line_of(2, {"loss": 2.0}, 0)
    heads, loss = Heads(), Column("loss")
    for size in range(len(data) + 1):
        advance(lambda offset, count: data[offset : offset + count], size, [heads, loss])
        assert loss.values.tolist() == [1.0, 2.0][: data[:size].count(b"\n")]


def test_no_byte_is_read_twice_when_a_file_grows() -> None:
    data = b"".join(line_of(step, {"loss": 1.0}, 0) for step in range(100))
    heads, read = Heads(), list[int]()

    def reader(offset: int, count: int) -> bytes:
        read.append(offset)
        return data[offset : offset + count]

    advance(reader, len(data) // 2, [heads])
    end = heads.end
    read.clear()
    advance(reader, len(data), [heads])
    assert min(read) == end > 0
    read.clear()
    advance(reader, len(data), [heads])
    assert not read


def test_a_line_that_is_far_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.board._records._LONGEST", 1000)
    long = b'{"step": 2, "time": 1.0, "text": "' + b"x" * 5000 + b'"}\n'
    data = line_of(1, {"loss": 1.0}, 0) + long + line_of(3, {"loss": 3.0}, 0)
    heads, loss = Heads(), Column("loss")
    advance(lambda offset, count: data[offset : offset + count], len(data), [heads, loss], piece=100)
    assert heads.steps.tolist() == [1, -1, 3]
    assert loss.values.tolist() == [1.0, 3.0]
    assert heads.end == loss.end == len(data)


def test_names_that_differ_in_digits_alone_are_told_apart_where_they_come_first() -> None:
    data = line_of(1, {"eval1/loss": 1.0}, 0) + line_of(1, {"eval2/loss": 2.0}, 0)
    catalog = Catalog()
    advance(lambda offset, count: data[offset : offset + count], len(data), [catalog])
    assert list(catalog.metrics) == ["eval1/loss", "eval2/loss"]


def test_samples_say_where_they_are() -> None:
    table = {"answers": {"columns": ["a"], "rows": [[1]]}}
    records = [
        {"loss": 1.0},
        {"sample": "text"},
        {"tables": table, "loss": math.pi},
        {"pictures": {"p": "pictures/p/1.png"}},
    ]
    lines = [line_of(step, record, 0) for step, record in enumerate(records)]
    data, catalog = b"".join(lines), Catalog()
    advance(lambda offset, count: data[offset : offset + count], len(data), [catalog])
    assert [each.names for each in catalog.samples] == [
        (("text", "sample"),),
        (("table", "answers"),),
        (("picture", "p"),),
    ]
    for each, line in zip(catalog.samples, lines[1:], strict=True):
        assert data[each.offset : each.offset + each.length] == line.rstrip(b"\n")
