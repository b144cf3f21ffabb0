# SPDX-License-Identifier: Apache-2.0
"""What it costs that a run is watched: tokens a second of a launch with everything on, beside a bare loop.

The bare loop compiles the same step and calls it, two steps ahead of the results; no trainer, no metrics but the loss.
Each contender is a process of its own, with the same settings of the host, and they take turns. What counts is the
ratio, the median over the rounds.

    python benchmarks/supervised.py [--rounds 5] [--steps 200] [--recipe tiny-lm]
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from importlib import metadata
from pathlib import Path

_AHEAD, _FIRST = 2, 20  # Steps ahead of the device, and those that are not counted.
_SAVES_NEVER = "save_every=1000000"


def bare(recipe: str, steps: int) -> float:
    """Returns the seconds that a step takes, the median, in a loop around the compiled step."""
    import jax

    from dovetail.cli import resolve
    from dovetail.train import Trainer

    cfg = resolve(recipe, [f"steps={steps}", "evaluators={}"]).cfg
    trainer: Trainer = cfg.build()
    program = trainer._program
    state = jax.jit(program.init)(jax.random.key(cfg.seed))
    batches = trainer.input.iterator()
    step = program.compiled(state, program.batches[0])
    pending, at = deque(), list[float]()
    for _ in range(steps):
        state, metrics = step(state, next(batches))
        pending.append(metrics["total_loss"])
        if len(pending) > _AHEAD:
            float(pending.popleft())
            at.append(time.perf_counter())
    return _median(at)


def _median(at: list[float]) -> float:
    at = at[_FIRST:]
    return statistics.median(after - before for before, after in itertools.pairwise(at))


def launched(recipe: str, steps: int, options: list[str], command: list[str]) -> float:
    """Returns the same for a run, from when its steps were reported."""
    with tempfile.TemporaryDirectory() as directory:
        run = ["dovetail", *command, recipe, f"steps={steps}", f"directory={directory}/run", "evaluators={}"]
        run[0] = str(Path(sys.executable).with_name(run[0]))
        done = subprocess.run([*run, "log_every=1", _SAVES_NEVER, *options], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(run)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        lines = (Path(directory) / "run" / "metrics.jsonl").read_text().splitlines()
        return _median([each["time"] for each in map(json.loads, lines) if "loss" in each])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="tiny-lm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--on", nargs="*", default=[], help="what else is on in the launch, as overrides")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare:
        from dovetail.hardware import host_settings, restart_with

        restart_with(host_settings(os.environ))
        print(bare(args.recipe, args.steps))
        return 0
    rows: dict[str, list[float]] = {"bare loop": [], "dovetail train": [], "dovetail launch, everything on": []}
    for _ in range(args.rounds):
        alone = [sys.executable, __file__, "--bare", "--recipe", args.recipe, "--steps", str(args.steps)]
        rows["bare loop"].append(
            float(subprocess.run(alone, capture_output=True, text=True, check=True).stdout.split()[-1])
        )
        rows["dovetail train"].append(launched(args.recipe, args.steps, [], ["train"]))
        rows["dovetail launch, everything on"].append(launched(args.recipe, args.steps, args.on, ["launch"]))
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "orbax-checkpoint"))
    print(f"{args.recipe}, {args.rounds} rounds of {args.steps} steps, {platform.machine()}, {versions}")
    print("| | step, median, ms | beside the bare loop, median of rounds (least, most) |\n| --- | ---: | ---: |")
    for name, found in rows.items():
        ratios = [a / b for a, b in zip(found, rows["bare loop"], strict=True)]
        text = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}, {max(ratios):.3f})"
        print(f"| {name} | {statistics.median(found) * 1e3:.2f} | {text} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
