# SPDX-License-Identifier: Apache-2.0
"""`Checkpointer`: saves the state of a run in the background, and restores the newest step onto any mesh."""

import dataclasses
import json
import logging
import operator
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import jax
import numpy as np
from jax import Array

from dovetail.config import REQUIRED, Component, ConfigBase, ConfigError, to_json

from ._arrays import load, start_writing, verify
from ._background import start_thread
from ._directory import discard, expired, finished_steps, prepare, set_aside, step_path, temporary_path
from ._errors import CheckpointError, CorruptionError, reason
from ._files import sync
from ._fingerprint import Fingerprint, fingerprint
from ._leaves import LeafInfo, check_abstract, check_fits, check_savable, describe, flatten
from ._processes import add_up, barrier, is_primary, next_number, worst
from ._step import CONFIG, DATA_STATE, FILES, Manifest, check_files, read_file, read_manifest, write_part, write_rest

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_OnCorruption = Literal["error", "fallback"]
_OK, _DAMAGED, _FAILED = range(3)
_PREFIX = f"{FILES}/"


@dataclasses.dataclass(frozen=True)
class Restored:
    """What `Checkpointer.restore` found."""

    step: int
    state: Any  # In the structure of the abstract state, on its shardings.
    data_state: Any
    skipped: Mapping[int, str] = dataclasses.field(default_factory=dict)  # Newer steps that are damaged, and how.


@dataclasses.dataclass(frozen=True)
class StoredConfig:
    """The config of a run and the files that travel with it."""

    step: int
    config: str  # JSON: `dovetail.config.from_json` makes the config of it.
    files: Mapping[str, bytes]
    skipped: Mapping[int, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Save:
    """A save in progress."""

    step: int
    leaves: Mapping[str, LeafInfo]
    fingerprints: Mapping[str, Fingerprint]
    rest: Mapping[str, bytes]  # Files other than arrays.
    finish_arrays: Callable[[], None]
    number: int = dataclasses.field(default_factory=next_number)


class Checkpointer(Component):
    """Saves and restores the state of a run.

    All processes of the run make one and call the same methods in the same order, from one thread. The directory is
    theirs together: a POSIX file system that all of them see. One run at a time saves to it; others may read.
    """

    class Config(Component.Config):
        directory: str = REQUIRED
        keep: int | None = 3  # The newest this many steps are kept; None: all of them.
        keep_every: int | None = None  # Steps that are multiples of it are kept too.
        asynchronous: bool = True  # Whether `save` returns while files are still being written.
        compress: bool = False  # Weights hardly compress: it takes longer and saves about 10 %.
        on_corruption: Literal["error", "fallback"] = "error"  # fallback: `restore` goes on to the next older step.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        where = self._path or "checkpointer"
        for name in ("keep", "keep_every"):
            if (count := getattr(cfg, name)) is not None and count < 1:
                raise ConfigError(f"{where}.{name}: expected a number of 1 or more, or None; found {count}.")
        if "://" in cfg.directory:
            raise ConfigError(
                f"{where}.directory: expected a path in a file system, found {cfg.directory!r}. Mount it."
            )
        self.directory = Path(cfg.directory).expanduser().absolute()
        self._is_prepared = False
        self._damaged: set[int] = set()  # Steps that a fallback has passed over.
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None

    def prepare(self) -> None:
        """Makes the directory and proves that it can be written, as the first `save` does, but before training."""
        if not self._is_prepared:
            self._together(lambda: prepare(self.directory))
            self._is_prepared = True

    def save(
        self,
        step: int,
        state: Any,
        *,
        config: ConfigBase,
        data_state: Any = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Saves `state`, a tree of arrays, as `step`; in the background, unless configured otherwise.

        Returns when the state has been copied to the host: the caller may donate it. First waits for the save before
        this one, and raises what that one met. A step is there with all its files or not at all.

        Args:
            step: Newer than all that are there.
            state: Leaves are `jax.Array`s, sharded in any way.
            config: The config of the run, for `load_config`.
            data_state: JSON data; with several processes that of the first one.
            files: What else is needed to use the model, such as a tokenizer, by file name.
        """
        self.wait()
        step = operator.index(step)
        leaves = flatten(state)
        check_savable(leaves)
        rest = {CONFIG: to_json(config).encode(), DATA_STATE: _json_text(data_state).encode(), **_files(files or {})}
        self.prepare()
        self._together(lambda: self._make_room(step))
        try:
            fingerprints = {path: fingerprint(leaf) for path, leaf in leaves.items()}
            finish = start_writing(temporary_path(self.directory, step), leaves, compress=self.cfg.compress)
        except Exception as e:
            raise self._not_saved(step, e) from e
        infos = {path: describe(leaf) for path, leaf in leaves.items()}
        save = _Save(step, infos, fingerprints, rest, finish)
        self._thread = start_thread(lambda: self._finish(save), name=f"save step {step}")
        if not self.cfg.asynchronous:
            self.wait()

    def restore(self, abstract_state: Any, step: int | None = None, *, partial: bool = False) -> Restored:
        """Returns the newest step (or `step`), verified, in the structure and on the shardings of `abstract_state`.

        Its leaves are `jax.ShapeDtypeStruct`s with a sharding, or arrays; the mesh need not be the one the step was
        saved from. With `partial`, it may lack leaves that are on disk, such as the optimizer's.
        """
        self.wait()
        wanted = flatten(abstract_state)
        check_abstract(wanted)

        def read_step(path: Path) -> Restored:
            manifest = self._together(lambda: _checked_manifest(path), everywhere=True)
            check_fits(str(path), manifest.leaves, wanted, partial=partial)
            leaves = self._together(lambda: load(path, manifest, wanted), everywhere=True)
            self._verify(path, manifest, leaves)
            data_state = json.loads(read_file(path, manifest, DATA_STATE))
            state = jax.tree.unflatten(jax.tree.structure(abstract_state), [leaves[name] for name in wanted])
            return Restored(manifest.step, state, data_state)

        restored, skipped = _first_good(self.directory, step, self.cfg.on_corruption, read_step)
        self._damaged |= skipped.keys()
        return dataclasses.replace(restored, skipped=skipped)

    def _verify(self, path: Path, manifest: Manifest, leaves: Mapping[str, Array]) -> None:
        prints = {name: fingerprint(leaf) for name, leaf in leaves.items()}  # All dispatched, then the first awaited.
        totals = add_up(np.array([found.local() for found in prints.values()], np.uint32))
        agree = {name: found.replicas_agree() for name, found in prints.items()}
        self._together(lambda: verify(path, manifest, dict(zip(prints, totals, strict=True)), agree), everywhere=True)

    def steps(self) -> list[int]:
        """Returns the finished steps, oldest first. Whether they are undamaged shows when one is restored."""
        return finished_steps(self.directory)

    def latest(self) -> int | None:
        """Returns the newest finished step."""
        return max(self.steps(), default=None)

    def discard_after(self, step: int) -> None:
        """Deletes all steps newer than `step`, to go on from there."""
        self.wait()
        newer = [number for number in self.steps() if number > step]
        self._together(lambda: [discard(step_path(self.directory, number)) for number in reversed(newer)])

    def wait(self) -> None:
        """Waits for the save in progress, and raises its error if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Waits as `wait` does. There is nothing else to release."""
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except CheckpointError:  # Logged already; it must not hide the error that ends the block.
            if error is None:
                raise

    def _make_room(self, step: int) -> None:
        """Makes the directory for a new step, if it is one."""
        good = [number for number in self.steps() if number not in self._damaged]
        if step < 0:
            raise ConfigError(f"checkpoint {self.directory}: a step is a number of 0 or more, found {step}.")
        if good and step <= good[-1]:
            there = "it" if step == good[-1] else f"step_{good[-1]}"
            raise ConfigError(
                f"checkpoint {step_path(self.directory, step)} is not saved: {there} is there already.\n"
                f"  Restore the newest step, call discard_after to go back to an older one, or use another directory."
            )
        try:
            temporary_path(self.directory, step).mkdir()
        except OSError as e:
            raise self._not_saved(step, e) from e

    def _finish(self, save: _Save) -> None:
        """The part of a save that runs in the background."""
        error: Exception | None = None
        # Whoever fails still comes to both barriers, so that nobody waits in vain.
        for number, part in enumerate((self._write_part, self._commit)):
            try:
                if error is None:
                    part(save)
            except Exception as e:
                error = e
            try:
                barrier(f"save {save.number}.{number}")
            except Exception as e:
                error = error or e
        if error is None and not step_path(self.directory, save.step).is_dir():
            error = RuntimeError("another process failed; see its log")
        if error is not None:
            self._error = self._not_saved(save.step, error)
            self._error.__cause__ = error
            _log.error("%s", self._error)

    def _write_part(self, save: _Save) -> None:
        save.finish_arrays()
        prints = {path: found.local() for path, found in save.fingerprints.items()}
        write_part(temporary_path(self.directory, save.step), prints, jax.process_index(), jax.process_count())

    def _commit(self, save: _Save) -> None:
        if not is_primary():
            return
        path, final = temporary_path(self.directory, save.step), step_path(self.directory, save.step)
        write_rest(path, step=save.step, leaves=save.leaves, rest=save.rest, processes=jax.process_count())
        if save.step in self._damaged and final.exists():
            set_aside(final)
        path.rename(final)
        sync(self.directory)
        self._damaged.discard(save.step)
        self._discard_expired()

    def _discard_expired(self) -> None:
        good = set(self.steps()) - self._damaged
        for step in expired(good, keep=self.cfg.keep, keep_every=self.cfg.keep_every):
            try:
                discard(step_path(self.directory, step))
            except OSError as e:  # The new step is safe, and what is left of the old one does no harm.
                _log.warning("checkpoint %s is not deleted: %s", step_path(self.directory, step), reason(e))

    def _not_saved(self, step: int, error: Exception) -> CheckpointError:
        if is_primary():
            shutil.rmtree(temporary_path(self.directory, step), ignore_errors=True)
        try:
            newest = self.latest()
        except ConfigError:  # The directory itself is gone or broken, which `error` tells.
            newest = None
        left = "There is no finished step." if newest is None else f"The newest finished step is step_{newest}."
        return CheckpointError(f"checkpoint {step_path(self.directory, step)} was not saved: {reason(error)}\n  {left}")

    def _together(self, work: Callable[[], _T], *, everywhere: bool = False) -> _T:
        """Does something in the first process, or `everywhere`; if one process fails, all of them raise."""
        error, result = None, None
        try:
            if everywhere or is_primary():
                result = work()
        except Exception as e:
            error = e
        found = worst(_OK if error is None else _DAMAGED if isinstance(error, CorruptionError) else _FAILED)
        if found == _OK:
            return result  # pyright: ignore[reportReturnType]
        if error is not None and (found == _DAMAGED or not isinstance(error, CorruptionError)):
            raise error
        kind = CorruptionError if found == _DAMAGED else CheckpointError  # Of the same kind in all processes.
        raise kind(f"checkpoint {self.directory}: another process failed; see its log.") from error


def load_config(directory: str, step: int | None = None, *, on_corruption: _OnCorruption = "error") -> StoredConfig:
    """Returns the config and the files of the newest step (or `step`). Reads no arrays."""

    def read_step(path: Path) -> StoredConfig:
        manifest = read_manifest(path)
        names = [name.removeprefix(_PREFIX) for name in manifest.files if name.startswith(_PREFIX)]
        _check_names(names)  # Whoever writes them elsewhere relies on it.
        files = {name: read_file(path, manifest, _PREFIX + name) for name in names}
        return StoredConfig(manifest.step, read_file(path, manifest, CONFIG).decode(), files)

    found, skipped = _first_good(Path(directory).expanduser().absolute(), step, on_corruption, read_step)
    return dataclasses.replace(found, skipped=skipped)


def _first_good(
    directory: Path, step: int | None, on_corruption: _OnCorruption, read_step: Callable[[Path], _T]
) -> tuple[_T, dict[int, str]]:
    """Reads the newest step, or `step`; as long as it is damaged and that is allowed, the next older one."""
    steps = finished_steps(directory)
    if not steps:
        raise ConfigError(f"checkpoint {directory}: there is no finished step.")
    if step is not None and step not in steps:
        raise ConfigError(f"checkpoint {directory}: there is no step {step}, only {_listed(steps)}.")
    skipped: dict[int, str] = {}
    candidates = [number for number in reversed(steps) if step is None or number <= step]
    for number, older in zip(candidates, [*candidates[1:], None], strict=True):
        try:
            return read_step(step_path(directory, number)), skipped
        except CorruptionError as e:
            if on_corruption == "fallback":
                _log.warning("%s\n  Falling back to an older step.", e)
                skipped[number] = str(e)
            elif older is None:
                raise
            else:
                hint = f"The next older step is {older}: pass step={older}, or on_corruption='fallback'."
                raise CorruptionError(f"{e}\n  {hint}") from e
    raise CorruptionError("\n".join([f"checkpoint {directory}: no step is undamaged.", *skipped.values()]))


def _checked_manifest(path: Path) -> Manifest:
    manifest = read_manifest(path)
    check_files(path, manifest)
    return manifest


def _listed(steps: Iterable[int]) -> str:
    return ", ".join(map(str, steps))


def _json_text(data_state: Any) -> str:
    try:
        text = json.dumps(data_state, allow_nan=False)
        changed = json.loads(text) != data_state
    except (TypeError, ValueError) as e:
        raise ConfigError(f"data_state is not JSON data: {e}.") from e
    if changed:
        raise ConfigError("data_state would not come back from JSON as it is: use lists, not tuples, and string keys.")
    return text


def _files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    _check_names(files)
    for name, data in files.items():
        if not isinstance(data, bytes):
            raise ConfigError(f"files: expected bytes as the content of {name!r}, found {type(data).__name__}.")
    return {_PREFIX + name: data for name, data in files.items()}


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if not name or "/" in name or "\0" in name or name in (".", ".."):
            raise ConfigError(f"files: expected plain file names, found {name!r}.")
