# SPDX-License-Identifier: Apache-2.0
"""`Tiers`: where the state of a run is kept, fast places above the store, and what a run goes on from.

The memory of hosts is there for the next failure, the store for all of them. What is newest is restored; of the same
step, from the fastest. What is not complete and good is passed over, and that is said.
"""

import contextlib
import dataclasses
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from dovetail.blobs import MEMORY, BlobError
from dovetail.config import Component, ConfigBase, ConfigError, to_json
from dovetail.parallel import all_values, is_first, together

from ._checkpointer import Checkpointer, load_config
from ._errors import CorruptionError
from ._gather import Gather, verify
from ._keeper import Keeper
from ._leaves import flatten
from ._parts import Keep, complete, keep_of
from ._places import HostMemory, LocalDisk, Place, Places

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Recovered:
    """What a run goes on from."""

    step: int
    state: Any
    positions: Sequence[Any]  # In the data: one, or that of each process.
    source: str  # As in "the memory of hosts 0 and 2"; empty: the store.


class _Candidate(NamedTuple):
    """A keep that is complete."""

    keep: Keep
    places: Places
    holders: Sequence[Sequence[Place]]  # Of each part.

    @property
    def where(self) -> str:
        """What to call it."""
        return self.places.of({place.host for each in self.holders for place in each})


class Tiers(Component):
    """Keeps and recovers the state of a run. All processes call the same methods in the same order, from one thread.

    Steps are saved to the store by the `Checkpointer` itself; what is kept here comes besides.
    """

    class Config(Component.Config):
        memory_every: int | None = None  # Steps between copies to the memory of hosts, under a supervisor; None: none.
        memory_copies: int = 2  # Hosts that hold each part: that of its process, and those after it.
        disk: str | None = None  # A directory on a disk of each host; other hosts need not see it. None: none.
        disk_every: int = 50  # Steps between copies to it.

    def __init__(self, cfg: Config, *, store: Checkpointer, run: str, **kwargs: Any) -> None:
        """`run` says which run it is, to whoever shares the disk: its directory."""
        super().__init__(cfg, **kwargs)
        for name in ("memory_every", "memory_copies", "disk_every"):
            if (count := getattr(cfg, name)) is not None and count < 1:
                raise ConfigError(f"tiers.{name} is {count}, expected at least 1.")
        self._store, self._run = store, run
        self._places: list[Places] = []  # Fastest first.
        self._keeper = Keeper("0")
        self._found: list[_Candidate] = []
        self._stored: int | None = None  # The newest step of the store.
        self._open = contextlib.ExitStack()
        self.about = ""  # What there is to say about the tiers at the start.

    def look(self) -> int | None:
        """Looks at what there is, everywhere; returns the newest step that is complete, or None."""
        self.close()
        self._places, self._found = [], []
        if self.cfg.memory_every is not None or self.cfg.disk is not None:
            self._keeper = _new_keeper()
            self._places = self._places_there_are(os.environ)
            for places in self._places:
                self._found += self._listed(places, self._open.enter_context(places.opened()))
            self._found.sort(key=lambda found: -found.keep.step)  # Stable: the fastest stays first.
        self._stored = self._store.latest()
        stored = () if self._stored is None else (self._stored,)
        return max([*(found.keep.step for found in self._found), *stored], default=None)

    def _places_there_are(self, environment: Mapping[str, str]) -> list[Places]:
        cfg, found = self.cfg, list[Places]()
        if cfg.memory_every is not None and all(all_values(MEMORY in environment)):
            memory = HostMemory(cfg.memory_every, cfg.memory_copies, environment)
            found.append(memory)
            if memory.missing > 0:
                there = f"{memory.copies} host{'s' if memory.copies > 1 else ''}, not {cfg.memory_copies}"
                self.about = f"The state is kept in the memory of {there}: there are no more."
        elif cfg.memory_every is not None:
            self.about = "Nothing is kept in the memory of hosts: that needs `dovetail launch`."
        if (disk := cfg.disk) is not None:
            found.append(together(lambda: LocalDisk(cfg.disk_every, disk, self._run, environment), everywhere=True))
        return found

    def _listed(self, places: Places, there: Sequence[Place]) -> list[_Candidate]:
        """Returns what is complete in a tier, newest first. Each process asks some of the hosts."""
        names: list[list[str]] = [[] for _ in there]
        for number in range(jax.process_index(), len(there), jax.process_count()):
            with contextlib.suppress(BlobError):  # A host that is gone has nothing.
                names[number] = list(there[number].client.sizes())
        told = all_values({number: each for number, each in enumerate(names) if each})
        for number, each in (item for found in told for item in found.items()):
            names[int(number)] = each
        whole = complete(names).items()
        return [_Candidate(keep, places, [[there[n] for n in each] for each in parts]) for keep, parts in whole]

    def config(self) -> tuple[int, str]:
        """Returns the newest step and the config that made it, in JSON. The first process may call it alone."""
        for found in self._found:
            if self._stored is not None and found.keep.step <= self._stored:
                break
            with contextlib.suppress(CorruptionError):
                return found.keep.step, Gather(found.keep, found.holders, found.where).part(0).config
        newest = load_config(self._store.cfg.directory)
        return newest.step, newest.config

    def recover(self, abstract_state: Any) -> Recovered | None:
        """Returns the newest step that `look` has found and that is good, laid out as `Checkpointer.restore` does.

        What else is kept is forgotten: it is of a history that has ended. None: there is nothing to go on from.
        """
        stored, restored = self._stored, None
        for found in self._found:
            if stored is not None and found.keep.step < stored:
                restored, stored = self._of_store(abstract_state), None
            if restored is not None and restored.step >= found.keep.step:
                break
            try:
                recovered = self._gathered(found, abstract_state)
            except (CorruptionError, ConfigError) as e:
                if is_first():
                    _log.warning("step %d in %s is passed over: %s", found.keep.step, found.where, e)
                continue
            self._forget_all_but(found.keep)
            return recovered
        restored = self._of_store(abstract_state) if stored is not None else restored
        self._forget_all_but(None)
        return restored

    def _of_store(self, abstract_state: Any) -> Recovered:
        restored = self._store.restore(abstract_state)
        return Recovered(restored.step, restored.state, [restored.data_state], "")

    def _gathered(self, found: _Candidate, abstract_state: Any) -> Recovered:
        gather, wanted = Gather(found.keep, found.holders, found.where), flatten(abstract_state)
        parts = together(gather.parts, everywhere=True)
        leaves = together(lambda: jax.block_until_ready(gather.leaves(parts, wanted)), everywhere=True)
        together(verify(parts, leaves), everywhere=True)
        told = all_values([sorted(gather.used), sorted(gather.problems)])
        if is_first():
            for text in sorted({text for _, problems in told for text in problems}):
                _log.warning("step %d in %s: %s; another host has it", found.keep.step, found.where, text)
        state = jax.tree.unflatten(jax.tree.structure(abstract_state), [leaves[path] for path in wanted])
        source = found.places.of({host for used, _ in told for host in used})
        return Recovered(found.keep.step, state, [part.position for part in parts], source)

    def _forget_all_but(self, keep: Keep | None) -> None:
        for places in self._places:
            places.drop_all(lambda name: keep_of(name) != keep)
        self._found = []
        self._open.close()

    def is_due(self, step: int) -> bool:
        """Whether `keep` has something to do after a step."""
        return any(step % places.every == 0 for places in self._places)

    def keep(self, step: int, state: Any, *, position: Any, config: ConfigBase) -> None:
        """Keeps a step where it is due; the state may be donated when this returns.

        Args:
            position: of this process in the data, JSON data.
            config: of the run.
        """
        due = [places for places in self._places if step % places.every == 0]
        text = to_json(config) if is_first() else ""
        self._keeper.keep(step, flatten(state), due, position=position, config=text)

    def restart(self) -> None:
        """Forgets what is kept: the run goes back, and what it kept is not its past any more."""
        self._keeper.wait()
        if self._places:
            self._keeper = keeper = _new_keeper()  # By then all have waited: nothing old arrives from now on.
            for places in self._places:
                places.drop_all(lambda name: not name.startswith(f"{keeper.gang}."))

    def close(self) -> None:
        """Waits for what is on its way."""
        self._keeper.wait()
        self._open.close()

    def finish(self) -> None:
        """Deletes what is on disks: the run is done, and the store has its last step."""
        self._keeper.wait()
        for places in self._places:
            places.drop_all(lambda _: True)


def _new_keeper() -> Keeper:
    """Returns one whose gang has a name that no other has, so that parts of different ones never mix."""
    return Keeper(str(all_values(secrets.token_hex(6))[0]))
