# SPDX-License-Identifier: Apache-2.0
"""How long a job of Slurm is away when it is preempted, when a node dies, and when a spare takes the place of one.

A Slurm of four nodes is started on this machine, as the tests have it; a run of two processes is broken there, and in
the end its weights, optimizer and place in the data are compared with a run that was left alone, bit by bit.

    python benchmarks/slurm.py [--rounds 3]      (as root, with slurmctld, slurmd, slurm-client and munge)
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _report import counted, header, program, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from chaos_check import difference
from dovetail.progress import note
from support import slurm
from support.slurm_run import RECIPE, SRC, SlurmRun, here

_STEPS = 400

Times = dict[str, list[float]]


def unbroken(directory: Path) -> str:
    """Returns the checkpoints of the run that is left alone."""
    (directory / "control").mkdir(parents=True)
    command = [sys.executable, "-m", "dovetail.cli", "launch", RECIPE, "--processes", "2", f"steps={_STEPS}"]
    command += [f"directory={directory / 'run'}", f"input.control={directory / 'control'}"]
    subprocess.run(command, env={**here(), "PYTHONPATH": str(SRC)}, check=True, capture_output=True)
    return str(directory / "run" / "checkpoints")


def moved(run: SlurmRun, starts: int) -> float:
    """Waits for a step of a later start; returns when it was."""

    def found() -> list[float]:
        return [each["clock"] for each in run.events("moving") if each["start"] > starts]

    run.cluster.until(lambda: bool(found()), f"a step: {run.log()}", 120)
    return found()[0]


def preempted_and_without_a_node(run: SlurmRun, times: Times) -> None:
    """A job of higher priority takes all nodes; later a node dies, and there is no spare."""
    run.launch("--processes", "2", steps=_STEPS)
    run.until_step(30)
    at = run.take_nodes(0)
    over = run.until(1, "over")["clock"] - at
    launched = run.until(2, "launched")["clock"] - at
    _note(times, "preempted: has saved", over)
    _note(times, "preempted: runs again", launched)
    _note(times, "preempted: makes steps again", moved(run, 1) - at)
    run.until_step(run.step() + 20)
    at = time.monotonic()
    run.cluster.kill_node(run.node_of(1))
    _note(times, "node lost, no spare: runs elsewhere", run.until(3, "launched")["clock"] - at)
    _note(times, "node lost, no spare: makes steps again", moved(run, 2) - at)


def with_a_spare(run: SlurmRun, times: Times) -> None:
    """A node dies, and there is a spare: Slurm does not start the job again."""
    run.launch("--processes", "2", "--spares", "1", steps=_STEPS)
    run.until_step(30)
    slot = int(run.events("start")[0]["slots"][1])
    at = time.monotonic()
    run.cluster.kill_node(run.node_of(slot))
    _note(times, "node lost, a spare: makes steps again", moved(run, 1) - at)


def _note(times: Times, what: str, seconds: float) -> None:
    times.setdefault(what, []).append(seconds)
    note(f"{what}: {seconds:.1f} s")


def main() -> None:
    """Runs all, and prints the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if why := slurm.missing():
        sys.exit(why)
    times: Times = {}
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        directory = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(directory / "c" / "cache")
        wanted, compared = unbroken(directory / "unbroken"), list[str]()
        with slurm.slurm(directory / "c") as cluster:
            version = cluster.run("sbatch", "--version").stdout.strip()
            for number in counted("breaking jobs", range(args.rounds)):
                for break_it in (preempted_and_without_a_node, with_a_spare):
                    run = SlurmRun(cluster, directory / f"{break_it.__name__}-{number}")
                    break_it(run, times)
                    shown = run.until_over()
                    problems = difference(run.checkpoints, wanted) if shown["state"] == "done" else [shown["detail"]]
                    compared.append("equal" if not problems else f"NOT EQUAL: {problems}")
                    for node in slurm.NODES:
                        if node not in cluster.idle():
                            cluster.start_node(node)
                    cluster.until(lambda: len(cluster.idle()) == len(slurm.NODES), "nodes")
        header("Jobs of Slurm that are broken")
    print(
        f"`python benchmarks/slurm.py --rounds {args.rounds}`: two processes that train, on a Slurm of four nodes that"
    )
    print(f"is all on this machine ({version}). Seconds from the fault, the median and the most of {args.rounds}.\n")
    rows = [(what, f"{statistics.median(found):.1f}", f"{max(found):.1f}") for what, found in times.items()]
    table(("what", "median, s", "most, s"), rows)
    equal = sum(each == "equal" for each in compared)
    print(
        f"{equal} of {len(compared)} runs ended with the weights, the optimizer, the averages and the place in the data"
    )
    print("of the run that was left alone, bit for bit.")
    for each in compared:
        if each != "equal":
            print(each)


if __name__ == "__main__":
    program(main)
