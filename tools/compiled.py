# SPDX-License-Identifier: Apache-2.0
"""Compiles training steps for hardware that is not here, and records what `dovetail compile` prints.

`python tools/compiled.py ['RECIPE@HARDWARE [CHANGE]' ...]` adds to benchmarks/results/compile, one file for each, and
rewrites the table of all of them, benchmarks/results/compile.md. It needs the compilers (`make compilers`), and minutes
for each.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from dovetail.hardware import machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAIRS = (
    "llama2-7b@tpu-v5p-512",
    "llama2-7b@tpu-v5p-512 remat=full",
    "llama2-7b@gpu-h100-256",
    "llama2-70b@tpu-v5p-1024",
    "llama2-70b@gpu-h100-512",
    "qwen3-30b-a3b@tpu-v5p-1024",
    "qwen3-30b-a3b@gpu-b200-512",
    "llama3-8b@tpu-v6e-8",
    "llama3-8b@tpu-v5e-16",
    "deepseek-v3@tpu-v5p-1024",
)


def record(pair: str) -> None:
    pair, *changes = pair.split()
    recipe, _, hardware = pair.partition("@")
    command = ["dovetail", "compile", recipe, "--on", hardware, *changes]
    paths = [str(ROOT / ".venv" / "compilers"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)}
    run = [sys.executable, "-m", "dovetail.cli", *command[1:]]
    text, data = (
        subprocess.run(each, env=environ, capture_output=True, text=True, check=False)
        for each in (run, [*run, "--json"])
    )
    if text.returncode not in (0, 3):
        raise SystemExit(f"{pair}: {text.stderr[-2000:]}")
    (RESULTS / "compile").mkdir(exist_ok=True)
    name = "_".join([pair, *changes])
    (RESULTS / "compile" / f"{name}.txt").write_text(f"$ {' '.join(command)}\n{text.stdout}", encoding="utf-8")
    (RESULTS / "compile" / f"{name}.json").write_text(data.stdout, encoding="utf-8")


COLUMNS = (
    *("recipe", "hardware", "mesh", "remat", "microbatches", "GiB per chip", "of"),
    *("FLOPs, hardware / model", "gathers beside other work", "seconds to compile"),
)


def table() -> str:
    rows = [COLUMNS, ["---"] * len(COLUMNS)]
    for path in sorted((RESULTS / "compile").glob("*.json")):
        found = json.loads(path.read_text("utf-8"))
        gathers = [each for each in found["collectives"] if each["kind"] == "all-gather"]
        beside = sum(each["bytes"] for each in gathers if each["async"]) / max(
            1, sum(each["bytes"] for each in gathers)
        )
        rows.append(
            [
                found["recipe"],
                found["hardware"],
                ", ".join(f"{axis} {size}" for axis, size in found["mesh"].items()),
                str(found["remat"]),
                str(found["num_microbatches"]),
                f"{found['hbm_per_chip_gib']:.1f}",
                f"{found['hbm_limit_gib']:.1f}",
                f"{found['hardware_flops'] / found['model_flops']:.3f}",
                f"{beside:.0%}",
                f"{found['compile_seconds']:.0f}",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    for pair in sys.argv[1:] or PAIRS:
        print(pair, flush=True)
        record(pair)
    here = machine()
    where = f"{here['processor']}, {here['cores']} cores, which had other work as well"
    text = f"# Training steps, compiled without the chips\n\nCompiled on {where}.\n\n{table()}\n"
    (RESULTS / "compile.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
