# SPDX-License-Identifier: Apache-2.0
"""Predicts steps from compiled and from traced programs, and records how far apart the two are.

`python tools/predicted.py ['RECIPE@HARDWARE [CHANGE]' ...]` adds to benchmarks/results/predict, one file for each, and
rewrites the table of all of them, benchmarks/results/predict_compiled.md. It needs the compilers (`make compilers`),
and minutes for each that was not compiled before.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from dovetail.hardware import machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAIRS = (
    "llama2-7b@tpu-v5p-512",
    "llama2-7b@tpu-v5p-512 remat=full",
    "llama2-7b@gpu-h100-256",
    "llama2-70b@tpu-v5p-1024 remat=save_qkvo num_microbatches=1",
    "llama2-70b@gpu-h100-512",
    "llama3-8b@gpu-h100-64",
    "llama3-8b@tpu-v6e-8 remat=offload_qkvo num_microbatches=32 mesh.fsdp=8 mesh.tensor=1",
    "llama3-8b@tpu-v5e-16 remat=full num_microbatches=32 mesh.fsdp=16 mesh.tensor=1",
    "llama3-70b@gpu-b200-256",
    "qwen3-30b-a3b@tpu-v5p-1024",
    "qwen3-30b-a3b@gpu-b200-512",
    "deepseek-v3@tpu-v5p-1024 remat=offload_qkvo num_microbatches=30 mesh.fsdp=64 mesh.expert=8 mesh.tensor=1",
)
# Seconds that AXLearn published (arXiv:2507.05411), of its own programs on the same chips and batches.
PUBLISHED = {
    "llama2-7b@tpu-v5p-512": 2.5,
    "llama2-7b@gpu-h100-256": 1.4,
    "llama2-70b@tpu-v5p-1024 remat=save_qkvo num_microbatches=1": 11.6,
    "llama2-70b@gpu-h100-512": 9.2,
}
PARTS = ("products", "attention", "memory traffic", "exposed", "optimizer", "host", "pipeline bubble", "other")


def record(pair: str) -> None:
    name, *changes = pair.split()
    recipe, _, hardware = name.partition("@")
    paths = [str(ROOT / ".venv" / "compilers"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)}
    run = [sys.executable, "-m", "dovetail.cli", "predict", recipe, "--on", hardware, "--json", *changes]
    found: dict[str, Any] = {"pair": pair, "published": PUBLISHED.get(pair)}
    for method, more in (("traced", ["--fast"]), ("compiled", [])):
        done = subprocess.run([*run, *more], env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{pair}: {done.stderr[-2000:]}")
        found[method] = json.loads(done.stdout)
        if found[method]["method"] != method:
            raise SystemExit(f"{pair}: {found[method]['assumptions'][-1]}")
    (RESULTS / "predict").mkdir(exist_ok=True)
    path = RESULTS / "predict" / f"{'_'.join([name, *changes])}.json"
    path.write_text(json.dumps(found, indent=2), encoding="utf-8")


def part(found: dict[str, Any], name: str) -> float:
    return sum(seconds for each, seconds in found["breakdown"].items() if each.startswith(name))


def table() -> str:
    columns = ("recipe, hardware", "published", "compiled", "traced", "traced / compiled - 1", *PARTS)
    rows, errors = [columns, ["---"] * len(columns)], []
    for path in sorted((RESULTS / "predict").glob("*.json")):
        each = json.loads(path.read_text("utf-8"))
        compiled, traced = each["compiled"], each["traced"]
        error = traced["step_seconds"] / compiled["step_seconds"] - 1
        errors.append(abs(error))
        rows.append(
            [
                each["pair"],
                "" if each["published"] is None else f"{each['published']}",
                f"{compiled['step_seconds']:.3g}",
                f"{traced['step_seconds']:.3g}",
                f"{error:+.0%}",
                *(f"{part(compiled, name):.3g} / {part(traced, name):.3g}" for name in PARTS),
            ]
        )
    median = f"{len(errors)} steps; median of the absolute difference {statistics.median(errors):.1%}"
    return median + "\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    for pair in sys.argv[1:] or PAIRS:
        print(pair, flush=True)
        record(pair)
    here = machine()
    where = f"{here['processor']}, {here['cores']} cores, which had other work as well"
    text = (
        "# Steps predicted from compiled and from traced programs\n\n"
        "Seconds. Parts are compiled / traced. Nothing was run on the hardware; published are steps of AXLearn's own "
        f"programs. Compiled on {where}.\n\n{table()}\n"
    )
    (RESULTS / "predict_compiled.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
