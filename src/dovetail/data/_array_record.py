# SPDX-License-Identifier: Apache-2.0
"""ArrayRecord: a record file made for reading by index. The format of choice for large data."""

import json
from typing import Any, Literal

import numpy as np

from dovetail.config import ConfigError

from ._document import Document, document_of_record, group_size, names_of, problem_of
from ._errors import DataError, optional_import, place_of
from ._files import Cache, decode
from ._source import FileSource


class ArrayRecord(FileSource):
    """Documents in ArrayRecord files. Needs the extra `data`.

    Write the files with `group_size:1`, or each record is read together with its whole group.
    """

    class Config(FileSource.Config):
        # What a record holds: UTF-8 text, a JSON object with the document in `field`, or token ids, low byte first.
        records: Literal["text", "json", "uint16", "uint32"] = "text"
        field: str | tuple[str, ...] = "text"  # Of objects; several: texts that belong together, such as two answers.
        prompt: str | None = None  # A field whose text comes first, and is no target.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if problem := problem_of(cfg.field, cfg.prompt):
            raise ConfigError(f"{place_of(self, 'field')}: {problem}")
        if cfg.records != "json" and len(names_of(cfg.field, cfg.prompt)) > 1:
            raise ConfigError(f"{place_of(self, 'records')}: is {cfg.records!r}, which has no fields. Use 'json'.")
        self._open = Cache(self._open_file, limit=64)
        self._set_counts(map(self._count, self.files))
        self._check_first()

    def _open_file(self, file: str) -> Any:
        library = optional_import("array_record.python.array_record_module", component=self)
        reader = library.ArrayRecordReader(file, "readahead_buffer_size:0")
        if not reader.ok():  # It opens anything, and says later that there is nothing in it.
            raise DataError(f"{file}: not an ArrayRecord file, or a damaged one.")
        return reader

    def _count(self, file: str) -> int:
        with self._open.use(file) as reader:
            if not reader.num_records():
                raise DataError(f"{file}: has no records. Remove it, or leave it out.")
            return reader.num_records()

    def _read(self, file: int, at: int) -> Document:
        place = self._place(file, at)
        try:
            with self._open.use(self.files[file]) as reader:
                (raw,) = reader.read([at])
        except RuntimeError as e:
            raise DataError(f"{place}: cannot be read: {e}") from e
        kind = self.cfg.records
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
        return document_of_record(record, self.cfg.field, self.cfg.prompt, lambda: place)

    @property
    def group(self) -> int:
        return group_size(self.cfg.field) if self.cfg.records == "json" else 1

    def _place(self, file: int, at: int) -> str:
        return f"{self.files[file]}: record {at}"
