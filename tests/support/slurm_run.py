# SPDX-License-Identifier: Apache-2.0
"""A run on a Slurm of `support.slurm`, as a user launches it, and what can happen to it there."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .slurm import Slurm

RECIPE = f"{Path(__file__).parents[2] / 'tools' / 'chaos_run.py'}:run"
SRC = Path(__file__).parents[2] / "src"


class SlurmRun:
    """A run of `tools/chaos_run.py` in a directory."""

    def __init__(self, cluster: Slurm, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        self.run, self.control = directory / "run", directory / "control"
        self.control.mkdir(parents=True, exist_ok=True)
        self.job = ""

    def cli(
        self, *arguments: str, check: bool = True, seconds: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs `dovetail` where the cluster is the one at hand."""
        command = [sys.executable, "-m", "dovetail.cli", *arguments]
        env = {**here(), "SLURM_CONF": str(self.cluster.conf), "PYTHONPATH": str(SRC), **environment}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
        if check and done.returncode:
            raise AssertionError(f"dovetail {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done

    def arguments(self, *options: str, steps: int) -> list[str]:
        """Returns what `dovetail launch` is given."""
        own = [f"directory={self.run}", f"input.control={self.control}", f"steps={steps}"]
        # Programs compiled as in the tests: the run that it is compared with is.
        own_names = [name for name in here() if name.startswith(("JAX_", "XLA_", "PJRT_"))]
        names = ["HOME", "PATH", "XDG_CACHE_HOME", *own_names]
        engine = [f"launch.python={sys.executable}", f"launch.export={json.dumps(names)}"]
        return ["launch", RECIPE, "--via", "slurm", *own, *engine, *options]

    def launch(self, *options: str, steps: int) -> str:
        """Submits it; returns the id of the job."""
        done = self.cli(*self.arguments(*options, steps=steps), XDG_CACHE_HOME=str(self.cluster.directory / "cache"))
        self.job = done.stdout.split()[0]
        return self.job

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Returns what the supervisors have written down."""
        found: list[dict[str, Any]] = []
        file = self.run / "launch" / "events.jsonl"
        for line in file.read_bytes().splitlines() if file.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:  # Torn, or being written.
                continue
        return [each for each in found if each["event"] in names]

    def step(self) -> int:
        """Returns the last step that the first process was given data for."""
        steps = 0
        for file in self.control.glob("given.*.0"):
            steps = max([steps, *(json.loads(line)[0] for line in file.read_text().splitlines() if line.endswith("]"))])
        return steps

    def until(self, count: int, *names: str, seconds: float = 120.0) -> dict[str, Any]:
        """Waits for so many events; returns the last."""
        self.cluster.until(lambda: len(self.events(*names)) >= count, f"{count} of {names}: {self.log()}", seconds)
        return self.events(*names)[count - 1]

    def until_step(self, step: int) -> None:
        self.cluster.until(lambda: self.step() >= step, f"step {step}: {self.log()}", 120)

    def until_over(self, seconds: float = 120.0) -> Mapping[str, Any]:
        """Waits until the job has ended; returns what `jobs show` says."""

        self.until_gone(self.job, seconds)
        return json.loads(self.cli("jobs", "show", self.job, "--json").stdout)

    def until_gone(self, job: str, seconds: float = 120.0) -> None:
        """Waits until a job has ended, or all of an array."""

        def over() -> bool:
            return not self.cluster.run("squeue", "-h", "-j", job, check=False).stdout.strip()

        self.cluster.until(over, f"the end of job {job}: {self.log()}", seconds)

    def log(self) -> str:
        """Returns the end of what the job has printed."""
        files = sorted((self.run / "launch").glob("job-*.log"))
        return "".join(file.read_text()[-3000:] for file in files)

    def node_of(self, slot: int) -> str:
        """Returns the node of a slot: they are numbered in the order of nodes."""
        nodes = self.cluster.run("squeue", "-h", "-j", self.job, "-o", "%N").stdout.strip()
        return self.cluster.run("scontrol", "show", "hostnames", nodes).stdout.split()[slot]

    def take_nodes(self, seconds: float) -> float:
        """Has a job of partition `hi` take all nodes for a while; returns when."""
        at = time.monotonic()
        job = ["--partition=hi", "--nodes=4", "--exclusive", "--output=/dev/null", f"--wrap=sleep {seconds}"]
        self.cluster.run("sbatch", "--export=NIL", *job)
        return at

    @property
    def checkpoints(self) -> str:
        return str(self.run / "checkpoints")


def here() -> dict[str, str]:
    """Returns this environment, without what would make JAX stand for other devices."""
    return {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}


def environment_of(pid: int) -> dict[str, str]:
    """Returns the variables that a process was started with."""
    found: dict[str, str] = {}
    for each in Path(f"/proc/{pid}/environ").read_text().split("\0"):
        name, _, value = each.partition("=")
        found[name] = value
    return found
