# SPDX-License-Identifier: Apache-2.0
"""What an input declares of its batches, from its config alone: all that is needed to compile, to place and to count.

A batch is a dict of arrays. The first dimension of each is the row; rows go to devices and microbatches one by one, so
what belongs together, such as the two answers of a preference, is in one row.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.config import ConfigError

from ._errors import DataError

Batch = dict[str, np.ndarray]  # By the names that a `BatchSpec` declares.
ROW_AXIS = "batch"


@dataclasses.dataclass(frozen=True)
class Field:
    """One array of a batch: its shape and dtype, and the logical axes that a mesh may split it along.

    `padding` is what a row holds that fills up a batch, and counts for nothing; None: what the row before it holds.
    """

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...]  # The first one is "batch".
    padding: float | None = None


@dataclasses.dataclass(frozen=True)
class BatchSpec:
    """The fields of a batch, and how much there is in it, counted in a unit that is told in the singular: "token"."""

    fields: Mapping[str, Field]
    unit: str = "row"
    units: int | None = None  # In a batch without padding; None: as many as it has rows.
    counted: str | None = None  # The field that sums up to the units of a batch; None: it always has `units`.

    def __post_init__(self) -> None:
        wrong = [
            f"{name} is {field.dtype}{list(field.shape)} with axes {field.axes}"
            for name, field in self.fields.items()
            if len(field.axes) != len(field.shape) or field.axes[:1] != (ROW_AXIS,)
        ]
        rows = {field.shape[:1] for field in self.fields.values()}
        wrong += ["they have different numbers of rows"] if len(rows) > 1 else []
        if wrong or not self.fields:
            raise ConfigError(
                f"the fields of a batch: {'; '.join(wrong) or 'there are none'}.\n"
                f"  Each has an axis for each dimension, the first of them {ROW_AXIS!r}, and all have as many rows."
            )

    @property
    def rows(self) -> int:
        """Rows of a batch, over all processes."""
        return next(iter(self.fields.values())).shape[0]

    @property
    def num_units(self) -> int:
        """Units of a batch without padding."""
        return self.rows if self.units is None else self.units

    def count(self, batch: Mapping[str, Any]) -> Any:
        """Returns the units of a batch; of an array on devices, as one."""
        return self.num_units if self.counted is None else batch[self.counted].sum()

    def lengths(self) -> dict[str, int]:
        """Returns the sizes along logical axes other than the row; two fields may not differ in one."""
        found: dict[str, int] = {}
        for name, field in self.fields.items():
            for size, axis in zip(field.shape[1:], field.axes[1:], strict=True):
                if axis is not None and found.setdefault(axis, size) != size:
                    raise ConfigError(
                        f"the fields of a batch: {name!r} has size {size} along {axis!r}, another one {found[axis]}.\n"
                        "  Use None for the axis of one of them, which is then not split."
                    )
        return found

    def fits(self, batch: Mapping[str, Any], shards: int = 1) -> bool:
        """Whether a batch is as declared, or one of so many equal parts of it."""

        def found(name: str) -> tuple[Any, ...]:
            rows, *shape = batch[name].shape
            return (rows * shards, *shape), str(batch[name].dtype)

        declared = {name: (field.shape, field.dtype) for name, field in self.fields.items()}
        return batch.keys() == declared.keys() and all(found(name) == declared[name] for name in batch)

    def filled(self, batch: Mapping[str, np.ndarray], more: int) -> Batch:
        """Returns a batch with more rows at its end, which are padding."""
        if more and all(field.padding is None for field in self.fields.values()):
            raise DataError(
                f"a batch of {self.rows} rows lacks {more}, and the input declares no padding.\n"
                "  Use another batch_size, or give a field a `padding` by which the loss knows what does not count."
            )
        return {name: _filled(batch[name], field.padding, more) for name, field in self.fields.items()}

    def text(self) -> str:
        """Returns the fields in print."""
        return ", ".join(f"{name} {field.dtype}{list(field.shape)}" for name, field in self.fields.items())


def _filled(rows: np.ndarray, padding: float | None, more: int) -> np.ndarray:
    if not more:
        return rows
    last = rows[-1:] if padding is None else np.full_like(rows[-1:], padding)
    return np.concatenate([rows, np.repeat(last, more, axis=0)])


def spec_of(batch: Mapping[str, Any], specs: Sequence[BatchSpec], who: str, shards: int = 1) -> BatchSpec:
    """Returns which of the declared batches this is, or one of so many equal parts of; raises if it is none."""
    for spec in specs:
        if spec.fits(batch, shards):
            return spec
    found = ", ".join(f"{name} {value.dtype}{list(value.shape)}" for name, value in batch.items())
    raise DataError(
        f"{who} gave a batch that it has not declared: {found}.\n"
        f"  Declared: {' or '.join(spec.text() for spec in specs)}.\n"
        "  Change what it gives, or what its Config.batch_specs says."
    )
