# SPDX-License-Identifier: Apache-2.0
"""What an input declares of its batches."""

import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.data import BatchSpec, DataError, Field, spec_of

FIELDS = {
    "image": Field((4, 2, 2), "float32", ("batch", None, None)),
    "length": Field((4,), "int32", ("batch",)),
    "weight": Field((4,), "float32", ("batch",), padding=0),
}
BATCH = {
    "image": np.arange(16, dtype=np.float32).reshape(4, 2, 2),
    "length": np.array([3, 1, 2, 5], np.int32),
    "weight": np.ones(4, np.float32),
}


def test_units_are_rows_unless_said_or_counted_otherwise():
    plain = BatchSpec(FIELDS)
    assert (plain.unit, plain.num_units, plain.count(BATCH)) == ("row", 4, 4)
    tokens = BatchSpec(FIELDS, "token", units=32, counted="length")
    assert (tokens.num_units, tokens.count(BATCH)) == (32, 11)


def test_a_row_of_padding_is_the_last_row_with_what_is_declared_for_it():
    filled = BatchSpec(FIELDS).filled(BATCH, 2)
    assert filled["weight"].tolist() == [1, 1, 1, 1, 0, 0]
    assert filled["length"].tolist() == [3, 1, 2, 5, 5, 5]
    np.testing.assert_array_equal(filled["image"][4:], BATCH["image"][[3, 3]])
    assert {name: values.dtype for name, values in filled.items()} == {name: v.dtype for name, v in BATCH.items()}


def test_batches_cannot_be_filled_up_where_nothing_would_tell_padding_from_data():
    spec = BatchSpec({"length": FIELDS["length"]})
    assert spec.filled({"length": BATCH["length"]}, 0)["length"] is BATCH["length"]
    with pytest.raises(
        DataError, match=r"a batch of 4 rows lacks 2, and the input declares no padding\.\n  Use another"
    ):
        spec.filled({"length": BATCH["length"]}, 2)


def test_a_batch_is_one_of_those_declared_or_an_equal_part():
    specs = [BatchSpec(FIELDS), BatchSpec({**FIELDS, "length": Field((4, 1), "int32", ("batch", None))})]
    half = {name: values[:2] for name, values in BATCH.items()}
    assert spec_of(BATCH, specs, "input") is specs[0]
    assert spec_of(half, specs, "input", shards=2) is specs[0]
    assert spec_of({**BATCH, "length": np.ones((4, 1), np.int32)}, specs, "input") is specs[1]
    for other in (half, {**BATCH, "length": np.ones(4, np.int64)}, {"image": BATCH["image"]}):
        with pytest.raises(
            DataError, match=r"(?s)input gave a batch that it has not declared: image .*Declared: image "
        ):
            spec_of(other, specs, "input")


@pytest.mark.parametrize(
    "fields, message",
    [
        ({}, "there are none"),
        ({"x": Field((4, 2), "int32", ("batch",))}, "x is int32[4, 2] with axes ('batch',)"),
        ({"x": Field((2, 4), "int32", ("seq", "batch"))}, "x is int32[2, 4] with axes ('seq', 'batch')"),
        ({"x": FIELDS["length"], "y": Field((2,), "int32", ("batch",))}, "they have different numbers of rows"),
    ],
)
def test_fields_that_are_not_rows_are_refused(fields, message):
    with pytest.raises(ConfigError) as e:
        BatchSpec(fields)
    assert message in str(e.value)


def test_fields_that_one_axis_would_split_differently_are_refused():
    spec = BatchSpec({name: Field((4, size), "int32", ("batch", "seq")) for name, size in (("x", 6), ("y", 8))})
    with pytest.raises(ConfigError, match=r"'y' has size 8 along 'seq', another one 6\.\n  Use None for the axis"):
        spec.lengths()
