# SPDX-License-Identifier: Apache-2.0
"""What one process of a preparation does: makes the shards of a unit, and its record, in memory that is bounded."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dovetail.config import ConfigError

from ._dataset import why_not_encoded
from ._errors import DataError
from ._manifest import shard_name, token_dtype
from ._places import Place, open_place
from ._shard import ShardMaker, Sizes, Write
from ._tokenizer import Tokenizer, check_ids
from ._units import PIECE, Piece, Sources, Stretch

_PIECES = 1024  # That are tokenised together, at most.


class Job(NamedTuple):
    """All that a process must know. It can be pickled."""

    to: str
    sources: Sources
    tokenizer: Tokenizer
    bos: list[int]
    eos: list[int]
    sizes: Sizes
    group: int = 1  # Sequences of a document.


def record_name(unit: int) -> str:
    """Returns the name of the file that says that a unit is done, and what is in it."""
    return f"work/done/{unit // 1000:04d}/{unit:07d}.json"


def make_unit(
    job: Job, place: Place, number: int, unit: Sequence[Stretch], progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Makes a unit, and returns its record; `progress` is told bytes of text and tokens."""

    def writer(part: int) -> Write:
        name = shard_name(number, part)
        return lambda ending, data: place.write(f"{name}.{ending}", data)

    maker = ShardMaker(writer, token_dtype(job.tokenizer.vocab_size), job.sizes, job.group)
    bos, eos = np.array(job.bos, np.int32), np.array(job.eos, np.int32)
    pieces = length = 0  # Of the sequence that is open: pieces, and tokens.
    for some in _batches(job.sources.pieces(unit)):
        count = 0
        for piece, ids in zip(some, _encoded(job, some), strict=True):
            if len(ids):
                if not length and len(bos):
                    maker.extend(bos, piece.source, piece.at, piece.weight)
                maker.extend(ids, piece.source, piece.at, piece.weight)
            pieces, length = pieces + 1, length + len(ids)
            count += len(ids)
            if piece.ends:
                if length and len(eos):
                    maker.extend(eos, piece.source, piece.at, piece.weight)
                _check_length(job, piece, length)
                maker.end(piece.source, piece.at, pieces=pieces)
                pieces = length = 0
        progress(sum(map(_size, some)), count)
    record = maker.finish()
    place.write(record_name(number), (json.dumps(record, sort_keys=True) + "\n").encode())
    return record


def _check_length(job: Job, piece: Piece, length: int) -> None:
    if job.group > 1 and length > job.sizes.document:
        raise DataError(
            f"{job.sources.place(piece)}: a sequence of a group has {length:,} tokens, more than max_document_tokens "
            f"({job.sizes.document:,}).\n  Cut it before, or raise max_document_tokens: a group is never in parts."
        )


def _size(piece: Piece) -> int:
    return len(piece.content) if isinstance(piece.content, str) else 4 * len(piece.content)


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    some, size = list[Piece](), 0
    for piece in pieces:
        some.append(piece)
        size += len(piece.content)
        if size >= PIECE or len(some) >= _PIECES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _encoded(job: Job, some: Sequence[Piece]) -> list[np.ndarray]:
    """Returns the ids of each piece."""
    texts = [piece.content for piece in some if isinstance(piece.content, str)]
    try:
        encoded = iter(job.tokenizer.encode_batch(texts))
    except Exception:  # Each library has its own error for text that is not Unicode. Which text was it?
        encoded = iter([_encode_one(job, piece) for piece in some if isinstance(piece.content, str)])
    found = list[np.ndarray]()
    for piece in some:
        ids = next(encoded) if isinstance(piece.content, str) else piece.content
        check_ids(ids, job.tokenizer.vocab_size, lambda piece=piece: job.sources.place(piece))
        found.append(ids)
    return found


def _encode_one(job: Job, piece: Piece) -> np.ndarray:
    try:
        return job.tokenizer.encode_batch([piece.content])[0]  # pyright: ignore[reportArgumentType] (it is text)
    except Exception as e:
        raise DataError(f"{job.sources.place(piece)}: {why_not_encoded(piece.content)}: {e}") from e


def work(connection: Any, job: Job) -> None:
    """Runs in a process of its own: makes the units that it is sent, until there is nobody at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The one that started this decides.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # A process for each core: threads would only disturb each other.
    place = open_place(job.to, "to")
    try:
        while True:
            number, unit = connection.recv()
            try:
                make_unit(job, place, number, unit, lambda *done: connection.send(("progress", done)))
                connection.send(("done", number))
            except (DataError, ConfigError) as e:
                connection.send(("failed", e))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
