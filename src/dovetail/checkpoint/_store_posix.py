# SPDX-License-Identifier: Apache-2.0
"""A store in a file system that all processes see: a step gets its name by a rename, when all of it is on disk."""

import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax import Array

from dovetail.storage import reason

from . import _step
from ._directory import discard, finished_steps, prepare, reach, set_aside, step_path, temporary_path
from ._errors import CheckpointError
from ._files import sync, write_file
from ._layout import Place
from ._leaves import LeafInfo
from ._notes import Notes, PosixNotes
from ._orbax import load_by_orbax
from ._step import Manifest
from ._step_files import LocalFiles, StepFiles
from ._store import Store

_RECORD = ".steps.json"


class PosixStore(Store):
    """Steps are directories, `step_4000`; in the making they are `step_4000.NAME.tmp`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def where(self) -> str:
        return str(self._directory)

    def name(self, step: int) -> str:
        return str(step_path(self._directory, step))

    def steps(self) -> list[int]:
        return finished_steps(self._directory)

    def notes(self) -> Notes:
        return PosixNotes(self._directory)

    def reach(self) -> None:
        reach(self._directory)

    def prepare(self) -> None:
        prepare(self._directory)

    def begin(self, step: int) -> str:
        making = temporary_path(self._directory, step, uuid.uuid4().hex[:8])
        making.mkdir()
        (making / _step.ARRAYS).mkdir()
        return making.name

    def being_made(self, making: str) -> StepFiles:
        return LocalFiles(self._directory / making)

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
        path, final = self._directory / making, step_path(self._directory, step)
        _step.write_rest(path, step=step, leaves=leaves, places=places, rest=rest)
        guard()
        if replace and final.exists():
            set_aside(final)
        path.rename(final)
        sync(self._directory)

    def abandon(self, making: str) -> None:
        shutil.rmtree(self._directory / making, ignore_errors=True)

    def discard(self, step: int) -> None:
        try:
            discard(step_path(self._directory, step))
        except OSError as e:
            raise CheckpointError(f"checkpoint {self.name(step)} is not deleted: {reason(e)}") from e

    def free(self) -> int | None:
        try:
            return shutil.disk_usage(self._directory).free
        except OSError:
            return None

    def read_record(self) -> bytes | None:
        try:
            return (self._directory / _RECORD).read_bytes()
        except FileNotFoundError:
            return None

    def write_record(self, data: bytes) -> None:
        draft = self._directory / f"{_RECORD}.tmp"
        draft.unlink(missing_ok=True)
        write_file(draft, data)
        draft.replace(self._directory / _RECORD)
        sync(self._directory)

    def manifest(self, step: int) -> Manifest:
        return _step.read_manifest(step_path(self._directory, step))

    def check(self, step: int, manifest: Manifest) -> None:
        _step.check_files(step_path(self._directory, step), manifest)

    def read(self, step: int, manifest: Manifest, name: str) -> bytes:
        return _step.read_file(step_path(self._directory, step), manifest, name)

    def files(self, step: int) -> StepFiles:
        return LocalFiles(step_path(self._directory, step))

    def load_by_orbax(self, step: int, wanted: Mapping[str, Any]) -> dict[str, Array]:
        return load_by_orbax(step_path(self._directory, step), wanted)

    def damaged_files(self, step: int, manifest: Manifest) -> Sequence[str]:
        return _step.damaged_files(step_path(self._directory, step), manifest)
