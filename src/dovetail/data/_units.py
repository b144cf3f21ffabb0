# SPDX-License-Identifier: Apache-2.0
"""Sources cut into units of work, without reading them, and the documents of a unit, one after the other.

A unit has the documents that start in it. Memory depends neither on the size of a file nor on that of a document.
Each kind of file is a `Format`, in the table `FORMATS`.
"""

import abc
import importlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dovetail.config import Component, ConfigError, did_you_mean

from ._array_record import ArrayRecord, Records, document_of_bytes, open_records
from ._arrow import Arrow, batches_of
from ._compressed import local_copy, unpacked
from ._document import Document, FieldNames, Span, document_of_record, names_of
from ._errors import DataError, optional_import
from ._file import File
from ._files import check_same, decode, find_files, line_of, open_file
from ._jsonl import JsonLines
from ._parquet import Parquet
from ._separated import bounds_of, texts_of
from ._source import FileSource
from ._text import TextFiles

_LONGEST_LINE = 1 << 28  # Bytes of a line of JSON Lines, which is parsed as a whole.
PIECE = 1 << 20  # Bytes of text that are tokenised at a time.
_BLOCK = 1 << 23  # Bytes that are asked for at a time of a file at a URL, to read it on; of a table, which is read here
_SOME = 1 << 16  # and there, at least so many.
_AT_ONCE = 16  # Tables at URLs that are looked into side by side.


class Stretch(NamedTuple):
    """Some of a file: bytes, or row groups of a table."""

    source: int
    start: int
    stop: int


class Piece(NamedTuple):
    """All or some of a sequence: of a document, or of one of a group.

    `at` is where the document is: a byte, a row or a record.
    """

    source: int
    at: int
    content: str | np.ndarray
    ends: bool
    weight: float = 1.0  # Of its tokens as targets.


class Reading(NamedTuple):
    """How files are read."""

    field: FieldNames  # Of JSON Lines; the column of a table.
    separator: str | None  # Between documents of a text; None: a file is one.
    records: Records = "text"  # What a record of ArrayRecord holds.
    prompt: str | None = None  # A field, or column, whose text comes first, and is no target.

    @property
    def names(self) -> list[str]:
        """The fields, or columns, that are read."""
        return names_of(self.field, self.prompt)

    def document(self, record: Any, place: Callable[[], str], kind: str = "field") -> Document:
        """Returns the document in a record; `kind` is what the record has: fields, columns."""
        return document_of_record(record, self.field, self.prompt, place, kind)


class Format(abc.ABC):
    """A kind of file: how it is known, what reads it by index, and how it is cut into units and read through."""

    named: ClassVar[str]  # A pattern for the end of the name.
    marker: ClassVar[bytes | None] = None  # How it begins, where the name does not tell.
    source: ClassVar[type[FileSource]]
    needs: ClassVar[str | None] = None  # A module of an extra.

    def problem(self, file: File) -> str | None:
        """Returns why a file cannot be read, if that can be seen at once."""
        return None

    def has_fields(self, reading: Reading) -> bool:
        """Whether a document is in a field of a record, so that there can be several, and a prompt."""
        return True

    @abc.abstractmethod
    def stretches(self, file: File, reading: Reading, size: int) -> list[tuple[int, int, int]]:
        """Returns the parts of a file of about `size` bytes that can be read apart: start, stop, and bytes."""

    @abc.abstractmethod
    def pieces(self, stretch: Stretch, file: File, reading: Reading) -> Iterator[Piece]:
        """Yields the documents of a part of a file, long ones in several pieces."""

    @abc.abstractmethod
    def place(self, file: File, at: int) -> str:
        """Returns a document as messages name it. May be slow."""


class _Separated(Format, abc.ABC):
    """Texts with something between them: a part is a range of bytes."""

    def place(self, file: File, at: int) -> str:
        if file.is_remote and not file.compression:
            return f"{file.name}: byte {at}"
        return (
            f"{file.name}: byte {at} of what is unpacked"
            if file.compression
            else f"{file.name}:{line_of(file.name, at)}"
        )

    def stretches(self, file: File, reading: Reading, size: int) -> list[tuple[int, int, int]]:
        if file.compression or not file.ranges or self._separator(reading) is None:
            return [(0, file.size, file.size)]  # It is read from its start to its end.
        ends = [(start, min(start + size, file.size)) for start in range(0, file.size, size)]
        return [(start, stop, stop - start) for start, stop in ends]

    @abc.abstractmethod
    def _separator(self, reading: Reading) -> bytes | None: ...

    def _split(
        self, stretch: Stretch, file: File, reading: Reading, limit: int
    ) -> Iterator[tuple[int, bytes, bool, bool]]:
        separator = self._separator(reading)
        if file.compression or (stretch.start, stretch.stop) == (0, file.size):
            with unpacked(file) as f:
                yield from texts_of(f, 0, None, separator, limit)
            return
        assert separator is not None  # Else it is not cut.
        with open_file(file, _SOME) as f:
            start, stop = bounds_of(f, stretch.start, stretch.stop, file.size, separator)
        with open_file(file, _BLOCK, stop) as f:
            f.seek(start)
            yield from texts_of(f, start, stop, separator, limit)


class _Texts(_Separated):
    named = r"\.(txt|text|md)"
    source = TextFiles

    def has_fields(self, reading: Reading) -> bool:
        return False

    def _separator(self, reading: Reading) -> bytes | None:
        return None if reading.separator is None else reading.separator.encode()

    def pieces(self, stretch: Stretch, file: File, reading: Reading) -> Iterator[Piece]:
        document = begun = 0
        waiting = False
        for at, raw, starts, ends in self._split(stretch, file, reading, PIECE):
            if starts:
                document, begun = at, not (ends and not raw.strip())
            if begun:
                yield Piece(stretch.source, document, decode(raw, file.name, at), ends)
                waiting = not ends
        assert not waiting


class _Lines(_Separated):
    named = r"\.(jsonl|ndjson|json)"
    source = JsonLines

    def problem(self, file: File) -> str | None:
        if file.compression or file.head.lstrip()[:1] != b"[":
            return None
        name = file.name.rpartition("/")[2]
        return f"is a list of JSON. Expected an object in each line.\n  Make it so: jq -c '.[]' {name} > lines.jsonl"

    def _separator(self, reading: Reading) -> bytes:
        return b"\n"

    def pieces(self, stretch: Stretch, file: File, reading: Reading) -> Iterator[Piece]:
        for at, raw, starts, ends in self._split(stretch, file, reading, _LONGEST_LINE):
            if not (starts and ends):
                raise DataError(
                    f"{self.place(file, at)}: a line of more than {_LONGEST_LINE >> 20} MB, which is parsed as a "
                    "whole.\n  Split the document, or write it to a text file of its own: those are read in pieces."
                )
            if not raw.strip():
                continue
            try:
                record = json.loads(decode(raw, file.name, at))
            except ValueError as e:
                if isinstance(e, DataError):
                    raise
                raise DataError(f"{self.place(file, at)}: not JSON: {e}.") from None
            document = reading.document(record, lambda at=at: self.place(file, at))
            yield from _in_pieces(stretch.source, at, document)


class _Parquet(Format):
    """A part is a row group."""

    named = r"\.parquet"
    marker = b"PAR1"
    source = Parquet
    needs = "pyarrow.parquet"

    def problem(self, file: File) -> str | None:
        if file.ranges:
            return None
        return "the server only gives all of it, and Parquet is read here and there. Get the file, and give its path."

    def place(self, file: File, at: int) -> str:
        return f"{file.name}: row {at}"

    def stretches(self, file: File, reading: Reading, size: int) -> list[tuple[int, int, int]]:
        with self._table(file) as table:
            _check_columns(file, reading, table.schema_arrow.names)
            sizes = [table.metadata.row_group(i).total_byte_size for i in range(table.num_row_groups)]
            return [(group, group + 1, count) for group, count in enumerate(sizes)]

    def _table(self, file: File) -> Any:
        pq = importlib.import_module("pyarrow.parquet")
        try:
            opened = open_file(file, _SOME) if file.is_remote else file.path
            return pq.ParquetFile(opened, page_checksum_verification=True)
        except (ValueError, OSError) as e:
            if isinstance(e, DataError):
                raise
            raise DataError(f"{file.name}: not a Parquet file that can be read: {e}") from e

    def pieces(self, stretch: Stretch, file: File, reading: Reading) -> Iterator[Piece]:
        with self._table(file) as table:
            at = sum(table.metadata.row_group(i).num_rows for i in range(stretch.start))
            groups = list(range(stretch.start, stretch.stop))
            try:
                for batch in table.iter_batches(64, row_groups=groups, columns=reading.names, use_threads=False):
                    for record in batch.to_pylist():
                        document = reading.document(record, lambda at=at: self.place(file, at), "column")
                        yield from _in_pieces(stretch.source, at, document)
                        at += 1
            except (ValueError, OSError) as e:
                if isinstance(e, DataError):
                    raise
                raise DataError(f"{file.name}: row {at} or one soon after it cannot be read: {e}") from e


class _Arrow(Format):
    """A part is a share of the batches of rows; of a file at a URL, which is read as a stream, all of it."""

    named = r"\.arrow"
    marker = b"\xff\xff\xff\xff"
    source = Arrow
    needs = "pyarrow"

    def place(self, file: File, at: int) -> str:
        return f"{file.name}: row {at}"

    def stretches(self, file: File, reading: Reading, size: int) -> list[tuple[int, int, int]]:
        return [(0, file.size, file.size)] if file.is_remote or file.compression else _shares(file, size)

    def pieces(self, stretch: Stretch, file: File, reading: Reading) -> Iterator[Piece]:
        arrow = importlib.import_module("pyarrow")
        at = 0
        with unpacked(file) if file.is_remote or file.compression else arrow.memory_map(file.path) as source:
            if file.is_remote or file.compression:
                found = batches_of(source, file.name)
            else:
                batches = list(batches_of(source, file.name))
                first, last = _share(stretch, file, len(batches))
                at, found = sum(batch.num_rows for batch in batches[:first]), batches[first:last]
            for batch in found:
                _check_columns(file, reading, batch.schema.names)
                for some in (batch.slice(i, 64) for i in range(0, batch.num_rows, 64)):
                    for record in _records(some.select(reading.names), file, at):
                        document = reading.document(record, lambda at=at: self.place(file, at), "column")
                        yield from _in_pieces(stretch.source, at, document)
                        at += 1


class _ArrayRecord(Format):
    """A part is a share of the records. A file at a URL is copied to the cache of this machine."""

    named = r"\.(array_?record|arecord)(-\d+-of-\d+)?"
    marker = b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f"  # Of Riegeli.
    source = ArrayRecord
    needs = "array_record.python.array_record_module"

    def has_fields(self, reading: Reading) -> bool:
        return reading.records == "json"

    def place(self, file: File, at: int) -> str:
        return f"{file.name}: record {at}"

    def stretches(self, file: File, reading: Reading, size: int) -> list[tuple[int, int, int]]:
        return _shares(file, size)

    def pieces(self, stretch: Stretch, file: File, reading: Reading) -> Iterator[Piece]:
        reader = open_records(local_copy(file), file.name)
        try:
            first, last = _share(stretch, file, reader.num_records())
            for start in range(first, last, 64):
                try:
                    records = reader.read(start, min(start + 64, last))
                except RuntimeError as e:
                    raise DataError(f"{file.name}: record {start} or one soon after it cannot be read: {e}") from e
                for at, raw in enumerate(records, start):
                    place = self.place(file, at)
                    document = document_of_bytes(raw, reading.records, reading.field, reading.prompt, place)
                    yield from _in_pieces(stretch.source, at, document)
        finally:
            reader.close()


FORMATS: tuple[Format, ...] = (_Lines(), _Parquet(), _Arrow(), _ArrayRecord(), _Texts())


def format_of(file: File) -> Format:
    """Returns the kind of a file: by the end of its name, or how it begins; text, if neither says anything."""
    for each in FORMATS:
        if re.search(f"{each.named}$", file.bare_name):
            return each
    return next((each for each in FORMATS if each.marker and file.head.startswith(each.marker)), FORMATS[-1])


class Sources:
    """The files that are prepared, and how they are read."""

    def __init__(self, patterns: Sequence[str], where: str, reading: Reading, component: Component) -> None:
        self.files, self.reading = find_files(patterns, where), reading
        self.formats = [format_of(file) for file in self.files]
        for file, each in zip(self.files, self.formats, strict=True):
            needed = each.needs or ("pyarrow" if file.compression == "zst" else None)
            if needed:
                optional_import(needed, component=component)
            if (problem := each.problem(file)) is not None:
                raise DataError(f"{file.name}: {problem}")

    @property
    def has_texts_alone(self) -> bool:
        """Whether all files are plain text."""
        return all(isinstance(each, _Texts) for each in self.formats)

    def without_fields(self) -> str | None:
        """Returns the name of a file whose documents are not in fields; None if there is none."""
        kinds = zip(self.files, self.formats, strict=True)
        return next((file.name for file, each in kinds if not each.has_fields(self.reading)), None)

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
        def cut(number: int) -> list[tuple[int, int, int]]:
            return self.formats[number].stretches(self.files[number], self.reading, size)

        with ThreadPoolExecutor(_AT_ONCE if any(file.is_remote for file in self.files) else 1) as pool:
            for source, found in enumerate(pool.map(cut, range(len(self.files)))):
                for start, stop, count in found:
                    yield Stretch(source, start, stop), count

    def pieces(self, unit: Sequence[Stretch]) -> Iterator[Piece]:
        """Yields the documents of a unit, long ones in several pieces."""
        for stretch in unit:
            file = self.files[stretch.source]
            try:
                check_same(file)
                yield from self.formats[stretch.source].pieces(stretch, file, self.reading)
                check_same(file)  # As it was read, it was one and the same.
            except FileNotFoundError:
                raise DataError(f"{file.name}: is there no more. Bring it back, and run this again.") from None
            except (EOFError, OSError, zlib.error) as e:
                raise DataError(f"{file.name}: cannot be read: {e}.") from e

    def place(self, piece: Piece) -> str:
        """Returns where a document is, as messages name it. May be slow."""
        return self.formats[piece.source].place(self.files[piece.source], piece.at)


def _shares(file: File, size: int) -> list[tuple[int, int, int]]:
    """Cuts a file by its size alone, for `_share`."""
    ends = [(start, min(start + size, file.size)) for start in range(0, file.size, size)]
    return [(start, stop, stop - start) for start, stop in ends]


def _share(stretch: Stretch, file: File, count: int) -> tuple[int, int]:
    """Returns which of so many things in a file, of about the same size, are those of a part of its bytes."""
    return count * stretch.start // file.size, count * stretch.stop // file.size


def _check_columns(file: File, reading: Reading, names: Sequence[str]) -> None:
    if missing := [name for name in reading.names if name not in names]:
        hint = did_you_mean(missing[0], names) or f" It has: {', '.join(names)}."
        raise ConfigError(f"{file.name} has no column {missing[0]!r}.{hint}")


def _records(batch: Any, file: File, at: int) -> list[Any]:
    try:
        return batch.to_pylist()
    except ValueError as e:
        raise DataError(f"{file.name}: row {at} or one soon after it cannot be read: {e}") from e


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
