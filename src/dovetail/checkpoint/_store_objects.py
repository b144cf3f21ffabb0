# SPDX-License-Identifier: Apache-2.0
"""A store of objects, where nothing can be renamed: a step is finished when the object that says so is there.

    finished/step_40.json            the mark: names the data of step 40, holds its manifest; written last, by one PUT
    data/step_40-3f2a91c0/...        the data: what each process wrote, under a name that no other attempt has
    making/step_40-3f2a91c0          that this data is being made or deleted
    steps.json                       what is written down about the steps, besides themselves
    corrupt/step_40-3f2a91c0.json    a mark that was set aside: its data is damaged, and there for whoever examines it

Deleting begins with the mark. Data without a mark is never read, and goes away in the next `prepare`, which finds it by
what is under `making`: it need not list the data.
"""

import contextlib
import dataclasses
import re
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import Array

from dovetail.config import ConfigError
from dovetail.storage import Objects, reason

from ._errors import CheckpointError, CorruptionError, damaged
from ._files import FileSum, seal, sum_bytes, unseal
from ._layout import Place
from ._leaves import LeafInfo
from ._notes import Notes, ObjectNotes
from ._object_files import ObjectFiles
from ._step import MANIFEST, Manifest, parse_manifest
from ._step_files import StepFiles
from ._store import Store

_MARK = re.compile(r"step_(0|[1-9]\d*)\.json\Z")
_DATA = re.compile(r"(step_\d+)-[0-9a-f]{8}\Z")


@dataclasses.dataclass(frozen=True)
class _Mark:
    """What the mark of a step says."""

    data: str  # The name of its data.
    manifest: str

    def to_bytes(self) -> bytes:
        return seal(dataclasses.asdict(self))


class ObjectStore(Store):
    """Steps in Amazon S3, what speaks its language, or Google's store."""

    def __init__(self, url: str, *, where: str, seconds: float) -> None:
        """`seconds`: in which a request is answered, or has failed."""
        self._objects = Objects(url, where=where, seconds=seconds, error=CheckpointError)
        self._marked: set[str] = set()  # Steps whose mark was sent: it may be there, whatever the answer was.

    @property
    def where(self) -> str:
        return self._objects.url

    def name(self, step: int) -> str:
        return f"{self.where}/step_{step}"

    def steps(self) -> list[int]:
        found = [_MARK.match(key) for key in self._objects.keys("finished/")]
        return sorted(int(match[1]) for match in found if match)

    def notes(self) -> Notes:
        return ObjectNotes(self._objects)

    def reach(self) -> None:
        probe = f"making/probe-{uuid.uuid4().hex[:8]}"
        try:
            self._objects.write(probe, b"")
            self._objects.delete(probe)
        except CheckpointError as e:
            raise self._cannot_be_written(e) from e

    def prepare(self) -> None:
        try:
            for name in self._objects.keys("making/"):
                self._clean(name)
        except CheckpointError as e:
            raise self._cannot_be_written(e) from e

    def _cannot_be_written(self, error: CheckpointError) -> ConfigError:
        return ConfigError(
            f"checkpoint directory {self.where} cannot be written: {error}\n"
            "  Keys, region and endpoint of S3 come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and\n"
            "  AWS_ENDPOINT_URL, or the files of the AWS tools; the bucket must exist."
        )

    def _clean(self, name: str) -> None:
        """Removes what a killed process has left, and the note of it."""
        if match := _DATA.match(name):
            mark = self._objects.read(f"finished/{match[1]}.json")
            if mark is None or f'"{name}"'.encode() not in mark:
                self._objects.delete_all(f"data/{name}/")
        self._objects.delete(f"making/{name}")

    def begin(self, step: int) -> str:
        making = f"step_{step}-{uuid.uuid4().hex[:8]}"
        self._objects.write(f"making/{making}", b"")
        return making

    def being_made(self, making: str) -> StepFiles:
        return ObjectFiles(self._objects, f"data/{making}/")

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
        for name, data in rest.items():
            self._objects.write(f"data/{making}/{name}", data)
        sums = {name: sum_bytes(data) for name, data in rest.items()}
        mark = _Mark(making, Manifest(step, leaves, sums, places).to_bytes().decode()).to_bytes()
        guard()
        if replace:
            self._set_aside(step)
        self._marked.add(making)
        if not self._objects.create(f"finished/step_{step}.json", mark):
            raise CheckpointError("another run has saved this step meanwhile")
        with contextlib.suppress(CheckpointError):  # Else the next `prepare` does.
            self._objects.delete(f"making/{making}")

    def _set_aside(self, step: int) -> None:
        mark = self._objects.read(f"finished/step_{step}.json")
        if mark is not None:
            self._objects.write(f"corrupt/step_{step}-{zlib.crc32(mark):08x}.json", mark)
            self._objects.delete(f"finished/step_{step}.json")

    def abandon(self, making: str) -> None:
        if making not in self._marked:
            with contextlib.suppress(CheckpointError):
                self._clean(making)

    def discard(self, step: int) -> None:
        try:
            mark = self._objects.read(f"finished/step_{step}.json")
            name = None
            with contextlib.suppress(CorruptionError):
                name = _read_mark(self.name(step), mark).data
            if name is not None:
                self._objects.write(f"making/{name}", b"")
            self._objects.delete(f"finished/step_{step}.json")
            if name is not None:
                self._clean(name)
        except CheckpointError as e:
            raise CheckpointError(f"checkpoint {self.name(step)} is not deleted: {reason(e)}") from e

    def free(self) -> int | None:
        return None

    def read_record(self) -> bytes | None:
        return self._objects.read("steps.json")

    def write_record(self, data: bytes) -> None:
        self._objects.write("steps.json", data)

    def _mark(self, step: int) -> _Mark:
        return _read_mark(self.name(step), self._objects.read(f"finished/step_{step}.json"))

    def manifest(self, step: int) -> Manifest:
        return parse_manifest(self.name(step), self._mark(step).manifest.encode())

    def check(self, step: int, manifest: Manifest) -> None:
        if problems := self.damaged_files(step, manifest):
            raise damaged(self.name(step), problems)

    def read(self, step: int, manifest: Manifest, name: str) -> bytes:
        if name not in manifest.files:
            raise damaged(self.name(step), [f"{MANIFEST}: it does not list {name!r}."])
        data = self._objects.read(f"data/{self._mark(step).data}/{name}")
        problem = _problem(name, data, manifest.files[name])
        if data is None or problem:
            raise damaged(self.name(step), [problem or f"{name}: it is gone."])
        return data

    def files(self, step: int) -> StepFiles:
        return ObjectFiles(self._objects, f"data/{self._mark(step).data}/")

    def load_by_orbax(self, step: int, wanted: Mapping[str, Any]) -> dict[str, Array]:
        raise damaged(self.name(step), [f"{MANIFEST}: it is of format 1, which no store of objects has ever had."])

    def damaged_files(self, step: int, manifest: Manifest) -> Sequence[str]:
        data, names = self._mark(step).data, list(manifest.files)
        found = self._objects.read_all([f"data/{data}/{name}" for name in names])
        pairs = zip(names, found, strict=True)
        return [problem for name, each in pairs if (problem := _problem(name, each, manifest.files[name]))]


def _problem(name: str, data: bytes | None, expected: FileSum) -> str | None:
    if data is None:
        return f"{name}: it is gone."
    if len(data) != expected["size"]:
        return f"{name}: {len(data)} bytes, {expected['size']} were written."
    found = sum_bytes(data)["crc32"]
    return None if found == expected["crc32"] else f"{name}: crc32 {found}, {expected['crc32']} was written."


def _read_mark(name: str, data: bytes | None) -> _Mark:
    try:
        if data is None:
            raise ValueError("it is gone")
        mark = _Mark(**unseal(data))
        if not _DATA.match(mark.data):
            raise ValueError(f"it names {mark.data!r:.80} as its data")
        return mark
    except (ValueError, TypeError, AttributeError, RecursionError) as e:
        raise damaged(name, [f"{MANIFEST}: {reason(e)}"]) from e
