# SPDX-License-Identifier: Apache-2.0
"""`Store`: where the steps of a run lie, and how one of them becomes finished."""

import abc
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import Array

from dovetail.storage import reason

from ._errors import damaged
from ._layout import Place
from ._leaves import LeafInfo
from ._notes import Notes
from ._step import Manifest
from ._step_files import StepFiles


class Store(abc.ABC):
    """The interface: a directory of steps. A step is finished or not there; what is half written has no number.

    A step is made under a name of its own, `making`, which the first process gets from `begin` and tells the others.
    Then all processes start and finish the arrays and write their part, and the first one commits. What a process that
    was killed has left behind is never taken for a step, and goes away in the next `prepare`.

    Methods for one process alone say so; all others may be called by any.
    """

    @property
    @abc.abstractmethod
    def where(self) -> str:
        """The directory, as messages name it."""

    @abc.abstractmethod
    def name(self, step: int) -> str:
        """Returns a finished step, as messages name it."""

    @abc.abstractmethod
    def steps(self) -> list[int]:
        """Returns the finished steps, oldest first; none if there is no such directory (which `prepare` finds out)."""

    # Writing.

    @abc.abstractmethod
    def notes(self) -> Notes:
        """Returns the small files beside the steps, where there is a directory."""

    @abc.abstractmethod
    def reach(self) -> None:
        """Makes the directory. One with something else in it and not one step is taken for a mistake."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Proves that steps can be written, and removes what broken saves have left. Of the first, the only writer."""

    @abc.abstractmethod
    def begin(self, step: int) -> str:
        """Makes room for a new step; returns its name in the making. Of the first process."""

    @abc.abstractmethod
    def being_made(self, making: str) -> StepFiles:
        """Returns the files of a step in the making, for each process to write its arrays."""

    @abc.abstractmethod
    def commit(
        self,
        making: str,
        step: int,
        leaves: Mapping[str, LeafInfo],
        places: Mapping[str, Place],
        rest: Mapping[str, bytes],
        *,
        replace: bool,
        guard: Callable[[], None],
    ) -> None:
        """Finishes a step: writes the files other than arrays and the manifest. Of the first process.

        Args:
            replace: whether a step of that number, which is damaged, is set aside.
            guard: is called right before the step becomes one, and raises if it must not.
        """

    @abc.abstractmethod
    def abandon(self, making: str) -> None:
        """Removes what there is of a step in the making, as far as possible. Of the first process. Raises nothing."""

    @abc.abstractmethod
    def discard(self, step: int) -> None:
        """Deletes a finished step: first so that it is none any more. Of the first process."""

    @abc.abstractmethod
    def free(self) -> int | None:
        """Returns how many bytes can be written; None if there is no limit to know of."""

    @abc.abstractmethod
    def read_record(self) -> bytes | None:
        """Returns what is written down about the steps, besides themselves; None if nothing is."""

    @abc.abstractmethod
    def write_record(self, data: bytes) -> None:
        """Writes that anew, all of it or nothing. Of the first process."""

    # Reading.

    @abc.abstractmethod
    def manifest(self, step: int) -> Manifest:
        """Returns the manifest of a finished step; a CorruptionError if it is not as it was written."""

    @abc.abstractmethod
    def check(self, step: int, manifest: Manifest) -> None:
        """Raises a CorruptionError if something of a step is plainly missing or changed. Reads no array."""

    @abc.abstractmethod
    def read(self, step: int, manifest: Manifest, name: str) -> bytes:
        """Returns the content of a file of the step other than arrays, checked."""

    @abc.abstractmethod
    def files(self, step: int) -> StepFiles:
        """Returns the files of a finished step, to read its arrays."""

    @abc.abstractmethod
    def load_by_orbax(self, step: int, wanted: Mapping[str, Any]) -> dict[str, Array]:
        """Returns leaves of a step of format 1 in their stored form, laid out as `wanted` says."""

    @abc.abstractmethod
    def damaged_files(self, step: int, manifest: Manifest) -> Sequence[str]:
        """Returns what is wrong with which file in the manifest. Reads all of them."""

    def read_text(self, step: int, manifest: Manifest, name: str) -> str:
        """Returns the content of a file that is text, checked."""
        try:
            return self.read(step, manifest, name).decode()
        except UnicodeDecodeError as e:
            raise damaged(self.name(step), [f"{name}: it is not text in UTF-8."]) from e

    def read_json(self, step: int, manifest: Manifest, name: str) -> Any:
        """Returns the JSON data in a file, checked."""
        text = self.read_text(step, manifest, name)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as e:
            raise damaged(self.name(step), [f"{name}: {reason(e)}"]) from e
