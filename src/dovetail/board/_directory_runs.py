# SPDX-License-Identifier: Apache-2.0
"""The runs below a directory."""

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dovetail.progress import LEDGER

from . import _samples
from ._child import Children, Unavailable
from ._config import Paths, config_of
from ._log import log_of
from ._metrics import Kept, unit_in
from ._root import Found, Root, parts_of, read_at
from ._runs import Answer, NotFound, Runs, View
from ._summary import METRICS, Facts, carried, deepened, facts_of, run_of, said, stamp_of
from ._timeline import Ledgers, told

MEMORY = 256 << 20  # Bytes of metrics that are kept.
_AGAIN = 5.0  # Seconds between two looks for new runs.
_SHARE = 20.0  # Times as long as a look took.
_MOMENT = 0.2  # Seconds.
_EVENTS = 4 << 20  # Bytes, from the end.
_LEDGERS, _ANSWERS = 64, 64  # That are kept.


class DirectoryRuns(Runs):
    """Reads what runs write, and writes nothing.

    `memory` is how many bytes of metrics are kept; the run that was asked for least lately is forgotten first.
    """

    def __init__(self, directory: Path, *, memory: int = MEMORY, children: Children | None = None) -> None:
        self._root = Root(directory)
        self.where = str(directory)
        self._children = children or Children()
        self._kept = Kept(memory)
        self._lock = threading.RLock()
        self._found = Found([], [])
        self._looked, self._pause = -_AGAIN, _AGAIN
        self._facts: dict[str, Facts] = {}
        self._ledgers: OrderedDict[str, tuple[threading.Lock, Ledgers]] = OrderedDict()
        self._answers: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    # Which runs there are.

    def _find(self, *, at_once: bool = False) -> Found:
        with self._lock:
            start = time.monotonic()
            if start - self._looked >= (min(1.0, self._pause) if at_once else self._pause):
                self._found = self._root.find()
                self._looked = time.monotonic()
                self._pause = max(_AGAIN, _SHARE * (self._looked - start))
                self._facts = {run: self._facts[run] for run in self._found.runs if run in self._facts}
            return self._found

    def _facts_of(self, run: str) -> Facts:
        """Returns what is known of a run; NotFound if it is gone."""
        known = self._facts.get(run)
        stamp = () if known is None else stamp_of(self._root, run)
        if known is None or known.stamp != stamp or not stamp:
            try:
                now = facts_of(self._root, run)
            except OSError as e:
                self._facts.pop(run, None)
                raise NotFound(f"The run {run!r:.200} is gone, or cannot be read.") from e
            self._facts[run] = known = now if known is None else carried(known, now)
        return known

    def _checked(self, run: str) -> Facts:
        """Returns what is known of a run that is named from outside: it must be one that was found."""
        if run not in self._find().runs and run not in self._find(at_once=True).runs:
            raise NotFound(f"There is no run {run!r:.200} here.")
        return self._facts_of(run)

    def _named(self, run: str) -> str:
        return run.rpartition("/")[2] if run != "." else self._root.path.name

    def listed(self) -> Answer:
        found, now, runs = self._find(), time.time(), list[Answer]()
        with self._lock:  # One at a time reads what all wait for.
            for run in found.runs:
                with contextlib.suppress(NotFound):
                    runs.append(run_of(run, self._named(run), self._facts_of(run), now))
        return {"runs": runs, "problems": found.problems}

    def stamps(self) -> dict[str, object]:
        self._deepen()
        found = {run: stamp_of(self._root, run) for run in self._find().runs}
        return {run: (stamp, self._is_deep(run)) for run, stamp in found.items() if stamp}

    def _is_deep(self, run: str) -> bool:
        return run not in self._facts or self._facts[run].is_deep

    def _deepen(self) -> None:
        """Looks for evaluations that are far from the end, for a moment: the list does not wait for them."""
        end = time.monotonic() + _MOMENT
        for run, facts in list(self._facts.items()):
            if not facts.is_deep:
                found = deepened(self._root, run, facts)
                with self._lock:
                    if self._facts.get(run) is facts:
                        self._facts[run] = found
            if time.monotonic() > end:
                return

    # What is in one of them.

    @contextlib.contextmanager
    def _file(self, run: str, name: str) -> Iterator[int | None]:
        """Yields a file of a run that is open; None where there is none."""
        self._checked(run)
        try:
            file = self._root.open([*parts_of(run), name])
        except OSError:
            file = None
        try:
            yield file
        finally:
            if file is not None:
                os.close(file)

    def about(self, run: str) -> Answer:
        facts = self._checked(run)
        found: Answer = {"run": run_of(run, self._named(run), facts, time.time()), "metrics": []}
        found |= {"texts": [], "pictures": [], "tables": [], "histograms": []}
        with self._file(run, METRICS) as file:
            if file is not None:
                seen = self._kept.of(run).seen(file)
                found |= {"metrics": sorted(seen.metrics), **_samples.names_of(seen)}
                if unit := unit_in(seen.metrics):
                    found["run"]["unit"] = unit
                if seen.bad:
                    text = f"{METRICS}: {seen.bad:,} lines are torn, or no records, and are passed over."
                    found["run"]["problems"].append(text)
        self._kept.trim()
        found["config"], earlier = self._config(run)
        return found | ({"config_at": earlier} if earlier else {})

    def _config(self, run: str) -> tuple[Paths, list[Answer]]:
        try:
            return config_of(self._root, run)
        except OSError as e:
            raise NotFound(f"The run {run!r:.200} is gone, or cannot be read.") from e

    def config(self, run: str) -> Paths:
        self._checked(run)
        return self._config(run)[0]

    def curve(self, run: str, view: View) -> Answer:
        first, resumed = None, list[float]()
        with self._file(run, LEDGER) as file:
            if file is not None:
                lock, ledger = self._ledger(run)
                with lock:
                    resumed = list(ledger.restarts(file))
                    first = ledger.first
        with self._file(run, METRICS) as file:
            if file is None:
                raise NotFound(f"The run {run!r:.200} has no metrics.")
            if view.axis == "units" and self._kept.of(run).unit(file) is None:
                raise NotFound(f"The run {run!r:.200} has not logged how many units it does in a second.")
            limits = {"begin": view.begin, "end": view.end, "most": view.points}
            metrics = self._kept.of(run)
            found = metrics.curve(file, view.name, view.axis, first=first, resumed=resumed, **limits)
        self._kept.trim()
        named = found._asdict()
        return {"run": run, "name": view.name, "count": named.pop("total"), **named}

    def _ledger(self, run: str) -> tuple[threading.Lock, Ledgers]:
        with self._lock:
            found = self._ledgers.setdefault(run, (threading.Lock(), Ledgers()))
            self._ledgers.move_to_end(run)
            while len(self._ledgers) > _LEDGERS:
                self._ledgers.popitem(last=False)
            return found

    def samples(self, run: str, kind: str, name: str, before: int | None, most: int | None = None) -> Answer:
        with self._file(run, METRICS) as file:
            if file is None:
                return {kind: []} | ({"more": False} if kind in ("texts", "tables") else {})
            seen = self._kept.of(run).seen(file)
            limit = {} if most is None else {"most": most}
            if kind == "texts":
                return _samples.texts(seen, file, name, before, **limit)
            if kind == "tables":
                return _samples.tables(seen, file, name, before, **limit)
            return (_samples.pictures if kind == "pictures" else _samples.histograms)(seen, file, name)

    def picture(self, run: str, file: str) -> tuple[str, bytes]:
        self._checked(run)
        try:
            return _samples.picture(self._root, run, file)
        except OSError as e:
            raise NotFound("There is no such picture.") from e

    def goodput(self, run: str) -> Answer:
        with self._file(run, LEDGER) as file:
            lock, ledger = self._ledger(run)
            with lock:
                timeline = ledger.update(file) if file is not None else Ledgers().timeline
                return timeline.named(self._events(run))

    def _events(self, run: str) -> list[Answer]:
        try:
            with self._root.directory(parts_of(run)) as here:
                return told(read_at(here, ["launch", "events.jsonl"], _EVENTS, last=True) or b"")
        except OSError:
            return []

    def log(self, run: str, lines: int, file: str | None) -> Answer:
        self._checked(run)
        try:
            return log_of(self._root, run, self._events(run), lines, file)
        except OSError as e:
            raise NotFound(f"The run {run!r:.200} is gone, or cannot be read.") from e

    def memory(self, run: str, on: str | None) -> Answer:
        facts = self._checked(run)
        found: Answer = {"parts": [], "predicted": None, "measured": measured(facts)}
        try:
            computed = self._computed(run, on or facts.hardware)
        except Unavailable as e:
            return found | {"note": str(e)}
        return found | {"parts": computed["parts"], "predicted": computed["predicted"]}

    def _computed(self, run: str, on: str | None) -> Answer:
        """Returns what a child computes, once for each newest checkpoint."""
        parts = [*parts_of(run), "checkpoints"]
        try:
            with self._root.directory(parts) as here:
                key = (run, on, os.fstat(here).st_mtime_ns)
        except OSError as e:
            raise Unavailable(self._elsewhere(run)) from e
        with self._lock:
            if key in self._answers:
                return self._answers[key]
        found = self._children.ask("memory", str(self._root.path.joinpath(*parts)), *([on] if on else []))
        with self._lock:
            self._answers[key] = found
            while len(self._answers) > _ANSWERS:
                self._answers.popitem(last=False)
        return found

    def _elsewhere(self, run: str) -> str:
        """Returns why there is no checkpoint to compute from. What a run says of other places is not followed."""
        with contextlib.suppress(OSError), self._root.directory(parts_of(run)) as here:
            if url := (read_at(here, ["checkpoints.url"], 4096) or b"").decode(errors="replace").strip():
                return f"The checkpoints of the run are at {url}: `dovetail board {url}` shows what they have."
        return "The run has no checkpoint in its directory, from whose config this is computed."

    def close(self) -> None:
        self._children.close()


def measured(facts: Facts) -> Answer | None:
    """Returns what a run has measured of itself of late; None if nothing."""
    found: Answer = {}
    if facts.pace is not None:
        found["step_seconds"] = facts.pace
    for name in ("mfu", "data_wait"):
        if name in facts.last:
            found["data_wait_share" if name == "data_wait" else name] = said(facts.last[name])
    if facts.unit and facts.rate is not None:
        found[f"{facts.unit}s_per_second"] = said(facts.rate)
    return found or None
