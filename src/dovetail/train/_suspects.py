# SPDX-License-Identifier: Apache-2.0
"""Who it was: from sums that should be equal and are not, to the devices, processes and hosts that are to blame.

The sums of a leaf are equal for all devices that hold the same part of it, and each time it is computed. The value that
most of them have is taken for the right one.
"""

import socket
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dovetail.parallel import all_values

from ._errors import HardwareError

_MOST = 16  # Leaves that a process tells of.


class Seen(NamedTuple):
    """What this process has seen of a tree: `[N, L, 2]` sums of its devices, each time that it was computed."""

    what: str  # It is put before the names of leaves: "", "the gradient of ".
    names: Sequence[str]
    shardings: Sequence[Any] | None
    shapes: Sequence[tuple[int, ...]]
    devices: Sequence[Any]
    times: Sequence[np.ndarray]

    def changed(self) -> list[int]:
        """Returns the leaves that were not the same each time."""
        first, *others = self.times
        wrong = [np.any(first != other, axis=(0, 2)) for other in others]
        return np.flatnonzero(np.any(wrong, axis=0)).tolist() if wrong else []

    def rows(self, leaves: Sequence[int]) -> list[list[Any]]:
        """Returns what this process knows of these leaves, as JSON data: leaf, part, device, process, host, sums."""
        found: list[list[Any]] = []
        for leaf in leaves:
            held = self.shardings and self.shardings[leaf].addressable_devices_indices_map(self.shapes[leaf])
            for place, device in enumerate(self.devices):
                part = [[each.start or 0, each.stop] for each in held[device]] if held else []
                sums = [time[place, leaf].tolist() for time in self.times]
                found.append([leaf, str(part), str(device), device.process_index, socket.gethostname(), sums])
        return found


class Suspect(NamedTuple):
    """A device that holds something else than it should."""

    leaf: str
    device: str
    process: int
    host: str
    alone: bool  # Whether most say that it is wrong; else it is one of two, and one of them is.
    times: bool  # Whether it has not computed the same each time.

    def text(self) -> str:
        """Returns it in a line."""
        how = "is not the same both times" if self.times else "differs from its replicas"
        return f"{self.leaf} on device {self.device} (process {self.process}, host {self.host}) {how}"


def suspects(seen: Seen, replicas: Sequence[int] = ()) -> list[Suspect]:
    """Returns whose sums are wrong; the same in all processes, which have to call this together.

    Args:
        replicas: leaves of which it is known that replicas differ; the same in all processes.
    """
    told = all_values(sorted({*seen.changed()[:_MOST], *list(replicas)[:_MOST]}))
    leaves = sorted({leaf for each in told for leaf in each})
    if not leaves:
        return []
    rows = [row for each in all_values(seen.rows(leaves)) for row in each]
    groups: Mapping[tuple[int, str], list[Any]] = defaultdict(list)
    for row in rows:
        groups[row[0], row[1]].append(row)
    return [one for (leaf, _), group in groups.items() for one in _outliers(seen.what + seen.names[leaf], group)]


def _outliers(leaf: str, group: Sequence[Any]) -> list[Suspect]:
    counts = Counter(tuple(sums) for row in group for sums in row[-1])
    if len(counts) == 1:
        return []
    (right, most), (_, second) = counts.most_common(2)
    found: list[Suspect] = []
    for _, _, device, process, host, sums in group:
        if most == second or any(tuple(each) != right for each in sums):
            twice = len({tuple(each) for each in sums}) > 1
            found.append(Suspect(leaf, device, process, host, most > second or len(group) == 1, twice))
    return found


def error(step: int, found: Sequence[Suspect], shown: int = 8) -> HardwareError:
    """Returns the error of a run in which something was found to be wrong."""
    processes = {one.process for one in found}
    lines = [f"  {one.text()}" for one in found[:shown]]
    lines += [f"  ... and {len(found) - shown} more."] if len(found) > shown else []
    if len(processes) == 1:
        (process,) = processes
        to_blame = f"Process {process} is to blame, on host {found[0].host}."
    else:
        process, to_blame = None, f"It is one of the processes {sorted(processes)}; which one is not known."
    what = "\n".join(lines)
    return HardwareError(
        f"hardware check of step {step}: what should be equal bit for bit is not:\n{what}\n"
        f"  {to_blame} The state is not saved; the newest checkpoint is from before.",
        process,
    )
