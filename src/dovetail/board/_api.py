# SPDX-License-Identifier: Apache-2.0
"""What is answered to which address: JSON, pictures, the files of the page, an export."""

import functools
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from dovetail import __version__

from ._child import Unavailable
from ._config import difference
from ._runs import Answer, NotFound, Runs, View
from ._series import AXES
from ._summary import said

MOST_CURVES, MOST_POINTS, MOST_RUNS, MOST_FIELDS = 256, 4_000, 128, 512
_POINTS, _LINES = 800, 500
_LONGEST = 64 << 20  # Bytes of an answer.
_STATIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}


class Refused(Exception):
    """A request is not answered; the message says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Response(NamedTuple):
    """What is sent."""

    status: int
    kind: str
    body: bytes
    name: str = ""  # Of the file that the browser is to keep.


class Query:
    """The parameters of a request. Whatever is wrong with them is `Refused`."""

    def __init__(self, text: str) -> None:
        try:
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
        except (ValueError, UnicodeDecodeError) as e:
            raise Refused(400, "The parameters are not what a browser sends.") from e
        self._pairs = pairs

    def all(self, name: str, most: int) -> list[str]:
        """Returns the values of a parameter, of which there is one at least, each once."""
        found = list(dict.fromkeys(value for key, value in self._pairs if key == name))
        if not found:
            raise Refused(400, f"The parameter {name!r} is missing.")
        if len(found) > most:
            raise Refused(400, f"There are {len(found)} of {name!r}, expected at most {most}.")
        return found

    def get(self, name: str) -> str | None:
        """Returns the value of a parameter; None if it is not there."""
        found = [value for key, value in self._pairs if key == name]
        if len(found) > 1:
            raise Refused(400, f"The parameter {name!r} is there {len(found)} times, expected once.")
        return found[0] if found else None

    def one(self, name: str) -> str:
        """Returns the value of a parameter that must be there."""
        found = self.get(name)
        if found is None:
            raise Refused(400, f"The parameter {name!r} is missing.")
        return found

    def number(self, name: str) -> float | None:
        """Returns a number, if it is there."""
        text = self.get(name)
        try:
            found = None if text is None else float(text)
        except ValueError:
            found = math.nan
        if found is not None and not math.isfinite(found):
            raise Refused(400, f"{name} is {text!r:.100}, expected a number.")
        return found

    def count(self, name: str, least: int, most: int, default: int) -> int:
        """Returns a whole number within bounds."""
        found = self.number(name)
        if found is None:
            return default
        if not found.is_integer() or not least <= found <= most:
            raise Refused(400, f"{name} is {found:g}, expected {least} to {most}.")
        return int(found)


class Api:
    """Answers to addresses below `/api`, but for that of changes."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        samples = {kind: functools.partial(self._samples, kind) for kind in ("texts", "tables")}
        whole = {kind: functools.partial(self._whole_samples, kind) for kind in ("pictures", "histograms")}
        self._routes: Mapping[str, Callable[[Query], Answer]] = {
            "runs": lambda query: self.listed(),
            "run": lambda query: self._runs.about(query.one("run")),
            "curves": self._curves,
            **samples,
            **whole,
            "diff": self._diff,
            "goodput": lambda query: self._runs.goodput(query.one("run")),
            "memory": self._memory,
            "log": self._log,
        }

    def answer(self, path: str, query: Query) -> Response:
        """Returns what is at a path; raises `Refused` if there is nothing."""
        name = path.removeprefix("/api/")
        try:
            if name == "picture":
                kind, data = self._runs.picture(query.one("run"), query.one("file"))
                return Response(200, kind, data)
            if name not in self._routes:
                raise Refused(404, "There is nothing at this address.")
            body = json_bytes(self._routes[name](query))
        except NotFound as e:
            raise Refused(404, str(e)) from e
        except Unavailable as e:
            raise Refused(503, str(e)) from e
        except ValueError as e:
            raise Refused(400, str(e)[:500]) from e
        if len(body) > _LONGEST:
            raise Refused(413, f"The answer has {len(body) >> 20} MiB, which is too much. Ask for less.")
        return Response(200, "application/json", body)

    def listed(self) -> Answer:
        """Returns the list of all runs."""
        found = self._runs.listed()
        return {"directory": self._runs.where, "now": time.time(), "version": __version__, **found}

    def _curves(self, query: Query) -> Answer:
        runs, names = query.all("run", MOST_RUNS), query.all("name", MOST_CURVES)
        if len(runs) * len(names) > MOST_CURVES:
            raise Refused(400, f"These are {len(runs) * len(names)} curves, expected at most {MOST_CURVES}.")
        axis = query.get("x") or "step"
        if axis not in AXES:
            raise Refused(400, f"x is {axis!r:.100}, expected {', '.join(AXES)}.")
        points = query.count("points", 2, MOST_POINTS, _POINTS)
        begin, end = query.number("from"), query.number("to")
        views = [View(name, axis, begin, end, points) for name in names]
        return {
            "curves": some([lambda run=run, view=view: self._runs.curve(run, view) for run in runs for view in views])
        }

    def _samples(self, kind: str, query: Query) -> Answer:
        before = query.number("before")
        return self._runs.samples(query.one("run"), kind, query.one("name"), None if before is None else int(before))

    def _whole_samples(self, kind: str, query: Query) -> Answer:
        return self._runs.samples(query.one("run"), kind, query.one("name"), None)

    def _diff(self, query: Query) -> Answer:
        found = some([lambda run=run: (run, dict(self._runs.config(run))) for run in query.all("run", MOST_RUNS)])
        return difference([run for run, _ in found], [config for _, config in found])

    def _memory(self, query: Query) -> Answer:
        on = query.get("on")
        if on is not None and not re.fullmatch(r"[\w.-]{1,100}", on):
            raise Refused(400, f"on is {on!r:.100}, expected hardware, as in tpu-v5p-512.")
        return self._runs.memory(query.one("run"), on)

    def _log(self, query: Query) -> Answer:
        return self._runs.log(query.one("run"), query.count("lines", 1, 5_000, _LINES), query.get("file"))


def some(asked: list[Callable[[], Any]]) -> list[Any]:
    """Returns the answers that there are; raises `NotFound` if there is none."""
    found, missing = list[Any](), None
    for each in asked:
        try:
            found.append(each())
        except NotFound as e:
            missing = e
    if missing is not None and not found:
        raise missing
    return found


def json_bytes(answer: Any) -> bytes:
    """Returns JSON in UTF-8. Numbers that it has no word for are strings; half a pair is replaced."""
    try:
        text = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_sayable(answer), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="replace")


def _sayable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _sayable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(each) for each in value]
    return said(value) if isinstance(value, float) else value


def static(name: str) -> Response:
    """Returns a file of the page."""
    kind = _TYPES.get(name.rpartition(".")[2])
    if kind is None or not _STATIC.fullmatch(name):
        raise Refused(404, "There is nothing at this address.")
    try:
        return Response(200, kind, static_file(name))
    except OSError as e:
        raise Refused(404, "There is nothing at this address.") from e


@functools.lru_cache(maxsize=64)
def static_file(name: str) -> bytes:
    """Returns the content of a file of the page."""
    return (resources.files("dovetail.board") / "static" / name).read_bytes()
