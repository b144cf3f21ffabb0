# SPDX-License-Identifier: Apache-2.0
"""The board over many runs: time to listen, to list, to draw a curve that was never read and one that was, memory.

`python benchmarks/board.py --runs 1000 --points 100000` makes the runs in a temporary directory and asks a board that
it starts. Only `--distinct` of the files of metrics differ, the others are links to them, so that disk and page cache
are enough for any number of runs: to the board all are files of their own. All of them are in the page cache.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from _report import header, table

NAMES = ("accuracy", "data/epochs", "data_wait", "goodput", "grad_norm", "host_ms", "learning_rate", "loss", "mfu")
NAMES += ("param_norm", "skipped", "tokens", "tokens_per_second", "total_loss", "weight")


def write_metrics(file: Path, points: int, metrics: int, seed: int) -> None:
    """Writes what a run of so many logged steps has, an evaluation at each hundredth of them."""
    rng = np.random.default_rng(seed)
    names = (*NAMES, *(f"aux/norm of layer {chr(97 + i)}" for i in range(max(0, metrics - len(NAMES)))))[:metrics]
    if "loss" not in names:
        names = (*names[:-1], "loss")
    values = rng.random((points, len(names))).tolist()
    with file.open("w", encoding="utf-8") as out:
        for step, row in enumerate(values, 1):
            record = {"step": step, "time": 1.7e9 + 0.25 * step, **dict(zip(names, row, strict=True))}
            out.write(json.dumps(record) + "\n")
            if step % max(1, points // 100) == 0:
                out.write(json.dumps({"step": step, "time": 1.7e9 + 0.25 * step, "eval/loss": row[0]}) + "\n")


def write_runs(place: Path, args: argparse.Namespace) -> list[str]:
    """Writes the runs, and returns their ids."""
    files: list[Path] = []
    for i in range(min(args.distinct, args.runs)):
        files.append(place / f"metrics-{i}")
        write_metrics(files[-1], args.points, args.metrics, i)
    config = "".join(f"model.stack.layer.part{i}.value = {i}\n" for i in range(600)) + f"steps = {args.points}\n"
    ledger = [{"event": "open", "life": "a", "wall": 1.7e9, "clock": 0, "boot": "", "supervised": False, "events": 0}]
    ledger[0]["gap"] = {}
    ledger.append(
        {"life": "a", "wall": 1.7e9 + 9, "clock": 9, "step": args.points, "kind": "step", "seconds": {"step": 9}}
    )
    text = "".join(json.dumps(each) + "\n" for each in ledger)
    runs: list[str] = []
    for i in range(args.runs):
        runs.append(f"sweep{i // 100}/run{i}")
        directory = place / "runs" / runs[-1]
        directory.mkdir(parents=True)
        os.link(files[i % len(files)], directory / "metrics.jsonl")
        (directory / "config.txt").write_text(config)
        (directory / "goodput.jsonl").write_text(text)
    return runs


class Server:
    """A board in a process of its own."""

    def __init__(self, place: Path) -> None:
        start = time.perf_counter()
        command = [sys.executable, "-m", "dovetail.cli", "board", str(place), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        self.seconds = time.perf_counter() - start  # Until it listens.

    def get(self, target: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{target}", timeout=600) as answer:
            return json.load(answer)

    def curves(self, runs: list[str], name: str = "loss", rest: str = "") -> Any:
        named = "&".join(f"run={quote(run, safe='')}" for run in runs)
        return self.get(f"api/curves?{named}&name={quote(name, safe='')}{rest}")["curves"]

    def memory(self, what: str = "VmHWM") -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def seconds(work: Callable[[], object]) -> float:
    """Returns how long something takes, once."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(place: Path, runs: list[str], args: argparse.Namespace) -> list[tuple[str, str]]:
    """Returns what was measured, and its figures."""
    rows: list[tuple[str, str]] = []

    def told(what: str, values: list[float], unit: str = "s") -> None:
        ordered = sorted(values)
        shown = f"{ordered[len(ordered) // 2]:.3f}" + (
            f" (worst of {len(ordered)}: {ordered[-1]:.3f})" if ordered[1:] else ""
        )
        rows.append((what, f"{shown} {unit}"))

    servers = [Server(place / "runs") for _ in range(args.rounds)]
    told("from the command to listening", [each.seconds for each in servers])
    told("first list", [seconds(lambda each=each: each.get("api/runs")) for each in servers])
    server = servers[0]
    told("list again", [seconds(lambda: server.get("api/runs")) for _ in range(args.rounds)])
    told("memory after the list", [server.memory()], "MiB")
    rng = random.Random(0)
    chosen = rng.sample(runs, min(20, len(runs)))
    told("curve of a run that was never read", [seconds(lambda run=run: server.curves([run])) for run in chosen])
    told("another metric of it", [seconds(lambda run=run: server.curves([run], "grad_norm")) for run in chosen])
    told("a curve that was read", [seconds(lambda run=run: server.curves([run])) for run in chosen])
    zoom = f"&from={args.points // 3}&to={args.points // 2}"
    told("a part of it", [seconds(lambda run=run: server.curves([run], rest=zoom)) for run in chosen])
    told(
        "names, samples and config of it",
        [seconds(lambda run=run: server.get(f"api/run?run={quote(run, safe='')}")) for run in chosen],
    )
    told(
        "one metric of ten runs that were read",
        [seconds(lambda: server.curves(chosen[:10])) for _ in range(args.rounds)],
    )
    for run in rng.sample(runs, min(200, len(runs))):
        server.curves([run])
    rows.append((f"memory after curves of {min(200, len(runs))} runs", f"{server.memory():.0f} MiB at most"))
    with (place / "runs" / runs[0] / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": args.points + 1, "time": 2e9, "loss": 1.0}) + "\n")
    told("a curve that has grown by a line", [seconds(lambda: server.curves([runs[0]]))])
    for each in servers:
        each.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--metrics", type=int, default=20)
    parser.add_argument("--distinct", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    header(
        f"The board over {args.runs:,} runs of {args.points:,} points of {args.metrics} metrics", ("dovetail", "numpy")
    )
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        runs = write_runs(place, args)
        size = sum(file.stat().st_size for file in place.glob("metrics-*")) / min(args.distinct, args.runs)
        print(f"A file of metrics has {size / 1e6:.1f} MB.\n")
        table(("", "median"), measure(place, runs, args))


if __name__ == "__main__":
    main()
