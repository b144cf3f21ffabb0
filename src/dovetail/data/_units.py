# SPDX-License-Identifier: Apache-2.0
"""Sources cut into units of work, without reading them, and the documents of a unit, one after the other.

A unit has the documents that start in it. Memory depends neither on the size of a file nor on that of a document.
"""

import gzip
import importlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from dovetail.config import Component, ConfigError, did_you_mean

from ._document import Document, FieldNames, Span, document_of_record, names_of
from ._errors import DataError, optional_import
from ._files import BOM, decode, find_files, line_of

_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 28  # Bytes of a line of JSON Lines, which is parsed as a whole.
PIECE = 1 << 20  # Bytes of text that are tokenised at a time.

Kind = Literal["jsonl", "parquet", "text"]


class SourceFile(NamedTuple):
    """A file of the sources."""

    file: str
    size: int
    kind: Kind
    compression: str  # "gz", "zst" or "".


class Stretch(NamedTuple):
    """Some of a file: bytes, or row groups of a table."""

    source: int
    start: int
    stop: int


class Piece(NamedTuple):
    """All or some of a sequence: of a document, or of one of a group; `at` is where that is: a byte, or a row."""

    source: int
    at: int
    content: str | np.ndarray
    ends: bool
    weight: float = 1.0  # Of its tokens as targets.


class Reading(NamedTuple):
    """How files are read."""

    field: FieldNames  # Of JSON Lines; the column of a table.
    separator: str | None  # Between documents of a text; None: a file is one.
    prompt: str | None = None  # A field, or column, whose text comes first, and is no target.

    @property
    def names(self) -> list[str]:
        """The fields, or columns, that are read."""
        return names_of(self.field, self.prompt)


def source_files(patterns: Sequence[str], where: str) -> list[SourceFile]:
    """Returns the files that paths and globs name."""
    return [_described(file) for file in find_files(patterns, where)]


def _described(file: str) -> SourceFile:
    with open(file, "rb") as f:
        head = f.read(4)
    compression = "gz" if head[:2] == b"\x1f\x8b" else "zst" if head == b"\x28\xb5\x2f\xfd" else ""
    ending = os.path.splitext(file.removesuffix(".gz").removesuffix(".zst"))[1]
    kind: Kind = "jsonl" if ending == ".jsonl" else "parquet" if ending == ".parquet" else "text"
    return SourceFile(file, os.path.getsize(file), kind, "" if kind == "parquet" else compression)


class Sources:
    """The files that are prepared, and how they are read."""

    def __init__(self, files: Sequence[SourceFile], reading: Reading, component: Component) -> None:
        self.files, self.reading = files, reading
        if any(file.kind == "parquet" or file.compression == "zst" for file in files):
            optional_import("pyarrow.parquet", component=component)

    def units(self, size: int) -> list[list[Stretch]]:
        """Returns the units, of about `size` bytes each: in order, each byte or row group in one of them."""
        units: list[list[Stretch]] = []
        room = 0
        for stretch, count in self._stretches(size):
            if room <= 0:
                units.append([])
                room = size
            units[-1].append(stretch)
            room -= count
        return units

    def _stretches(self, size: int) -> Iterator[tuple[Stretch, int]]:
        for source, file in enumerate(self.files):
            if file.kind == "parquet":
                for group, count in enumerate(self._row_groups(file)):
                    yield Stretch(source, group, group + 1), count
            elif file.compression or (file.kind == "text" and self.reading.separator is None):
                yield Stretch(source, 0, file.size), file.size  # It is read from its start to its end.
            else:
                for start in range(0, file.size, size):
                    stop = min(start + size, file.size)
                    yield Stretch(source, start, stop), stop - start

    def _row_groups(self, file: SourceFile) -> list[int]:
        """Returns the compressed bytes of each row group."""
        with self._table(file) as table:
            names = table.schema_arrow.names
            if missing := [name for name in self.reading.names if name not in names]:
                hint = did_you_mean(missing[0], names) or f" It has: {', '.join(names)}."
                raise ConfigError(f"{file.file} has no column {missing[0]!r}.{hint}")
            return [table.metadata.row_group(i).total_byte_size for i in range(table.num_row_groups)]

    def _table(self, file: SourceFile) -> Any:
        pq = importlib.import_module("pyarrow.parquet")
        try:
            return pq.ParquetFile(file.file, page_checksum_verification=True)
        except (ValueError, OSError) as e:
            raise DataError(f"{file.file}: not a Parquet file that can be read: {e}") from e

    def pieces(self, unit: Sequence[Stretch]) -> Iterator[Piece]:
        """Yields the documents of a unit, long ones in several pieces."""
        for stretch in unit:
            file = self.files[stretch.source]
            try:
                found = os.path.getsize(file.file)
                if found != file.size:
                    raise DataError(
                        f"{file.file}: has {found} bytes, and had {file.size} when this began. Do not change data in "
                        "use.\n  Start anew in another directory."
                    )
                kinds = {"jsonl": self._lines, "parquet": self._rows, "text": self._texts}
                yield from kinds[file.kind](stretch, file)
            except FileNotFoundError:
                raise DataError(f"{file.file}: is there no more. Bring it back, and run this again.") from None
            except (EOFError, OSError, zlib.error) as e:
                raise DataError(f"{file.file}: cannot be read: {e}.") from e

    def place(self, piece: Piece) -> str:
        """Returns where a document is, as messages name it. May be slow."""
        return where_is(self.files[piece.source], piece.at)

    def _texts(self, stretch: Stretch, file: SourceFile) -> Iterator[Piece]:
        separator = None if self.reading.separator is None else self.reading.separator.encode()
        document = begun = 0
        waiting = False
        for at, raw, starts, ends in self._split(stretch, file, separator, PIECE):
            if starts:
                document, begun = at, not (ends and not raw.strip())
            if begun:
                yield Piece(stretch.source, document, decode(raw, file.file, at), ends)
                waiting = not ends
        assert not waiting

    def _lines(self, stretch: Stretch, file: SourceFile) -> Iterator[Piece]:
        for at, raw, starts, ends in self._split(stretch, file, b"\n", _LONGEST_LINE):
            if not (starts and ends):
                raise DataError(
                    f"{where_is(file, at)}: a line of more than {_LONGEST_LINE >> 20} MB, which is parsed as a whole.\n"
                    "  Split the document, or write it to a text file of its own: those are read piece by piece."
                )
            if not raw.strip():
                continue
            try:
                record = json.loads(decode(raw, file.file, at))
            except ValueError as e:
                if isinstance(e, DataError):
                    raise
                raise DataError(f"{where_is(file, at)}: not JSON: {e}.") from None
            yield from _in_pieces(stretch.source, at, self._document(record, lambda at=at: where_is(file, at)))

    def _rows(self, stretch: Stretch, file: SourceFile) -> Iterator[Piece]:
        with self._table(file) as table:
            at = sum(table.metadata.row_group(i).num_rows for i in range(stretch.start))
            groups = list(range(stretch.start, stretch.stop))
            columns = self.reading.names
            try:
                for batch in table.iter_batches(64, row_groups=groups, columns=columns, use_threads=False):
                    for record in batch.to_pylist():
                        found = self._document(record, lambda at=at: f"{file.file}: row {at}", "column")
                        yield from _in_pieces(stretch.source, at, found)
                        at += 1
            except (ValueError, OSError) as e:
                if isinstance(e, DataError):
                    raise
                raise DataError(f"{file.file}: row {at} or one soon after it cannot be read: {e}") from e

    def _document(self, record: Any, place: Callable[[], str], kind: str = "field") -> Document:
        return document_of_record(record, self.reading.field, self.reading.prompt, place, kind)

    def _split(
        self, stretch: Stretch, file: SourceFile, separator: bytes | None, limit: int
    ) -> Iterator[tuple[int, bytes, bool, bool]]:
        """Yields the texts that start in a stretch: where, the bytes, whether it starts a document and whether it ends.

        Where a document starts depends on the bytes before it alone, so stretches that meet neither share nor lose one.
        """
        with self._opened(file) as f:
            if file.compression:
                start, stop = 0, None
            else:
                start = _boundary(f, stretch.start, file.size, separator)
                stop = _boundary(f, stretch.stop, file.size, separator)
                f.seek(start)
            if start == 0 and f.read(len(BOM)) == BOM:
                start = len(BOM)
            else:
                f.seek(start)
            yield from split(_limited(f, None if stop is None else stop - start), start, separator, limit)

    def _opened(self, file: SourceFile) -> Any:
        if file.compression == "gz":
            return gzip.open(file.file, "rb")
        if file.compression == "zst":
            arrow = importlib.import_module("pyarrow")
            return _Forward(arrow.CompressedInputStream(arrow.OSFile(file.file), "zstd"))
        return open(file.file, "rb")


class _Forward:
    """A stream that can go back to its start as long as only a few bytes are read."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._head, self._back = stream, b"", b""

    def read(self, count: int) -> bytes:
        data, self._back = self._back[:count], self._back[count:]
        data += self._stream.read(count - len(data)) if len(data) < count else b""
        self._head = self._head or data
        return data

    def seek(self, at: int) -> None:
        assert at == 0
        self._back = self._head

    def __enter__(self) -> "_Forward":
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()


def where_is(file: SourceFile, at: int) -> str:
    """Returns a document as messages name it: by its line where that can be counted."""
    if file.kind == "parquet":
        return f"{file.file}: row {at}"
    return (
        f"{file.file}: byte {at} of what is unpacked" if file.compression else f"{file.file}:{line_of(file.file, at)}"
    )


def _in_pieces(source: int, at: int, document: Document) -> Iterator[Piece]:
    for sequence in document.sequences:
        spans = sequence if isinstance(sequence, list) else [Span(sequence)]
        for number, (content, weight) in enumerate(spans, 1):
            yield from _pieces_of(source, at, content, number == len(spans), weight)


def _pieces_of(source: int, at: int, content: str | np.ndarray, ends: bool, weight: float) -> Iterator[Piece]:
    while len(content) > PIECE:
        cut = PIECE
        if isinstance(content, str):
            found = max(content.rfind("\n", PIECE // 2, PIECE) + 1, content.rfind(" ", PIECE // 2, PIECE))
            cut = found if found > 0 else PIECE
        yield Piece(source, at, content[:cut], False, weight)
        content = content[cut:]
    yield Piece(source, at, content, ends, weight)


def _boundary(f: BinaryIO, at: int, size: int, separator: bytes | None) -> int:
    """Returns where the first document at or after byte `at` starts; the size of the file if there is none."""
    if at <= 0 or at >= size or separator is None:
        return min(max(at, 0), size)
    start = max(at - len(separator), 0)
    f.seek(start)
    data = b""
    while more := f.read(_CHUNK):
        data += more
        found = data.find(separator)
        if found >= 0:
            return start + found + len(separator)
        keep = len(separator) - 1
        start += len(data) - keep
        data = data[len(data) - keep :]
    return size


def _limited(f: Any, left: int | None) -> Callable[[int], bytes]:
    def read(count: int) -> bytes:
        nonlocal left
        data = f.read(count if left is None else min(count, left))
        left = None if left is None else left - len(data)
        return data

    return read


def split(
    read: Callable[[int], bytes], offset: int, separator: bytes | None, limit: int
) -> Iterator[tuple[int, bytes, bool, bool]]:
    """Yields texts between separators, those longer than `limit` in parts, cut at the end of a line or a word."""
    data, at, starts, is_all = b"", 0, True, False
    while True:
        found = data.find(separator, at) if separator else -1
        if found >= 0 and found - at <= limit:
            yield offset + at, data[at:found], starts, True
            at, starts = found + len(separator or b""), True
        elif len(data) - at > limit + len(separator or b""):
            cut = _cut(data, at, limit)
            yield offset + at, data[at:cut], starts, False
            at, starts = cut, False
        elif not is_all:
            more = read(max(_CHUNK, len(data) - at))
            is_all = not more
            offset, data, at = offset + at, data[at:] + more, 0
        else:
            if at < len(data) or not starts:
                yield offset + at, data[at:], starts, True
            return


def _cut(data: bytes, start: int, limit: int) -> int:
    cut = start + limit
    for end in (b"\n", b" "):
        found = data.rfind(end, start + limit // 2, cut)
        if found >= 0:
            return found + (end == b"\n")  # A word keeps the space before it: tokenizers learn them together.
    for back in range(1, 4):  # Not inside a character: at most three bytes of one follow its first.
        if data[cut] & 0xC0 != 0x80:
            break
        cut = start + limit - back
    return cut
