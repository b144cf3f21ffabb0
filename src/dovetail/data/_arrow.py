# SPDX-License-Identifier: Apache-2.0
"""Arrow files as Hugging Face `datasets` writes them: streams of record batches, documents in one of their columns."""

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ._errors import DataError, optional_import
from ._files import Cache
from ._parquet import Table


class Arrow(Table):
    """Documents in a column of Arrow files: strings, or lists of token ids. Needs the extra `data`.

    `files` may name directories that `save_to_disk` of Hugging Face `datasets` has written. Files are mapped to memory:
    a row is read without what is around it, so documents are shuffled one by one.
    """

    class Config(Table.Config):
        pass

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        self._batches = Cache(self._mapped, limit=64)
        super().__init__(cfg, **kwargs)

    def _mapped(self, file: int) -> list[Any]:
        arrow = optional_import("pyarrow", component=self)
        return list(
            batches_of(arrow.memory_map(self._paths[file]), self.files[file])
        )  # Where they are, not what is in.

    def _schema(self, file: int) -> tuple[Any, list[int]]:
        with self._batches.use(file) as batches:
            if not batches:
                raise DataError(f"{self.files[file]}: the table has no rows. Remove the file, or leave it out.")
            return batches[0].schema, [batch.num_rows for batch in batches]

    def _read_group(self, key: tuple[int, int]) -> Any:
        file, group = key
        with self._batches.use(file) as batches:
            return batches[group].select(self._names)

    def blocks(self) -> np.ndarray | None:
        return None


def batches_of(source: Any, name: str) -> Iterator[Any]:
    """Yields the batches of an open file of Arrow, written as a stream or, if it can be read here and there, as a file.

    Of one that is mapped to memory, they take none. `name` is for errors.
    """
    arrow = importlib.import_module("pyarrow")
    source = source if isinstance(source, arrow.NativeFile) else arrow.PythonFile(source, "r")
    rows = 0
    try:
        try:
            stream = arrow.ipc.open_stream(source)
        except arrow.ArrowInvalid:
            source.seek(0)
            reader = arrow.ipc.open_file(source)
            stream = (reader.get_batch(i) for i in range(reader.num_record_batches))
        for batch in stream:
            yield batch
            rows += batch.num_rows
    except (ValueError, OSError) as e:
        if isinstance(e, DataError):
            raise
        raise DataError(
            f"{name}: after {rows} rows: not a file of Arrow that can be read: {e}\n  Get it, or save it, again."
        ) from e
