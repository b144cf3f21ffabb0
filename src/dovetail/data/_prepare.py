# SPDX-License-Identifier: Apache-2.0
"""`Preparation`: tokenises sources once, over cores and hosts, into data that is read by index.

The sources are cut into units, from their sizes alone. Each unit makes shards of its own and leaves a record when it is
done, so that any number of processes on any number of hosts can share the work, and one that is killed loses no more
than a unit. The manifest is written when all records are there.
"""

import contextlib
import json
import multiprocessing
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from dovetail.config import REQUIRED, Component, ConfigError, to_json
from dovetail.progress import Count, phase

from ._array_record import Records
from ._claims import Claims
from ._document import group_size, problem_of
from ._errors import DataError, child_path, place_of
from ._manifest import FORMAT, MANIFEST, Manifest, read_manifest
from ._manifest_maker import write_manifest
from ._places import Place, open_place
from ._shard import Sizes
from ._tokenizer import Tokenizer, special_to_add
from ._unit_maker import Job, make_unit, record_name, work
from ._units import Reading, Sources, Stretch

_PLAN = "work/plan.json"
_TRIES = 3  # Of a unit whose process is killed.
_LONG = 1 << 20  # Tokens of a document that is stored whole, at most.
_FEW = 20  # Files.
_LOOK = 1.0  # Seconds between two looks at what other hosts have done.


class Preparation(Component):
    """Tokenises files into a directory, or a place in a store of objects, from which `PreparedDataset` reads."""

    class Config(Component.Config):
        # Paths, globs or URLs: JSON Lines, Parquet, Arrow, ArrayRecord, else text; .gz and .zst, too.
        sources: list[str] = REQUIRED
        tokenizer: Tokenizer.Config = REQUIRED
        to: str = REQUIRED  # A directory, or s3://BUCKET/NAME or gs://BUCKET/NAME.
        # Of JSON Lines and records of JSON; the column of a table. Several: texts that belong together.
        field: str | tuple[str, ...] = "text"
        prompt: str | None = None  # A field, or column, whose text comes first, and is no target.
        records: Records = "text"  # What a record of ArrayRecord holds.
        separator: str | None = None  # What stands between two documents of a text; None: a file is one document.
        add_bos: bool = False  # Whether a document starts with the bos token of the tokenizer.
        add_eos: bool = True  # Whether it ends with the eos token.
        shard_bytes: int = 1 << 26  # Of the sources, for a unit of work; of tokens, at most, in a shard.
        block_tokens: int | None = None  # What is read at a time; None: by the size of the sources, at most 65,536.
        # Of a longer document, parts are stored, each like a document. None: 1,048,576; of a few texts that are a
        # document each, which must be read in parts to hold some out, fewer.
        max_document_tokens: int | None = None
        workers: int | None = None  # Processes on this host; None: one for each core, 0: only this one.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        for name, least in {"shard_bytes": 1, "block_tokens": 1, "max_document_tokens": 1, "workers": 0}.items():
            value = getattr(cfg, name)
            if value is not None and value < least:
                raise ConfigError(f"{place_of(self, name)}: is {value}. Use {least} or more.")
        if cfg.separator == "":
            raise ConfigError(f"{place_of(self, 'separator')}: is empty. Use None for one document per file.")
        if problem := problem_of(cfg.field, cfg.prompt):
            raise ConfigError(f"{place_of(self, 'field')}: {problem}")
        self._tokenizer: Tokenizer = cfg.tokenizer.build(path=child_path(self, "tokenizer"))
        reading = Reading(cfg.field, cfg.separator, cfg.records, cfg.prompt)
        self._sources = Sources(cfg.sources, place_of(self, "sources"), reading, self)
        if len(reading.names) > 1 and (file := self._sources.without_fields()) is not None:
            raise ConfigError(
                f"{place_of(self, 'sources')}: {file} is a text, which has no fields, and some are named.\n"
                "  Give JSON Lines (.jsonl) or Parquet (.parquet)."
            )
        self._units = self._sources.units(cfg.shard_bytes)
        self._place = open_place(cfg.to, place_of(self, "to"))
        size = sum(file.size for file in self._sources.files)
        sizes = Sizes(
            block=cfg.block_tokens or min(max(size >> 12, 1 << 10), 1 << 16),  # So that there are many blocks.
            document=cfg.max_document_tokens or self._document_tokens(),
            shard_bytes=cfg.shard_bytes,
        )
        self._job = Job(
            to=cfg.to,
            sources=self._sources,
            tokenizer=self._tokenizer,
            bos=special_to_add(self, "add_bos", self._tokenizer.bos_id),
            eos=special_to_add(self, "add_eos", self._tokenizer.eos_id),
            sizes=sizes,
            group=group_size(cfg.field),
        )

    def _document_tokens(self) -> int:
        """Returns the largest number of tokens of a document that is stored whole."""
        files = self._sources.files
        if len(files) >= _FEW or self.cfg.separator is not None or not self._sources.has_texts_alone:
            return _LONG
        return min(max(sum(file.size for file in files) // 80, 1 << 10), _LONG)  # 20 parts, or more.

    def run(self) -> Manifest:
        """Prepares the data, or what is left of it to do; returns what there is then."""
        if (there := self._finished()) is not None:
            return there
        self._start()
        count = min(len(self._units), (os.cpu_count() or 1) if self.cfg.workers is None else self.cfg.workers)
        try:
            with (
                phase("tokenising", len(self._units), unit="units") as at,
                contextlib.closing(_Crew(self._job, self._place, self._units, count, at)) as crew,
            ):
                crew.run()
        except DataError:
            if (there := self._finished()) is None:
                raise
            return there  # Another host has ended it, and removed what this one was about to look at.
        if (there := self._finished()) is not None:
            return there
        with phase("writing the manifest"):
            return write_manifest(self._place, self._described(), self._tokenizer, len(self._units))

    def _plan(self) -> dict[str, Any]:
        """What the result depends on, and what tells that the files are the same for all hosts, and all the time."""
        described = self._described()
        for source, file in zip(described["sources"], self._sources.files, strict=True):
            source["version"] = file.version
        return described

    def _described(self) -> dict[str, Any]:
        """What the result depends on. Of files at URLs, their version; others may be copies of each other."""
        fields = ("field", "prompt", "separator", "add_bos", "add_eos", "shard_bytes")
        fields += ("records",) if self.cfg.records != "text" else ()
        return {
            "format": FORMAT,
            "settings": {
                **{name: getattr(self.cfg, name) for name in fields},
                "block_tokens": self._job.sizes.block,
                "max_document_tokens": self._job.sizes.document,
                "group": self._job.group,
            },
            "sources": [
                {"file": each.name, "bytes": each.size, **({"version": each.version} if each.is_remote else {})}
                for each in self._sources.files
            ],
            "tokenizer": {
                "name": type(self._tokenizer).__name__,
                "config": to_json(self._tokenizer.cfg),
                "fingerprint": self._tokenizer.fingerprint(),
                "vocab_size": self._tokenizer.vocab_size,
            },
        }

    def _finished(self) -> Manifest | None:
        """Returns what is prepared already; an error if that is something else."""
        if self._place.read(MANIFEST) is None:
            return None
        manifest = read_manifest(self._place, place_of(self, "to"))
        keys = ("file", "bytes", "version")
        there = {
            "format": manifest.format,
            "settings": manifest.settings,
            "sources": [{key: source[key] for key in keys if key in source} for source in manifest.sources],
            "tokenizer": {key: value for key, value in manifest.tokenizer.items() if key != "files"},
        }
        self._compare(there, self._described(), "has been prepared from something else")
        return manifest

    def _start(self) -> None:
        """Writes down what is prepared, or finds that another host, or an earlier start, has."""
        mine = (json.dumps(self._plan(), indent=1, sort_keys=True) + "\n").encode()
        there = self._place.read(_PLAN)
        if there is None:
            if not self._place.is_empty() and self._place.read(_PLAN) is None:
                raise ConfigError(f"{place_of(self, 'to')}: {self._place.where} is not empty. Give a new directory.")
            if self._place.create(_PLAN, mine):
                return
            there = self._place.need(_PLAN)
        try:
            found = json.loads(there)
        except ValueError:
            found = {}
        self._compare(found, self._plan(), "is being prepared from something else")

    def _compare(self, there: dict[str, Any], here: dict[str, Any], what: str) -> None:
        mine = json.loads(json.dumps(here))
        if changes := list(_changes(there, mine, "")):
            shown = "\n  ".join([*changes[:8], *(["..."] if len(changes) > 8 else [])])
            raise ConfigError(
                f"{place_of(self, 'to')}: {self._place.where} {what}:\n  {shown}\n"
                "  Give another place, or remove that one."
            )


def _changes(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _changes(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _changes(one, other, f"{path}[{number}]")
    elif old != new:
        yield f"{path} was {old!r:.100}, is {new!r:.100}"


class _Worker(NamedTuple):
    process: Any
    connection: Any


class _Crew:
    """The processes of this host, and the units they are at."""

    def __init__(
        self,
        job: Job,
        place: Place,
        units: Sequence[Sequence[Stretch]],
        count: int,
        at: Count,
    ) -> None:
        self._job, self._place, self._units, self._at = job, place, units, at
        self._claims = Claims(place)
        self._begun = time.monotonic()
        self._bytes = self._tokens = 0
        self._done = {int(name.rpartition("/")[2][:-5]) for name in place.names("work/done")}
        at.begin(len(units), "units", done=len(self._done))
        first = os.getpid() * 7919 % max(len(units), 1)  # Each host begins elsewhere, so that they rarely meet.
        self._left = deque(u for u in [*range(first, len(units)), *range(first)] if u not in self._done)
        self._tries = Counter[int]()
        self._idle: list[_Worker] = []
        self._busy: dict[Any, tuple[_Worker, int]] = {}
        self._count = count if len(self._left) > 1 else 0

    def run(self) -> None:
        """Returns when all units are done, by this host or by others."""
        self._idle = [self._new_worker() for _ in range(min(self._count, len(self._left)))]
        looked = time.monotonic()
        while len(self._done) < len(self._units):
            self._claims.renew()
            while self._left and (self._idle or not self._count) and self._take(self._left.popleft()):
                pass
            if not self._left and time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                self._look()
            for connection in wait(list(self._busy), timeout=_LOOK / 2) if self._busy else ():
                self._hear(connection)
            if not self._busy and not self._left and len(self._done) < len(self._units):
                time.sleep(_LOOK / 4)  # Others are at the rest.
            self._tell()

    def _take(self, unit: int) -> bool:
        """Begins a unit, if nobody else is at it; returns whether another one can be begun."""
        if unit in self._done or any(unit == at for _, at in self._busy.values()):
            return True
        if not self._claims.take(unit):
            return True
        if self._place.read(record_name(unit)) is not None:
            self._claims.release(unit)
            self._done.add(unit)
        elif self._idle:
            worker = self._idle.pop()
            self._busy[worker.connection] = worker, unit
            worker.connection.send((unit, self._units[unit]))
        else:
            make_unit(self._job, self._place, unit, self._units[unit], self._made)
            self._finish(unit)
            return False
        return True

    def _look(self) -> None:
        """Looks which of the units that others are at are done, or nobody's any more."""
        self._done |= {int(name.rpartition("/")[2][:-5]) for name in self._place.names("work/done")}
        if self._place.read(MANIFEST) is not None:  # Another host has ended it, and cleaned up.
            self._done |= set(range(len(self._units)))
        at = {unit for _, unit in self._busy.values()}
        self._left = deque(unit for unit in range(len(self._units)) if unit not in self._done and unit not in at)

    def _hear(self, connection: Any) -> None:
        worker, unit = self._busy[connection]
        try:
            what, value = connection.recv()
        except (EOFError, ConnectionResetError):
            self._lost(worker, unit)
            return
        if what == "progress":
            self._made(*value)
        elif what == "failed":
            raise value
        else:
            del self._busy[connection]
            self._idle.append(worker)
            self._finish(unit)

    def _lost(self, worker: _Worker, unit: int) -> None:
        """Has another process make the unit of one that was killed."""
        worker.process.join()
        del self._busy[worker.connection]
        self._tries[unit] += 1
        if self._tries[unit] == _TRIES:
            files = dict.fromkeys(self._job.sources.files[each.source].name for each in self._units[unit])
            raise DataError(
                f"{', '.join(files)}: {_TRIES} processes that were tokenising it have ended with "
                f"{worker.process.exitcode}.\n  -9 is mostly a lack of memory: use fewer workers. -7 is a file that "
                "was cut short. What is done is kept."
            )
        self._idle.append(self._new_worker())
        self._left.appendleft(unit)
        self._claims.release(unit)

    def _finish(self, unit: int) -> None:
        self._done.add(unit)
        self._claims.release(unit)

    def _made(self, count: int, tokens: int) -> None:
        self._bytes += count
        self._tokens += tokens
        if not self._count:
            self._claims.renew()
        self._tell()

    def _tell(self) -> None:
        """Says how far it is: units of all hosts, and how fast this one is."""
        if self._bytes:
            seconds = max(time.monotonic() - self._begun, 1e-3)
            rates = f"{self._bytes / seconds / 1e6:.1f} MB/s, {self._tokens / seconds:,.0f} tokens/s"
            self._at.note = f"{self._tokens:,} tokens, {rates}"
        self._at.advance(len(self._done) - self._at.done)

    def _new_worker(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, self._job), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def close(self) -> None:
        """Ends the processes, and lets others have the units that are not done."""
        workers = [*self._idle, *(worker for worker, _ in self._busy.values())]
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.connection.close()
        with contextlib.suppress(DataError):
            self._claims.release_all()
