# SPDX-License-Identifier: Apache-2.0
"""ArrayRecord: a record file made for reading by index. The format of choice for large data."""

import json
from typing import Any, Literal

import numpy as np

from dovetail.config import Component, ConfigError

from ._document import Document, FieldNames, document_of_record, group_size, names_of, problem_of
from ._errors import DataError, optional_import, place_of
from ._files import Cache, decode
from ._source import FileSource

Records = Literal["text", "json", "uint16", "uint32"]


class ArrayRecord(FileSource):
    """Documents in ArrayRecord files. Needs the extra `data`.

    Write the files with `group_size:1`, or each record is read together with its whole group.
    """

    class Config(FileSource.Config):
        # What a record holds: UTF-8 text, a JSON object with the document in `field`, or token ids, low byte first.
        records: Records = "text"
        field: str | tuple[str, ...] = "text"  # Of objects; several: texts that belong together, such as two answers.
        prompt: str | None = None  # A field whose text comes first, and is no target.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if problem := problem_of(cfg.field, cfg.prompt):
            raise ConfigError(f"{place_of(self, 'field')}: {problem}")
        if cfg.records != "json" and len(names_of(cfg.field, cfg.prompt)) > 1:
            raise ConfigError(f"{place_of(self, 'records')}: is {cfg.records!r}, which has no fields. Use 'json'.")
        self._open = Cache(self._open_file, limit=64)
        self._set_counts(map(self._count, range(len(self.files))))
        self._check_first()

    def _open_file(self, file: int) -> Any:
        return open_records(self._paths[file], self.files[file], self)

    def _count(self, file: int) -> int:
        with self._open.use(file) as reader:
            if not reader.num_records():
                raise DataError(f"{self.files[file]}: has no records. Remove it, or leave it out.")
            return reader.num_records()

    def _read(self, file: int, at: int) -> Document:
        place = self._place(file, at)
        try:
            with self._open.use(file) as reader:
                (raw,) = reader.read([at])
        except RuntimeError as e:
            raise DataError(f"{place}: cannot be read: {e}") from e
        return document_of_bytes(raw, self.cfg.records, self.cfg.field, self.cfg.prompt, place)

    @property
    def group(self) -> int:
        return group_size(self.cfg.field) if self.cfg.records == "json" else 1

    def _place(self, file: int, at: int) -> str:
        return f"{self.files[file]}: record {at}"


def open_records(path: str, name: str, component: Component | None = None) -> Any:
    """Opens a file on this machine; `name` is what messages call it."""
    library = optional_import("array_record.python.array_record_module", component=component)
    reader = library.ArrayRecordReader(path, "readahead_buffer_size:0")
    if not reader.ok():  # It opens anything, and says later that there is nothing in it.
        raise DataError(f"{name}: not an ArrayRecord file, or a damaged one.")
    return reader


def document_of_bytes(raw: bytes, kind: Records, field: FieldNames, prompt: str | None, place: str) -> Document:
    """Returns the document in a record."""
    if kind in ("uint16", "uint32"):
        dtype = np.dtype(kind).newbyteorder("<")
        if len(raw) % dtype.itemsize:
            raise DataError(f"{place}: {len(raw)} bytes are not a whole number of {kind}.")
        return Document(np.frombuffer(raw, dtype))
    text = decode(raw, place, 0)
    if kind == "text":
        return Document(text)
    try:
        record = json.loads(text)
    except ValueError as e:
        raise DataError(f"{place}: not JSON: {e}.") from None
    return document_of_record(record, field, prompt, lambda: place)
