# SPDX-License-Identifier: Apache-2.0
"""How rows of a global batch are divided among processes and workers."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data import FIELDS, ByteTokenizer, ShippedCorpus, TextDataset
from dovetail.data._batches import Share, empty_row, join_batches, make_batches, needed_streams, shares_of


@st.composite
def divisions(draw):
    """Numbers of streams and processes, and a batch size that both divide."""
    streams, processes, factor = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    return streams, processes, int(np.lcm(streams, processes)) * factor


@given(divisions(), st.data())
def test_shares_of_all_workers_of_all_processes_are_the_global_batch(division, data):
    streams, processes, batch_size = division
    per_stream = batch_size // streams
    rows = []
    for process in range(processes):
        needed = needed_streams(shard=process, num_shards=processes, num_streams=streams)
        workers = data.draw(st.integers(1, len(needed)))
        shares = shares_of(
            shard=process, num_shards=processes, batch_size=batch_size, num_streams=streams, workers=workers
        )
        assert len(shares) == workers
        assert [s for share in shares for s in share.streams] == list(needed)
        mine = []
        for share in shares:
            made = [stream * per_stream + i for stream in share.streams for i in range(share.rows_per_stream)]
            mine += made[share.start : share.stop]
        assert len(mine) == batch_size // processes
        rows += mine
    assert rows == list(range(batch_size))


def test_process_needs_only_its_streams():
    assert [*needed_streams(shard=1, num_shards=4, num_streams=8)] == [2, 3]
    assert [*needed_streams(shard=3, num_shards=4, num_streams=2)] == [1]
    assert [*needed_streams(shard=0, num_shards=2, num_streams=3)] == [0, 1]


@pytest.fixture(scope="module")
def dataset() -> TextDataset:
    config = TextDataset.Config(source=ShippedCorpus.Config(split="held-out"), seq_len=16, seed=0)
    return config.build(tokenizer=ByteTokenizer.Config().build())


def test_batch_is_the_next_rows_of_each_stream(dataset):
    share = Share(range(1, 3), num_streams=3, rows_per_stream=2, start=1, stop=4)
    first, second = islice(make_batches(dataset, share, {}, empty_row((16,), 0)), 2)
    streams = {s: [row for row, _ in islice(dataset.rows(s, 3, None), 4)] for s in (1, 2)}
    for (batch, _), n in ((first, 0), (second, 2)):
        expected = [streams[1][n], streams[1][n + 1], streams[2][n], streams[2][n + 1]][1:4]
        for name, dtype in FIELDS.items():
            np.testing.assert_array_equal(batch[name], np.stack([row[name] for row in expected]))
            assert batch[name].dtype == dtype


def test_positions_are_those_after_the_batch_and_stay_as_they_were(dataset):
    share = Share(range(2), num_streams=2, rows_per_stream=3, start=0, stop=6)
    batches = make_batches(dataset, share, {}, empty_row((16,), 0))
    (_, states), (second, _) = next(batches), next(batches)
    again, _ = next(make_batches(dataset, share, states, empty_row((16,), 0)))
    np.testing.assert_array_equal(second["tokens"], again["tokens"])


def test_joined_batch_has_arrays_of_its_own():
    part = {name: np.zeros((1, 2), dtype) for name, dtype in FIELDS.items()}
    joined = join_batches([part])
    joined["tokens"][:] = 1
    assert part["tokens"].tolist() == [[0, 0]]


def test_empty_row_counts_for_nothing():
    row = empty_row((3,), 7)
    assert row["tokens"].tolist() == row["targets"].tolist() == [7, 7, 7]
    assert not any(row[name].any() for name in ("weights", "segments", "positions"))
