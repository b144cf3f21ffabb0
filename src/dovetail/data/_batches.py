# SPDX-License-Identifier: Apache-2.0
"""Batches of some streams: what one thread or process of the input computes, from a position on."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from ._dataset import Dataset
from ._packing import FIELDS, Row, State, make_row
from ._spec import Batch


class Share(NamedTuple):
    """The part of each global batch that one thread or process makes.

    Each stream gives `rows_per_stream` rows of a global batch, one stream after the other. Of the rows that `streams`
    give, those from `start` to `stop` are kept; another process that shares a stream with this one keeps the others.
    """

    streams: range
    num_streams: int
    rows_per_stream: int
    start: int
    stop: int


def make_batches(
    dataset: Dataset, share: Share, states: dict[str, State], empty: Row
) -> Iterator[tuple[Batch, dict[str, State]]]:
    """Yields the share of each global batch, with the positions of its streams after it, by number as text.

    When the data ends inside a batch, the rest of it is filled with `empty` rows.
    """
    readers = {s: dataset.rows(s, share.num_streams, states.get(str(s))) for s in share.streams}
    while True:
        rows: list[Row] = []
        filled = False
        for stream, reader in readers.items():
            taken = list(islice(reader, share.rows_per_stream))
            if taken:
                states = {**states, str(stream): taken[-1][1]}
            filled = filled or bool(taken)
            rows += [row for row, _ in taken] + [empty] * (share.rows_per_stream - len(taken))
        if not filled:
            return
        kept = rows[share.start : share.stop]
        yield {name: np.stack([row[name] for row in kept]) for name in FIELDS}, states


def shares_of(*, shard: int, num_shards: int, batch_size: int, num_streams: int, workers: int) -> list[Share]:
    """Returns how `workers` (at least 1) divide among them what process `shard` of `num_shards` needs."""
    per_stream, per_shard = batch_size // num_streams, batch_size // num_shards
    first, last = shard * per_shard, (shard + 1) * per_shard  # The rows of the global batch to make.
    streams = needed_streams(shard=shard, num_shards=num_shards, num_streams=num_streams)
    shares: list[Share] = []
    for part in np.array_split(np.array(streams), workers):
        begin, end = int(part[0]) * per_stream, (int(part[-1]) + 1) * per_stream
        start, stop = max(first, begin) - begin, min(last, end) - begin
        shares.append(Share(range(int(part[0]), int(part[-1]) + 1), num_streams, per_stream, start, stop))
    return shares


def needed_streams(*, shard: int, num_shards: int, num_streams: int) -> range:
    """Returns the streams that hold rows of process `shard`; two processes may need the same one."""
    return range(shard * num_streams // num_shards, -(-(shard + 1) * num_streams // num_shards))


def join_batches(parts: Sequence[Batch]) -> Batch:
    """Returns a batch with the rows of all `parts`, as arrays of its own."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def empty_row(shape: tuple[int, ...], pad_id: int) -> Row:
    """Returns a row of padding, which counts for nothing."""
    row = make_row((), seq_len=shape[-1], pad_id=pad_id)
    return {name: np.broadcast_to(values, shape) for name, values in row.items()}
