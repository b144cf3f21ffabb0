# SPDX-License-Identifier: Apache-2.0
"""The runs whose checkpoints are in a store of objects: steps and configs. Metrics and logs are in file systems."""

import re
import threading
import time
from typing import Any

from dovetail.storage import Objects, StorageError

from ._child import Children, Unavailable
from ._config import Paths, paths_in
from ._runs import Answer, NotFound, Runs, View

_MARK = re.compile(r"(?:(.{1,1000})/)?finished/step_(0|[1-9]\d{0,14})\.json", re.S)
_AGAIN = 30.0  # Seconds between two looks at the keys.
_SECONDS = 20.0
_ONLY = "Only checkpoints are kept here: there are steps and the config, but no metrics, samples, goodput or log."
_EMPTY = {"texts": {"texts": [], "more": False}, "tables": {"tables": [], "more": False}}
_EMPTY |= {"pictures": {"pictures": []}, "histograms": {"histograms": []}}


class BucketRuns(Runs):
    """Looks at keys, and at configs when they are asked for. The store answers within `seconds`, or has failed."""

    def __init__(self, url: str, *, children: Children | None = None, seconds: float = _SECONDS) -> None:
        self._objects = Objects(url, where="board", seconds=seconds)
        self.where = self._objects.url
        self._children = children or Children()
        self._lock = threading.Lock()
        self._steps: dict[str, int] = {}
        self._problems: list[str] = []
        self._looked: float | None = None
        self._configs: dict[tuple[str, int], Paths] = {}

    def _find(self) -> dict[str, int]:
        """Returns the newest step of each run."""
        with self._lock:
            if self._looked is None or time.monotonic() - self._looked >= _AGAIN:
                try:
                    self._steps, self._problems = _steps_in(self._objects.keys("")), []
                except StorageError as e:
                    self._problems = [str(e)]
                self._looked = time.monotonic()
            return self._steps

    def _checked(self, run: str) -> int:
        step = self._find().get(run)
        if step is None:
            raise NotFound(f"There is no run {run!r:.200} here.")
        return step

    def listed(self) -> Answer:
        runs = [self._run(run, step) for run, step in sorted(self._find().items())]
        return {"runs": runs, "problems": [*self._problems, _ONLY]}

    def _run(self, run: str, step: int) -> Answer:
        config = dict(self._configs.get((run, step), []))
        steps = config.get("steps", "")
        total = int(steps) if steps.isdecimal() else None
        empty = ("recipe", "loss", "rate", "unit", "mfu", "goodput", "seconds_left", "started", "updated", "seconds")
        name = (self.where if run == "." else run).rpartition("/")[2]
        state = "done" if total is not None and step >= total else "lost"
        known: Answer = {"id": run, "name": name, "state": state, "step": step, "steps": total, "last": {}}
        return known | dict.fromkeys(empty) | {"phase": None, "error": None, "problems": [_ONLY]}

    def stamps(self) -> dict[str, object]:
        return dict(self._find())

    def about(self, run: str) -> Answer:
        step, problem = self._checked(run), []
        try:
            config = self.config(run)
        except Unavailable as e:
            config, problem = [], [str(e)]
        shown = self._run(run, step)
        shown["problems"] = [*shown["problems"], *problem]
        names = {"metrics": [], "texts": [], "pictures": [], "tables": [], "histograms": []}
        return {"run": shown, **names, "config": config}

    def config(self, run: str) -> Paths:
        key = (run, self._checked(run))
        with self._lock:
            known = self._configs.get(key)
        if known is None:
            known = paths_in(self._children.ask("config", self._place(run))["config"])
            with self._lock:
                if len(self._configs) > 1000:
                    self._configs.clear()
                self._configs[key] = known
        return known

    def _place(self, run: str) -> str:
        return self.where if run == "." else f"{self.where}/{run}"

    def curve(self, run: str, view: View) -> Answer:
        self._checked(run)
        raise NotFound(_ONLY)

    def samples(self, run: str, kind: str, name: str, before: int | None, most: int | None = None) -> Answer:
        self._checked(run)
        return dict(_EMPTY[kind])

    def picture(self, run: str, file: str) -> tuple[str, bytes]:
        self._checked(run)
        raise NotFound(_ONLY)

    def goodput(self, run: str) -> Answer:
        self._checked(run)
        return {"kinds": {}, "spans": [], "events": []}

    def memory(self, run: str, on: str | None) -> Answer:
        self._checked(run)
        found: Answer = {"parts": [], "predicted": None, "measured": None}
        try:
            told: Any = self._children.ask("memory", self._place(run), *([on] if on else []))
        except Unavailable as e:
            return found | {"note": str(e)}
        return found | {"parts": told["parts"], "predicted": told["predicted"]}

    def log(self, run: str, lines: int, file: str | None) -> Answer:
        self._checked(run)
        return {"lines": [{"time": None, "level": "info", "text": _ONLY}], "files": []}

    def close(self) -> None:
        self._children.close()


def _steps_in(keys: list[str]) -> dict[str, int]:
    """Returns the newest finished step of each run, by its prefix."""
    found: dict[str, int] = {}
    for key in keys:
        if match := _MARK.fullmatch(key):
            run = match[1] or "."
            found[run] = max(found.get(run, 0), int(match[2]))
    return found
