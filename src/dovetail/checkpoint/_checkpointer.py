# SPDX-License-Identifier: Apache-2.0
"""`Checkpointer`: saves the state of a run in the background, and restores the newest step onto any mesh."""

import dataclasses
import functools
import itertools
import json
import logging
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import jax
import numpy as np
from jax import Array

from dovetail.config import REQUIRED, Component, ConfigBase, ConfigError, to_json
from dovetail.parallel import all_values, is_first, together
from dovetail.storage import reason

from ._arrays import NOT_ON_DISK, Copied, Written, copy_to_host, damaged_files, differs, load
from ._background import start_thread
from ._beside import PREFIX, check_names, json_text, named_files
from ._errors import CheckpointError, CorruptionError, ElsewhereError, damaged
from ._exchange import from_first, gather_to_first
from ._fingerprint import Fingerprint, fingerprint, to_text
from ._keep import KeepBest, Keeper, check_keep
from ._lease import Lease, LeaseError, drop, hold, let_go
from ._leaves import LeafInfo, check_abstract, check_fits, check_savable, describe, flatten
from ._processes import add_up, barrier, next_number
from ._room import Room
from ._step import CONFIG, DATA_STATE, Manifest, parse_manifest
from ._store import Store
from ._store_open import open_store

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_OnCorruption = Literal["error", "fallback"]


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
    making: str  # Its name in the store until it is finished.
    leaves: Mapping[str, LeafInfo]
    fingerprints: Mapping[str, Fingerprint]
    rest: Mapping[str, bytes]  # Files other than arrays.
    arrays: Copied
    number: int = dataclasses.field(default_factory=next_number)


class Checkpointer(Component):
    """Saves and restores the state of a run.

    All processes of the run make one and call the same methods in the same order, from one thread. The directory is
    theirs together: in a file system or a store of objects that all of them see. One run at a time saves to it; others
    may read.
    """

    class Config(Component.Config):
        directory: str = REQUIRED  # A path, or the URL of a place in a store of objects.
        keep: int | None = 3  # The newest this many steps are kept; None: all of them.
        keep_every: int | None = None  # Steps that are multiples of it are kept too.
        keep_best: KeepBest | None = None  # And the best ones, by what an evaluator reports.
        max_failed_saves: int = 3  # In a row: the run ends with the error of the last of them.
        request_seconds: float = 60.0  # Without an answer from a store of objects, until a save or restore has failed.
        asynchronous: bool = True  # Whether `save` returns while files are still being written.
        compress: bool = False  # Weights hardly compress: it takes longer and saves about 10 %.
        # What `restore` does when the newest step is damaged; fallback: it says so, and takes the next older one.
        on_corruption: Literal["error", "fallback"] = "fallback"

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        where = self._path or "checkpointer"
        check_keep(where, cfg.keep, cfg.keep_every, cfg.keep_best)
        if cfg.max_failed_saves < 1:
            raise ConfigError(f"{where}.max_failed_saves: expected at least 1, found {cfg.max_failed_saves}.")
        self.store: Store = open_store(cfg.directory, where=f"{where}.directory", seconds=cfg.request_seconds)
        self._keeper = Keeper(self.store, cfg.keep, cfg.keep_every, cfg.keep_best)
        self._room = Room(self.store, cfg.max_failed_saves)
        self._is_prepared = False
        self._lease: Lease | None = None  # Of the first process.
        self._let_go: weakref.finalize[..., Self] | None = None
        self._damaged: set[int] = set()  # Steps that a fallback has passed over.
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None

    def prepare(self) -> None:
        """Takes the directory for this run and proves that it can be written, as `save` does, but before training.

        Until `close`, no other run can save there; a ConfigError if one has it already.
        """
        if not self._is_prepared:
            together(self._take)
            self._is_prepared = True

    def _take(self) -> None:
        self.store.reach()
        try:
            lease = hold(self.store.notes(), self.store.where)
        except OSError as e:
            raise ConfigError(f"checkpoint directory {self.store.where} cannot be written: {reason(e)}") from e
        self._lease, self._let_go = lease, weakref.finalize(self, drop, lease)
        try:
            self.store.prepare()
        except Exception:
            self._release()
            raise

    def _release(self) -> None:
        if self._let_go is not None and self._let_go.detach() and self._lease is not None:
            let_go(self._lease)
        self._lease = self._let_go = None
        self._is_prepared = False

    def _guard(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def raise_if_lost(self) -> None:
        """Raises a LeaseError if another run is known to have taken the directory. Costs nothing: asks nobody."""
        if self._lease is not None:
            self._lease.raise_if_lost()

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
        this one. A step is there with all its files or not at all. A save that fails is logged, and the next one is
        another attempt: the error is raised when `max_failed_saves` in a row have failed, by `wait` at once.

        Args:
            step: Newer than all that are there.
            state: Leaves are `jax.Array`s, sharded in any way.
            config: The config of the run, for `load_config`.
            data_state: JSON data; with several processes that of the first one.
            files: What else is needed to use the model, by file name.
        """
        step = operator.index(step)

        def checked() -> tuple[dict[str, Any], dict[str, bytes]]:
            check_savable(leaves := flatten(state))
            texts = {CONFIG: to_json(config), DATA_STATE: json_text(data_state)}
            return leaves, {name: text.encode() for name, text in texts.items()} | named_files(files or {})

        self._tolerant(self.wait)
        leaves, rest = together(checked, everywhere=True)
        self.prepare()
        self._tolerant(lambda: self._start(step, leaves, rest))
        if not self.cfg.asynchronous:
            self._tolerant(self.wait)

    def _tolerant(self, work: Callable[[], None]) -> None:
        try:
            work()
        except LeaseError:
            raise
        except CheckpointError as e:
            self._room.failed(e)

    def _start(self, step: int, leaves: Mapping[str, Array], rest: Mapping[str, bytes]) -> None:
        making = together(lambda: self._make_room(step))

        def started() -> _Save:
            prints = {path: fingerprint(leaf, later=True) for path, leaf in leaves.items()}
            infos = {path: describe(leaf) for path, leaf in leaves.items()}
            return _Save(step, making, infos, prints, rest, copy_to_host(leaves))

        save = self._started(step, making, started)
        self._thread = start_thread(lambda: self._finish(save), name=f"save step {step}")

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tells what an evaluator has found after a step, for `keep_best`; before or after that step is saved."""
        best = self.cfg.keep_best
        if best is not None and best.metric in metrics and is_first():
            self._keeper.report(step, float(metrics[best.metric]))

    def _started(self, step: int, making: str, work: Callable[[], _T]) -> _T:
        """Returns what `work` does for a save in each process; if one fails, none of them saves."""

        def attempted() -> _T:
            try:
                return work()
            except Exception as e:
                raise self._not_saved(step, making, e) from e

        try:
            return together(attempted, everywhere=True)
        except Exception:
            if is_first():
                self.store.abandon(making)
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

        store = self.store

        def read_step(number: int) -> Restored:
            manifest, data_state = self._opened(number)
            together(lambda: check_fits(store.name(number), manifest.leaves, wanted, partial=partial), everywhere=True)
            leaves = load(store, number, manifest, wanted, together)
            self._verify(manifest, leaves)
            return Restored(manifest.step, leaves, data_state)

        restored, skipped = _first_good(store, self.steps(), step, self.cfg.on_corruption, read_step)
        self._damaged |= skipped.keys()
        self._keeper.found_damaged(skipped)
        if is_first():
            _warn_of(skipped, restored.step)
        return dataclasses.replace(restored, skipped=skipped)

    def _opened(self, step: int) -> tuple[Manifest, Any]:
        """Returns the manifest and the data state of a step, which the first process reads for all."""
        found: list[tuple[Manifest, Any]] = []

        def read() -> None:
            manifest = self.store.manifest(step)
            self.store.check(step, manifest)
            found.append((manifest, self.store.read_json(step, manifest, DATA_STATE)))

        together(read)
        if jax.process_count() == 1:
            return found[0]
        data = [json.dumps(state).encode() + b"\0" + manifest.to_bytes() for manifest, state in found]
        state, _, text = from_first(data[0] if data else None).partition(b"\0")
        return parse_manifest(self.store.name(step), text), json.loads(state)

    def _verify(self, manifest: Manifest, leaves: Mapping[str, Array]) -> None:
        prints = {name: fingerprint(leaf) for name, leaf in leaves.items()}  # All dispatched, then the first awaited.
        mine = [np.stack([found.local(), found.all_replicas()]) for found in prints.values()]
        totals = dict(zip(prints, add_up(np.array(mine, np.uint32)), strict=True))
        problems = [text for name, leaf in leaves.items() if (text := differs(name, leaf, totals[name], manifest))]
        if not problems:
            return
        share = (jax.process_index(), jax.process_count())
        files = all_values(
            together(lambda: damaged_files(self.store, manifest.step, manifest, *share), everywhere=True)
        )
        raise damaged(
            self.store.name(manifest.step),
            [*problems, *(itertools.chain.from_iterable(files) if any(files) else [NOT_ON_DISK])],
        )

    def steps(self) -> list[int]:
        """Returns the finished steps, oldest first. Whether they are undamaged shows when one is restored."""
        return together(self.store.steps)

    def leaves(self, step: int) -> Mapping[str, LeafInfo]:
        """Returns what the leaves of a step are, by path. Reads no arrays."""
        return self._opened(step)[0].leaves

    def latest(self) -> int | None:
        """Returns the newest finished step."""
        return max(self.steps(), default=None)

    def discard_after(self, step: int) -> None:
        """Deletes all steps newer than `step`, to go on from there."""
        self.wait()
        newer = [number for number in self.steps() if number > step]
        if newer:
            self.prepare()
        together(lambda: [self.store.discard(number) for number in reversed(newer)])

    def wait(self) -> None:
        """Waits for the save in progress, and raises its error if it failed: in all processes, if it did in one."""
        if self._thread is None:
            return
        error = self._joined()
        # Those who only gave up because another failed let that one speak first.
        gave_up = error is not None and isinstance(error.__cause__, ElsewhereError)
        told = all_values(None if error is None else [gave_up, str(error), isinstance(error, LeaseError)])
        failed = min(((each[0], rank, *each[1:]) for rank, each in enumerate(told) if each), default=None)
        if failed is None:
            self._room.saved()
            return
        _, rank, text, is_lost = failed
        if rank == jax.process_index() and error is not None:
            raise error
        kind = LeaseError if is_lost else CheckpointError
        raise kind(f"{text}\n  (Process {rank} of {jax.process_count()} found this.)") from error

    def _joined(self) -> CheckpointError | None:
        """Waits for the save in progress; returns the error it met in this process."""
        if self._thread is not None:
            self._thread.join()
        error, self._thread, self._error = self._error, None, None
        return error

    def close(self) -> None:
        """Waits as `wait` does, and lets other runs have the directory."""
        try:
            self.wait()
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # Not together: the other processes may be elsewhere. An error of the save has been logged.
            self._joined()
            self._release()

    def _make_room(self, step: int) -> str:
        """Makes the place for a new step, if it is one."""
        try:
            steps = self.store.steps()
        except CheckpointError as e:
            raise self._not_saved(step, None, e) from e
        good = [number for number in steps if number not in self._damaged]
        if step < 0:
            raise ConfigError(f"checkpoint {self.store.where}: a step is a number of 0 or more, found {step}.")
        if good and step <= good[-1]:
            there = "it" if step == good[-1] else f"step_{good[-1]}"
            raise ConfigError(
                f"checkpoint {self.store.name(step)} is not saved: {there} is there already.\n"
                f"  Restore the newest step, call discard_after to go back to an older one, or use another directory."
            )
        try:
            return self.store.begin(step)
        except (OSError, CheckpointError) as e:
            raise self._not_saved(step, None, e) from e

    def _finish(self, save: _Save) -> None:
        """The part of a save that runs in the background."""
        error: Exception | None = None
        part = Written()
        if is_first():
            self._room.needs(save.arrays.plan, sum(map(len, save.rest.values())))
        try:
            part = self._write_part(save)
        except Exception as e:
            error = e
        # Whoever fails still comes to both meetings, so that nobody waits in vain.
        try:
            part = Written.of(gather_to_first(f"save {save.number}", part.to_bytes(), Written.joined))
            if error is None and is_first():
                self._commit(save, part)
        except Exception as e:
            error = error or e
        try:
            barrier(f"save {save.number}")
        except Exception as e:
            error = error or e
        if error is not None:
            self._error = self._not_saved(save.step, save.making, error)
            self._error.__cause__ = error

    def _write_part(self, save: _Save) -> Written:
        save.arrays.write(self.store.being_made(save.making), compress=self.cfg.compress)
        sums = [found.local() for found in save.fingerprints.values()]
        return Written(np.array(sums, np.uint32))

    def _commit(self, save: _Save, written: Written) -> None:
        if written.sums is None:
            raise ElsewhereError
        infos = {
            path: dataclasses.replace(info, fingerprint=to_text(sums))
            for (path, info), sums in zip(save.leaves.items(), written.sums, strict=True)
        }
        places = save.arrays.plan.places
        self.store.commit(
            save.making, save.step, infos, places, save.rest, replace=save.step in self._damaged, guard=self._guard
        )
        self._damaged.discard(save.step)
        try:
            self._keeper.discard_expired(save.step)
        except CheckpointError as e:  # The new step is safe: that the store does not answer now is no failed save.
            _log.warning("no old step is deleted: %s", e)
        self._room.look_ahead()

    def _not_saved(self, step: int, making: str | None, error: Exception) -> CheckpointError:
        if is_first() and making is not None:
            self.store.abandon(making)
        try:
            newest = max(self.store.steps(), default=None)
        except (ConfigError, CheckpointError):  # The directory itself is gone or broken, which `error` tells.
            newest = None
        lacks = f"\n  {text}" if (text := self._room.lack()) else ""
        left = "There is no finished step." if newest is None else f"The newest finished step is step_{newest}."
        text = f"checkpoint {self.store.name(step)} was not saved: {reason(error)}{lacks}\n  {left}"
        _log.error("%s", text)
        return LeaseError(text) if isinstance(error, LeaseError) else CheckpointError(text)


def load_config(directory: str, step: int | None = None, *, on_corruption: _OnCorruption = "fallback") -> StoredConfig:
    """Returns the config and the files of the newest step (or `step`). Reads no arrays."""

    store = open_store(directory, where="directory")

    def read_step(number: int) -> StoredConfig:
        manifest = store.manifest(number)
        names = [name.removeprefix(PREFIX) for name in manifest.files if name.startswith(PREFIX)]
        check_names(names)  # Whoever writes them elsewhere relies on it.
        files = {name: store.read(number, manifest, PREFIX + name) for name in names}
        return StoredConfig(manifest.step, store.read_text(number, manifest, CONFIG), files)

    found, skipped = _first_good(store, store.steps(), step, on_corruption, read_step)
    _warn_of(skipped, found.step)
    return dataclasses.replace(found, skipped=skipped)


def _first_good(
    store: Store,
    steps: list[int],
    step: int | None,
    on_corruption: _OnCorruption,
    read_step: Callable[[int], _T],
) -> tuple[_T, dict[int, str]]:
    """Reads `step`; or the newest of `steps`, and as long as it is damaged and that is allowed, the next older one."""
    if not steps:
        raise ConfigError(f"checkpoint {store.where}: there is no finished step.")
    if step is not None and step not in steps:
        raise ConfigError(f"checkpoint {store.where}: there is no step {step}, only {_listed(steps)}.")
    skipped: dict[int, str] = {}
    for number in reversed(steps) if step is None else [step]:
        try:
            found = read_step(number)
        except CorruptionError as e:
            if on_corruption == "error" or step is not None:
                older = [other for other in steps if other < number]
                raise CorruptionError(f"{e}\n  Older steps: {_listed(older)}." if older else str(e)) from e
            skipped[number] = str(e)
        else:
            return found, skipped
    title = [f"checkpoint {store.where}: no step is undamaged."] if len(skipped) > 1 else []
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
