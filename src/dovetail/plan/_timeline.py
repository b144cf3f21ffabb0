# SPDX-License-Identifier: Apache-2.0
"""A compiled step in the order in which its time passes: forward, backward, and what is sent meanwhile."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from dovetail.aot import Stretch, config_path

_MOST = 0.8  # Of the seconds of a stretch: a path that has as many names it.
_SMALL = 0.01  # Of the step: what takes less is part of what is next to it.
_WHOLE = 0.6  # Of the step: a loop that has as much, and loops inside, is shown from inside.
_BACKWARD = "transpose("  # In names that JAX gives.
_SENT = "exposed"  # What time counts as that is waited for what is sent.


class Passage(NamedTuple):
    """A stretch of a step; seconds of all its runs, by the schedule alone."""

    path: str  # In the config, of what takes most of it.
    backward: bool
    runs: int  # Of a loop; 1: it is none.
    compute: float
    waiting: float  # For what is sent between chips.
    beside: float  # Sent while something is computed.

    def slowed(self, factor: float) -> "Passage":
        """Returns it with all times multiplied."""
        compute, waiting, beside = (seconds * factor for seconds in (self.compute, self.waiting, self.beside))
        return self._replace(compute=compute, waiting=waiting, beside=beside)


def timeline(stretches: Sequence[Stretch], tree: Any) -> list[Passage]:
    """Returns the stretches of a step in their order, of which none is too small to be seen."""
    total = sum(each.seconds for each in stretches)
    if not total:
        return []
    while True:
        largest = max(stretches, key=lambda each: each.seconds)
        loops = [each for each in largest.inside if each.runs]
        if largest.seconds < _WHOLE * total or sum(each.seconds for each in loops) < _WHOLE * largest.seconds:
            break
        at = list(stretches).index(largest)
        stretches = [*stretches[:at], *largest.inside, *stretches[at + 1 :]]
    return [_passage(each, tree) for each in _merged(stretches, _SMALL * total)]


def _merged(stretches: Sequence[Stretch], least: float) -> list[Stretch]:
    """Returns stretches of which each takes some time: smaller ones are added to what is before, or behind."""
    found, early = list[Stretch](), Stretch()
    for each in stretches:
        if each.seconds >= least:
            found.append(_sum(each, early, runs=each.runs))
            early = Stretch()
        elif found:
            found[-1] = _sum(found[-1], each, runs=found[-1].runs)
        else:
            early = _sum(early, each, runs=0)
    return found


def _sum(one: Stretch, other: Stretch, *, runs: int) -> Stretch:
    found = Stretch(runs)
    found.add(one)
    found.add(other)
    return found


def _passage(each: Stretch, tree: Any) -> Passage:
    paths = defaultdict[str, float](float)
    for name, seconds in each.names.items():
        path = config_path([name], tree)
        for end in [i for i, character in enumerate(path) if character == "."] + [len(path)]:
            paths[path[:end]] += seconds
    enough = [path for path, seconds in paths.items() if path and seconds >= _MOST * each.seconds]
    backward = sum(seconds for name, seconds in each.names.items() if _BACKWARD in name)
    waiting = sum(seconds for part, seconds in each.parts.items() if part.startswith(_SENT))
    beside = sum(seconds for part, seconds in each.beside.items() if part.startswith(_SENT))
    return Passage(
        max(enough, key=len, default="other"),
        backward > 0.5 * each.seconds,
        max(each.runs, 1),
        each.seconds - waiting,
        waiting,
        beside,
    )
