# SPDX-License-Identifier: Apache-2.0
"""Tables: documents in one of their columns. Parquet files."""

import abc
from typing import Any

import numpy as np

from dovetail.config import ConfigError, did_you_mean

from ._document import Document, document_of_record, group_size, names_of, problem_of
from ._errors import DataError, optional_import, place_of
from ._files import Cache
from ._source import FileSource


class Table(FileSource, abc.ABC):
    """Base of sources that have documents in a column of tables, read a group of rows at a time.

    A shuffle permutes groups, and the rows inside each of them.
    """

    class Config(FileSource.Config):
        column: str | tuple[str, ...] = "text"  # Several: texts that belong together, such as two answers.
        prompt: str | None = None  # A column whose text comes first, and is no target.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if problem := problem_of(cfg.column, cfg.prompt):
            raise ConfigError(f"{place_of(self, 'column')}: {problem}")
        self._groups = [self._open_file(file) for file in range(len(self.files))]  # Rows to the end of each group.
        self._set_counts(int(ends[-1]) for ends in self._groups)
        self._cache = Cache(self._read_group, limit=4)

    @abc.abstractmethod
    def _schema(self, file: int) -> tuple[Any, list[int]]:
        """Returns the schema of a file, and the number of rows of each group."""

    @abc.abstractmethod
    def _read_group(self, key: tuple[int, int]) -> Any:
        """Reads the columns of a group, by the numbers of file and group."""

    @property
    def _names(self) -> list[str]:
        """The columns that are read."""
        return names_of(self.cfg.column, self.cfg.prompt)

    def _open_file(self, number: int) -> np.ndarray:
        schema, sizes = self._schema(number)
        file, names = self.files[number], schema.names
        for column in self._names:
            if column not in names:
                hint = did_you_mean(column, names) or f" It has: {', '.join(names)}."
                raise ConfigError(f"{place_of(self, 'column')}: {file} has no column {column!r}.{hint}")
            self._check_type(column, schema.field(column).type, file)
        if not sum(sizes):
            raise DataError(f"{file}: the table has no rows. Remove the file, or leave it out.")
        return np.cumsum(sizes)

    def _check_type(self, column: str, kind: Any, file: str) -> None:
        types = optional_import("pyarrow.types", component=self)
        kind = kind.value_type if types.is_dictionary(kind) else kind
        is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        is_parts = is_list and types.is_struct(kind.value_type)
        if not is_text and not is_parts and not (is_list and types.is_integer(kind.value_type)):
            raise ConfigError(
                f"{place_of(self, 'column')}: column {column!r} of {file} holds {kind}. "
                "Expected text, or lists of token ids."
            )

    def _read(self, file: int, at: int) -> Document:
        group = int(np.searchsorted(self._groups[file], at, side="right"))
        start = int(self._groups[file][group - 1]) if group else 0
        with self._cache.use((file, group)) as table:
            cells = {name: table.column(name)[at - start] for name in self._names}
        record = {name: self._value(name, cell, self._place(file, at)) for name, cell in cells.items()}
        return document_of_record(record, self.cfg.column, self.cfg.prompt, lambda: self._place(file, at), "column")

    def _value(self, column: str, cell: Any, place: str) -> Any:
        try:
            values = getattr(cell, "values", None)
            if values is not None and cell.is_valid and "struct" not in str(values.type):
                return values.to_numpy()
            return cell.as_py()
        except ValueError as e:  # Not UTF-8, or a null among the token ids.
            raise DataError(f"{place}: column {column!r} cannot be read: {e}") from e

    @property
    def group(self) -> int:
        return group_size(self.cfg.column)

    def _place(self, file: int, at: int) -> str:
        return f"{self.files[file]}: row {at}"

    def blocks(self) -> np.ndarray | None:
        return np.concatenate([np.diff(ends, prepend=0) for ends in self._groups])


class Parquet(Table):
    """Documents in a column of Parquet files: strings, or lists of token ids. Needs the extra `data`.

    Pages are checked against their checksums where the file has them (`write_page_checksum=True` in pyarrow, which does
    not write them by default): damage in other files may go unseen.

    A row is read together with its row group.
    """

    class Config(Table.Config):
        pass

    def _schema(self, file: int) -> tuple[Any, list[int]]:
        pq = optional_import("pyarrow.parquet", component=self)
        try:
            with pq.ParquetFile(self._paths[file]) as table:
                return table.schema_arrow, [table.metadata.row_group(i).num_rows for i in range(table.num_row_groups)]
        except (ValueError, OSError) as e:  # pyarrow.ArrowInvalid is a ValueError.
            raise DataError(f"{self.files[file]}: not a Parquet file that can be read: {e}") from e

    def _read_group(self, key: tuple[int, int]) -> Any:
        file, group = key
        pq = optional_import("pyarrow.parquet", component=self)
        try:
            with pq.ParquetFile(self._paths[file], page_checksum_verification=True) as table:
                return table.read_row_group(group, columns=self._names, use_threads=False)
        except (ValueError, OSError) as e:
            raise DataError(f"{self.files[file]}: row group {group} cannot be read: {e}\n  Get the file again.") from e
