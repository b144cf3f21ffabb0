# SPDX-License-Identifier: Apache-2.0
"""Directories of runs, made up quickly: the files that a real run writes, with curves, samples, a ledger and a log.

`python -m support.board_runs DIRECTORY COUNT` makes some to look at.
"""

import json
import math
import random
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any

HOSTILE = "<img src=x onerror=\"document.title='harm'\"><script>document.title='harm'</script>"
_PICTURE_SIZE = 96


def make_run(
    directory: Path,
    *,
    steps: int = 400,
    of: int | None = None,
    every: int = 1,
    seed: int = 0,
    ended: str = "done",
    bad: tuple[int, ...] = (),
    restart: int | None = None,
    words: str = "The whale, that day, was a calm sea of white.",
    metric: str = "eval/top5",
    config: dict[str, str] | None = None,
    log: tuple[str, ...] = (),
    samples: bool = True,
    now: float | None = None,
) -> Path:
    """Writes a run that has made `steps` steps of `of`, and ended so ("" is: it goes on). Returns its directory."""
    draw = random.Random(seed)
    directory.mkdir(parents=True)
    begin = (time.time() if now is None else now) - 0.5 * steps - 20
    lines: list[dict[str, Any]] = []
    for step in range(1, steps + 1, every):
        at = begin + 10 + 0.5 * step
        values = _values(step, steps, seed, draw) | ({"loss": "nan"} if step in bad else {})
        lines.append({"step": step, "time": at, **values})
        if step % 50 == 0 or step == steps:
            lines.append({"step": step, "time": at, "eval/loss": 2.3 + 6 * math.exp(-step / 70), metric: step / steps})
            if samples:
                lines += _samples(directory, step, at, words, draw)
    if restart is not None:  # What was lost is made again.
        cut = next(i for i, line in enumerate(lines) if line["step"] > restart)
        again = [{**line, "time": line["time"] + 15} for line in lines[max(0, cut - 30 // every) :]]
        lines = [*lines[:cut], *again]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _write_ledger(directory, steps, begin, ended, restart)
    paths = _paths(of or steps, seed) | (config or {})
    (directory / "config.txt").write_text("".join(f"{path} = {value}\n" for path, value in paths.items()))
    (directory / "launch").mkdir()
    said = [f"step {step}/{of or steps}  loss {2.1 + 6 * math.exp(-step / 60):.3f}" for step in range(1, steps, 10)]
    (directory / "launch" / "0.log").write_text("\n".join(["importing ...", *said, *log]) + "\n")
    return directory


def _values(step: int, steps: int, seed: int, draw: random.Random) -> dict[str, Any]:
    return {
        "loss": 2.1 + 6 * math.exp(-step / (60 + 8 * seed)) + draw.gauss(0, 0.12),
        "accuracy": 0.45 * (1 - math.exp(-step / 150)) + draw.gauss(0, 0.01),
        "grad_norm": abs(draw.gauss(1, 0.2)) + 3 * math.exp(-step / 40),
        "learning_rate": 3e-3 * min(1, step / 40) * (1 - step / (2 * steps)),
        "tokens": 1024.0,
        "tokens_per_second": 6100 + draw.gauss(0, 200),
        "data/epochs": step / 300,
        "data/documents": float(step * 3),
        "goodput": 0.9 - 0.4 * math.exp(-step / 30),
    }


def _paths(steps: int, seed: int) -> dict[str, str]:
    return {
        "(root)": "dovetail.train.Trainer.Config",
        "recipe": "'tiny-lm'",
        "steps": str(steps),
        "model": "dovetail.models.CausalLM.Config",
        "model.dim": str(128 * (1 + seed % 3)),
        "model.decoder": "dovetail.module.Repeat.Config",
        "model.decoder.num_layers": str(4 + seed % 2),
        "model.decoder.layer.ffn": "dovetail.nn.DenseFeedForward.Config",
        "model.decoder.layer.ffn.hidden_dim": "512",
        "model.decoder.layer.ffn.activation": "jax.nn.silu",
        "learner.optimizer.learning_rate": str(3e-3 / (1 + seed)),
        "learner.schedule[0].steps": "40",
        "input.batch_size": "8",
    }


def append(directory: Path, **values: Any) -> None:
    """Adds a line to the metrics of a run."""
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"time": time.time(), **values}) + "\n")


def _samples(directory: Path, step: int, at: float, words: str, draw: random.Random) -> list[dict[str, Any]]:
    where = f"pictures/reconstruction/{step}.png"
    (directory / where).parent.mkdir(parents=True, exist_ok=True)
    (directory / where).write_bytes(png(step))
    rows = [
        [name, step / 1000 + draw.random() / 9, round(draw.random(), 3), 1000 + step]
        for name in ("arc", "mmlu", words[:40])
    ]
    edges = [-3 + 0.25 * i for i in range(25)]
    spread = 0.5 + step / 300
    counts = [round(4000 * math.exp(-(((edge + 0.125) / spread) ** 2)) / spread) for edge in edges[:-1]]
    return [
        {"step": step, "time": at, "sample": f"step {step}: {words}\n" * 4},
        {"step": step, "time": at, "pictures": {"reconstruction": where}},
        {
            "step": step,
            "time": at,
            "tables": {"benchmarks": {"columns": ["task", "score", "error", "rows"], "rows": rows}},
        },
        {"step": step, "time": at, "histograms": {"weights/ffn": {"edges": edges, "counts": counts}}},
    ]


def _write_ledger(directory: Path, steps: int, begin: float, ended: str, restart: int | None) -> None:
    """Writes a ledger: a start, compiling, steps with an evaluation in between, and if asked a second life."""
    lines: list[dict[str, Any]] = []

    def open_life(life: str, at: float, gap: dict[str, float]) -> None:
        here = {"life": life, "wall": begin + at, "clock": at}
        more = {"boot": "x", "supervised": False, "events": 0, "gap": gap}
        lines.append({"event": "open", **here, **more})

    def add(life: str, at: float, step: int, kind: str, seconds: dict[str, float], **more: str) -> None:
        spent = {"seconds": {k: round(v, 3) for k, v in seconds.items()}, "after": {}}
        lines.append({"life": life, "wall": begin + at, "clock": at, "step": step, "kind": kind, **spent, **more})

    def live(life: str, start: float, first: int, last: int) -> float:
        spent: dict[str, float] = {"start": 4.0}
        add(life, start + 4, first, "compile", spent, event="resume")
        spent["compile"] = 6.0
        for step in range(first, last + 1, 10):
            spent["step"] = spent.get("step", 0.0) + 4.2
            spent["data_wait"] = spent.get("data_wait", 0.0) + (2.0 if step % 120 == 0 else 0.0)
            spent["evaluation"] = spent.get("evaluation", 0.0) + (3.0 if step % 100 == 0 else 0.0)
            spent["checkpoint"] = spent.get("checkpoint", 0.0) + (1.0 if step % 100 == 0 else 0.0)
            add(life, start + sum(spent.values()), step, "step", spent)
        return start + sum(spent.values())

    open_life("a", 0.0, {})
    end = live("a", 0.0, 0, steps if restart is None else restart)
    life, spent = "a", {}
    if restart is not None:
        open_life("b", end + 12, {"idle": 12.0})
        end, life = live("b", end + 12, max(0, restart - 30), steps), "b"
    if ended:
        spent = lines[-1]["seconds"]
        add(life, end, steps, "step", spent, ended=ended)
    (directory / "goodput.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def png(seed: int, size: int = _PICTURE_SIZE) -> bytes:
    """Returns a small picture of rings."""

    def pixel(x: int, y: int) -> bytes:
        wave = 0.5 + 0.5 * math.sin(math.hypot(x - size / 2, y - size / 2) / (3 + seed % 17))
        return bytes((int(255 * wave), int(180 * (1 - wave)), int(120 + 100 * wave * y / size)))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"".join(pixel(x, y) for x in range(size)) for y in range(size))
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def make_many(directory: Path, count: int) -> None:
    """Writes runs in several states, of several lengths."""
    ends = ["done", "stopped", "", "failed", "done", "done"]
    for index in range(count):
        ended = ends[index % len(ends)]
        options: dict[str, Any] = {"seed": index, "ended": ended, "steps": 400 - 37 * (index % 4), "of": 400}
        if index == 1:
            options |= {"bad": (150, 151, 220), "restart": 200}
        if ended == "failed":
            options["log"] = (
                "WARNING: a batch was late",
                "Traceback (most recent call last):",
                '  File "x.py", line 3',
                "ValueError: 3",
            )
        name = ("baseline", "wide", "long/warm-up", "lr-high")[index % 4] + (f"-{index}" if index > 3 else "")
        make_run(directory / name, samples=index < 12, **options)


if __name__ == "__main__":
    make_many(Path(sys.argv[1]), int(sys.argv[2]))
