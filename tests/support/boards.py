# SPDX-License-Identifier: Apache-2.0
"""Directories of runs that are written, not trained, for tests of the board; and a board over them."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.board import Board, DirectoryRuns

START = 1_700_000_000.0
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))


def write_metrics(directory: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Appends records as `JsonLines` does; a step that names no time took a second."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "metrics.jsonl").open("a", encoding="utf-8") as file:
        for record in records:
            head = {"step": record["step"], "time": START + record["step"]}
            file.write(json.dumps({**head, **record}, ensure_ascii=False) + "\n")
    return directory


def write_run(directory: Path, steps: int = 20, **values: float) -> Path:
    """Writes a run that has made so many of 100 steps."""
    records = [
        {"step": step, "loss": 10.0 / step, "tokens": 64.0, "tokens_per_second": 640.0, "goodput": 0.5, **values}
        for step in range(1, steps + 1)
    ]
    write_metrics(directory, [*records, {"step": steps, "eval/loss": 1.5}])
    (directory / "config.txt").write_text("(root) = dovetail.train.Trainer.Config\nseed = 0\nsteps = 100\n")
    return directory


def write_ledger(directory: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Writes records of a ledger; `open` says the rest of the first one of a life."""
    directory.mkdir(parents=True, exist_ok=True)
    about = {"boot": "x", "supervised": False, "events": 0, "gap": {}}
    with (directory / "goodput.jsonl").open("a", encoding="utf-8") as file:
        for record in records:
            more = about if record.get("event") == "open" else {"after": {}, "kind": "step"}
            record = {**more, "clock": record["wall"] - START, **record}
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
    return directory


class Answer(NamedTuple):
    """What a server has answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(board: Board, target: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> Answer:
    """Asks a board; `target` is sent as it is."""
    connection = HTTPConnection("127.0.0.1", board.port, timeout=30)
    try:
        connection.putrequest(method, target, skip_host="Host" in (headers or {}))
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        found = connection.getresponse()
        return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
    finally:
        connection.close()


@contextlib.contextmanager
def served(directory: Path, **options: Any) -> Iterator[Board]:
    """Yields a board over a directory, at a free port."""
    with Board(DirectoryRuns(directory), port=0, **options) as board:
        yield board
