# SPDX-License-Identifier: Apache-2.0
"""What it costs that a run is watched: the time of a step of a launch with everything on, beside a bare loop.

The bare loop compiles the same step and calls it, two steps ahead of the results; no trainer, no metrics but the loss.
All contenders are started once, and then take turns of a few seconds: the others are stopped meanwhile, with all their
processes. So what else the machine does meets all alike. What counts is a turn's median step, beside the mean of
the turns of the bare loop before and after it; printed is the median over the turns.

    python benchmarks/supervised.py [--turns 20] [--seconds 5] [--recipe tiny-lm] [--on PATH=VALUE ...]
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from _report import counted, header, program

_AHEAD = 2  # Steps ahead of the device.
_STEPS = 1_000_000  # More than there is time for.
_ENDLESS = (f"steps={_STEPS}", f"save_every={_STEPS}", "evaluators={}", "log_every=1")
# Who is stopped is silent: nobody is to think that it is frozen or hangs.
_PATIENT = ("heartbeat", "hang_least", "start_least", "start_limit")
_EVERYTHING = ("tiers.memory_every=20", "spikes=Spikes")


def bare(recipe: str, file: Path) -> None:
    """Makes steps in a loop around the compiled step, and writes down when each was done."""
    import jax

    from dovetail.cli import resolve
    from dovetail.train import Trainer

    cfg = resolve(recipe, [f"steps={_STEPS}", "evaluators={}"]).cfg
    trainer: Trainer = cfg.build()
    program = trainer._program
    state = jax.jit(program.init)(jax.random.key(cfg.seed))
    batches = trainer.input.iterator()
    step = program.compiled(state, program.batches[0])
    pending = deque()
    with file.open("w", buffering=1) as times:
        while True:
            state, metrics = step(state, next(batches))
            pending.append(metrics["total_loss"])
            if len(pending) > _AHEAD:
                float(pending.popleft())
                times.write(f'{{"time": {time.time()}, "loss": 0}}\n')


class Contender:
    """A program that makes steps while it is let, and writes down when."""

    def __init__(self, name: str, command: Sequence[str], directory: Path, file: Path) -> None:
        self.name, self._file = name, file
        self._log = (directory / "log").open("wb")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)

    def steps(self) -> list[float]:
        """Returns when steps were done."""
        with contextlib.suppress(OSError):
            lines = self._file.read_text().rpartition("\n")[0].splitlines()
            return [each["time"] for each in map(json.loads, lines) if "loss" in each]
        return []

    def warm_up(self, steps: int) -> None:
        """Waits for the first steps, which compile, then stops it."""
        while len(self.steps()) < steps:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended: {Path(self._log.name).read_text()[-2000:]}")
            time.sleep(0.2)
        self._send(signal.SIGSTOP)

    def turn(self, seconds: float) -> float:
        """Returns the median time of a step in a turn; the first and the last are cut, and do not count."""
        before = len(self.steps())
        self._send(signal.SIGCONT)
        time.sleep(seconds)
        self._send(signal.SIGSTOP)
        at = self.steps()[before + _AHEAD + 1 :]
        return statistics.median(after - earlier for earlier, after in itertools.pairwise(at))

    def end(self) -> None:
        self._send(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _send(self, number: int) -> None:
        for pid in [self._process.pid, *_below(self._process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _below(pid: int) -> Iterator[int]:
    """Yields the processes that a process has started, and those that these have."""
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from _below(int(child))


def contenders(recipe: str, options: Sequence[str], directory: Path) -> Iterator[Contender]:
    """Starts them."""
    dovetail = str(Path(sys.executable).with_name("dovetail"))
    for name in ("bare", "train", "launch"):
        (directory / name).mkdir()
    file = directory / "bare" / "steps"
    yield Contender("bare loop", [sys.executable, __file__, "--recipe", recipe, "--bare", str(file)], file.parent, file)
    patient = [f"launch.supervision.{each}=1e6" for each in _PATIENT]
    for name, command, more in (
        ("dovetail train", "train", []),
        ("dovetail launch, everything on", "launch", [*patient, *_EVERYTHING, *options]),
    ):
        run = directory / command / "run"
        argv = [dovetail, command, recipe, f"directory={run}", *_ENDLESS, *more]
        yield Contender(name, argv, run.parent, run / "metrics.jsonl")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="tiny-lm")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn")
    parser.add_argument("--on", nargs="*", default=[], help="what else is on in the launch, as overrides")
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare:
        from dovetail.hardware import host_settings, restart_with

        restart_with(host_settings(os.environ))
        bare(args.recipe, args.bare)
    with tempfile.TemporaryDirectory() as directory:
        started: list[Contender] = []
        try:
            for each in contenders(args.recipe, args.on, Path(directory)):
                started.append(each)
                each.warm_up(20)
            first, *others = started
            base, found = [first.turn(args.seconds)], {each.name: list[float]() for each in others}
            for turn in counted("measuring", range(args.turns), "turns"):
                for each in others[turn % 2 :] + others[: turn % 2]:  # Each is first now and then.
                    found[each.name].append(each.turn(args.seconds))
                    base.append(first.turn(args.seconds))
        finally:
            for each in started:
                each.end()
    header(f"A watched run of {args.recipe}")
    print(f"{args.turns} turns of {args.seconds:g} s each; in the launch also {', '.join((*_EVERYTHING, *args.on))}.\n")
    print("| | step, median, ms | beside the bare loop, median of turns (quartiles) |\n| --- | ---: | ---: |")
    print(f"| bare loop | {statistics.median(base) * 1e3:.2f} | 1 |")
    for number, (name, times) in enumerate(found.items()):
        ratios = list[float]()
        for turn, value in enumerate(times):
            at = 2 * turn + (number + turn) % 2
            ratios.append(value / statistics.mean(base[at : at + 2]))
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"| {name} | {statistics.median(times) * 1e3:.2f} | {middle:.3f} ({low:.3f}, {high:.3f}) |")
    return 0


if __name__ == "__main__":
    sys.exit(program(main))
