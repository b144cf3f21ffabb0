# SPDX-License-Identifier: Apache-2.0
"""What a trace says: the operations of a step, with the time in which each of them kept the devices busy.

At each moment the time of a device goes, in equal parts, to the operations that run then. A loop runs while what is in
it runs: time is its own only where nothing in it runs. So the parts of a device sum to the time in which it was busy.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jax.profiler import ProfileData

from dovetail.config import ConfigError

from ._profile import ABOUT, PROFILE

_CONTAINERS = ("while", "call", "conditional", "async-start")
_END = "end: "  # What an operation of a CPU that goes on elsewhere is called where it ends.
_TPU = "XLA Ops"  # The line of a plane of a TPU that has them.
_INSTRUCTION = re.compile(r"%?([\w.\-]+)")


class Operation(NamedTuple):
    """An operation of the step, or all of another program."""

    name: str
    opcode: str
    path: str  # In the config; empty if it is not known.
    times: float  # A step, on a device.
    seconds: float  # A step.


class Traced(NamedTuple):
    """A profile."""

    where: Path
    first: int
    last: int
    step_seconds: float
    devices: int
    operations: list[Operation]  # The longest first.

    @property
    def busy_seconds(self) -> float:
        """The seconds of a step in which a device computes, on average over devices."""
        return sum(each.seconds for each in self.operations)


class _Run(NamedTuple):
    start: float
    end: float
    name: str
    module: str


def read_profile(directory: Path) -> Traced:
    """Returns the newest profile in the directory of a run, or the one whose directory it is."""
    found = sorted(directory.glob(f"{PROFILE}/*/{ABOUT}"), key=lambda file: file.stat().st_mtime)
    about = directory / ABOUT if (directory / ABOUT).is_file() else found[-1] if found else None
    traces = sorted(about.parent.glob("plugins/profile/*/*.xplane.pb")) if about else []
    if about is None or not traces:
        raise ConfigError(
            f"{directory}: there is no profile in it. Train with profile.steps=10-12, or send SIGUSR2 to the process."
        )
    try:
        said: dict[str, Any] = json.loads(about.read_text("utf-8"))
        steps = int(said["last"]) - int(said["first"]) + 1
        step_seconds, kinds, module = float(said["seconds"]) / steps, dict(said["operations"]), str(said["module"])
        runs = _runs(ProfileData.from_file(str(traces[-1])), kinds, module)
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"{about.parent}: is not a profile of a run ({e}).") from e
    spent: dict[tuple[str, str], float] = defaultdict(float)
    count: dict[tuple[str, str], int] = defaultdict(int)
    for each in runs.values():
        for run in each:
            count[run.module, run.name] += 1
        for key, seconds in _shares(each, {name for name, (_, opcode) in kinds.items() if opcode in _CONTAINERS}):
            spent[key] += seconds
    whole = steps * max(len(runs), 1)
    operations = [
        Operation(name if of == module else of, *_kind(kinds, name, of == module), count[of, name] / whole, s / whole)
        for (of, name), s in spent.items()
    ]
    operations.sort(key=lambda each: each.seconds, reverse=True)
    return Traced(about.parent, int(said["first"]), int(said["last"]), step_seconds, len(runs), operations)


def _kind(kinds: dict[str, Any], name: str, is_step: bool) -> tuple[str, str]:
    """Returns opcode and path of an operation."""
    path, opcode = kinds.get(name, ("", "")) if is_step else ("", "other program")
    return str(opcode), str(path)


def _runs(data: Any, kinds: dict[str, Any], module: str) -> dict[tuple[str, str], list[_Run]]:
    """Returns the operations that ran, by device."""
    found: dict[tuple[str, str], list[_Run]] = defaultdict(list)
    for plane in data.planes:
        ends: dict[Any, float] = {}
        begun: list[tuple[tuple[str, str], _Run, Any]] = []
        for line in plane.lines:
            for event in line.events:
                if line.name != _TPU and (event.name.startswith(_END) or plane.name.startswith("/host")):
                    stats = dict(event.stats)
                    if event.name.startswith(_END):
                        ends[stats.get("_c")] = event.start_ns
                        continue
                elif line.name == _TPU or plane.name.startswith("/device:GPU"):
                    stats = dict(event.stats)
                else:
                    continue
                name = stats.get("hlo_op")
                if name is None and line.name == _TPU:
                    match = _INSTRUCTION.match(event.name)
                    name = match[1] if match else None
                if name is None:
                    continue
                of = str(stats.get("hlo_module", module if name in kinds else "another program"))
                device = (plane.name, str(stats.get("device_ordinal", 0)))
                run = _Run(event.start_ns, event.start_ns + event.duration_ns, str(name), of.partition("(")[0])
                begun.append((device, run, stats.get("_p")))
        for device, run, number in begun:
            found[device].append(run._replace(end=max(run.end, ends.get(number, 0.0)) if number else run.end))
    return found


def _shares(runs: Iterable[_Run], containers: set[str]) -> Iterator[tuple[tuple[str, str], float]]:
    """Yields seconds of one device, each with what they went to."""
    events = sorted(
        [(run.start, 1, i, run) for i, run in enumerate(runs)] + [(run.end, 0, i, run) for i, run in enumerate(runs)],
        key=lambda each: each[:3],
    )
    leaves: dict[int, _Run] = {}
    around: dict[int, _Run] = {}  # In the order in which they began.
    since = 0.0
    for at, begins, i, run in events:
        active = list(leaves.values()) or list(around.values())[-1:]
        for each in active if at > since else ():
            yield (each.module, each.name), (at - since) / len(active) / 1e9
        since = at
        place = around if run.name in containers else leaves
        if begins:
            place[i] = run
        else:
            place.pop(i, None)
