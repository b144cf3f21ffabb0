# SPDX-License-Identifier: Apache-2.0
"""`Checkpointer`: saves the state of a run in the background, and restores the newest step onto any mesh."""

import dataclasses
import functools
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
from dovetail.parallel import all_values, is_first, together

from ._arrays import load, start_writing, verify
from ._background import start_thread
from ._directory import discard, expired, finished_steps, prepare, set_aside, step_path, temporary_path
from ._errors import CheckpointError, CorruptionError, ElsewhereError, reason
from ._files import sync
from ._fingerprint import Fingerprint, fingerprint
from ._leaves import LeafInfo, check_abstract, check_fits, check_savable, describe, flatten
from ._processes import add_up, barrier, next_number
from ._step import (
    CONFIG,
    DATA_STATE,
    FILES,
    Manifest,
    check_files,
    has_failed,
    note_failure,
    read_file,
    read_json,
    read_manifest,
    read_text,
    write_part,
    write_rest,
)

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_OnCorruption = Literal["error", "fallback"]
_PREFIX = f"{FILES}/"


@dataclasses.dataclass(frozen=True)
class Restored:
    """What `Checkpointer.restore` found."""

    step: int
    state: Any  # In the structure that was asked for, on its shardings.
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
        # What `restore` does when the newest step is damaged; fallback: it says so, and takes the next older one.
        on_corruption: Literal["error", "fallback"] = "fallback"

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
            together(lambda: prepare(self.directory))
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
            files: What else is needed to use the model, by file name.
        """
        self.wait()
        step = operator.index(step)

        def checked() -> tuple[dict[str, Any], dict[str, bytes]]:
            check_savable(leaves := flatten(state))
            texts = {CONFIG: to_json(config), DATA_STATE: _json_text(data_state)}
            return leaves, {name: text.encode() for name, text in texts.items()} | _files(files or {})

        leaves, rest = together(checked, everywhere=True)
        self.prepare()
        together(lambda: self._make_room(step))
        temporary = temporary_path(self.directory, step)
        fingerprints = self._started(step, lambda: {path: fingerprint(leaf) for path, leaf in leaves.items()})
        finish = self._started(
            step,
            lambda: start_writing(temporary, leaves, compress=self.cfg.compress, in_vain=lambda: has_failed(temporary)),
        )
        infos = {path: describe(leaf) for path, leaf in leaves.items()}
        save = _Save(step, infos, fingerprints, rest, finish)
        self._thread = start_thread(lambda: self._finish(save), name=f"save step {step}")
        if not self.cfg.asynchronous:
            self.wait()

    def _started(self, step: int, work: Callable[[], _T]) -> _T:
        """Returns what `work` does for a save in each process; if one fails, none of them saves."""

        def attempted() -> _T:
            try:
                return work()
            except Exception as e:
                raise self._not_saved(step, e) from e

        try:
            return together(attempted, everywhere=True)
        except Exception:
            if is_first():
                shutil.rmtree(temporary_path(self.directory, step), ignore_errors=True)
            raise

    def restore(self, abstract_state: Any, step: int | None = None) -> Restored:
        """Returns the newest step (or `step`), verified, in the structure and on the shardings of `abstract_state`.

        Its leaves are `jax.ShapeDtypeStruct`s with a sharding, or arrays; the mesh need not be the one the step was
        saved from.
        """
        restored = self._restored(flatten(abstract_state), step, partial=False)
        leaves = [restored.state[path] for path in flatten(abstract_state)]
        return dataclasses.replace(restored, state=jax.tree.unflatten(jax.tree.structure(abstract_state), leaves))

    def restore_parts(self, parts: Mapping[str, Any], step: int | None = None) -> Restored:
        """Returns some leaves of the newest step (or `step`), verified, by path; the others are not read.

        Args:
            parts: what to restore, by path as in `flatten`, in the form that `restore` takes.
        """
        return self._restored(parts, step, partial=True)

    def _restored(self, wanted: Mapping[str, Any], step: int | None, *, partial: bool) -> Restored:
        self.wait()
        check_abstract(wanted)

        def read_step(path: Path) -> Restored:
            def opened() -> tuple[Manifest, Any]:
                manifest = read_manifest(path)
                check_files(path, manifest)
                check_fits(str(path), manifest.leaves, wanted, partial=partial)
                return manifest, read_json(path, manifest, DATA_STATE)

            manifest, data_state = together(opened, everywhere=True)
            leaves = together(lambda: load(path, manifest, wanted), everywhere=True)
            self._verify(path, manifest, leaves)
            return Restored(manifest.step, leaves, data_state)

        restored, skipped = _first_good(self.directory, self.steps(), step, self.cfg.on_corruption, read_step)
        self._damaged |= skipped.keys()
        if is_first():
            _warn_of(skipped, restored.step)
        return dataclasses.replace(restored, skipped=skipped)

    def _verify(self, path: Path, manifest: Manifest, leaves: Mapping[str, Array]) -> None:
        prints = {name: fingerprint(leaf) for name, leaf in leaves.items()}  # All dispatched, then the first awaited.
        totals = add_up(np.array([found.local() for found in prints.values()], np.uint32))
        agree = {name: found.replicas_agree() for name, found in prints.items()}
        together(lambda: verify(path, manifest, dict(zip(prints, totals, strict=True)), agree), everywhere=True)

    def steps(self) -> list[int]:
        """Returns the finished steps, oldest first. Whether they are undamaged shows when one is restored."""
        return together(lambda: finished_steps(self.directory))

    def leaves(self, step: int) -> Mapping[str, LeafInfo]:
        """Returns what the leaves of a step are, by path. Reads no arrays."""
        return together(lambda: read_manifest(step_path(self.directory, step)), everywhere=True).leaves

    def latest(self) -> int | None:
        """Returns the newest finished step."""
        return max(self.steps(), default=None)

    def discard_after(self, step: int) -> None:
        """Deletes all steps newer than `step`, to go on from there."""
        self.wait()
        newer = [number for number in self.steps() if number > step]
        together(lambda: [discard(step_path(self.directory, number)) for number in reversed(newer)])

    def wait(self) -> None:
        """Waits for the save in progress, and raises its error if it failed: in all processes, if it did in one."""
        if self._thread is None:
            return
        error = self._joined()
        # Those who only gave up because another failed let that one speak first.
        gave_up = error is not None and isinstance(error.__cause__, ElsewhereError)
        told = all_values(None if error is None else [gave_up, str(error)])
        failed = min(((each[0], rank, each[1]) for rank, each in enumerate(told) if each), default=None)
        if failed is None:
            return
        _, rank, text = failed
        if rank == jax.process_index() and error is not None:
            raise error
        raise CheckpointError(f"{text}\n  (Process {rank} of {jax.process_count()} found this.)") from error

    def _joined(self) -> CheckpointError | None:
        """Waits for the save in progress; returns the error it met in this process."""
        if self._thread is not None:
            self._thread.join()
        error, self._thread, self._error = self._error, None, None
        return error

    def close(self) -> None:
        """Waits as `wait` does. There is nothing else to release."""
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # Not together: the other processes may be elsewhere. An error of the save has been logged.
            self._joined()

    def _make_room(self, step: int) -> None:
        """Makes the directory for a new step, if it is one."""
        good = [number for number in finished_steps(self.directory) if number not in self._damaged]
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
                note_failure(temporary_path(self.directory, save.step))
            try:
                barrier(f"save {save.number}.{number}")
            except Exception as e:
                error = error or e
        if error is not None:
            self._error = self._not_saved(save.step, error)
            self._error.__cause__ = error
            _log.error("%s", self._error)

    def _write_part(self, save: _Save) -> None:
        save.finish_arrays()
        prints = {path: found.local() for path, found in save.fingerprints.items()}
        write_part(temporary_path(self.directory, save.step), prints, jax.process_index(), jax.process_count())

    def _commit(self, save: _Save) -> None:
        if has_failed(temporary_path(self.directory, save.step)):
            raise ElsewhereError
        if not is_first():
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
        good = set(finished_steps(self.directory)) - self._damaged
        for step in expired(good, keep=self.cfg.keep, keep_every=self.cfg.keep_every):
            try:
                discard(step_path(self.directory, step))
            except OSError as e:  # The new step is safe, and what is left of the old one does no harm.
                _log.warning("checkpoint %s is not deleted: %s", step_path(self.directory, step), reason(e))

    def _not_saved(self, step: int, error: Exception) -> CheckpointError:
        if is_first():
            shutil.rmtree(temporary_path(self.directory, step), ignore_errors=True)
        try:
            newest = max(finished_steps(self.directory), default=None)
        except ConfigError:  # The directory itself is gone or broken, which `error` tells.
            newest = None
        left = "There is no finished step." if newest is None else f"The newest finished step is step_{newest}."
        return CheckpointError(f"checkpoint {step_path(self.directory, step)} was not saved: {reason(error)}\n  {left}")


def load_config(directory: str, step: int | None = None, *, on_corruption: _OnCorruption = "fallback") -> StoredConfig:
    """Returns the config and the files of the newest step (or `step`). Reads no arrays."""

    def read_step(path: Path) -> StoredConfig:
        manifest = read_manifest(path)
        names = [name.removeprefix(_PREFIX) for name in manifest.files if name.startswith(_PREFIX)]
        _check_names(names)  # Whoever writes them elsewhere relies on it.
        files = {name: read_file(path, manifest, _PREFIX + name) for name in names}
        return StoredConfig(manifest.step, read_text(path, manifest, CONFIG), files)

    where = Path(directory).expanduser().absolute()
    found, skipped = _first_good(where, finished_steps(where), step, on_corruption, read_step)
    _warn_of(skipped, found.step)
    return dataclasses.replace(found, skipped=skipped)


def _first_good(
    directory: Path,
    steps: list[int],
    step: int | None,
    on_corruption: _OnCorruption,
    read_step: Callable[[Path], _T],
) -> tuple[_T, dict[int, str]]:
    """Reads `step`; or the newest of `steps`, and as long as it is damaged and that is allowed, the next older one."""
    if not steps:
        raise ConfigError(f"checkpoint {directory}: there is no finished step.")
    if step is not None and step not in steps:
        raise ConfigError(f"checkpoint {directory}: there is no step {step}, only {_listed(steps)}.")
    skipped: dict[int, str] = {}
    for number in reversed(steps) if step is None else [step]:
        try:
            found = read_step(step_path(directory, number))
        except CorruptionError as e:
            if on_corruption == "error" or step is not None:
                older = [other for other in steps if other < number]
                raise CorruptionError(f"{e}\n  Older steps: {_listed(older)}." if older else str(e)) from e
            skipped[number] = str(e)
        else:
            return found, skipped
    title = [f"checkpoint {directory}: no step is undamaged."] if len(skipped) > 1 else []
    raise CorruptionError("\n".join([*title, *skipped.values()]))


def _warn_of(skipped: Mapping[int, str], step: int) -> None:
    for why in skipped.values():
        _warn(f"{why}\n  Falling back to step_{step}.")


@functools.cache
def _warn(text: str) -> None:
    """Logs a warning, once: the config of a step and its arrays are read one after the other."""
    _log.warning("%s", text)


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
