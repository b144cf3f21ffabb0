# SPDX-License-Identifier: Apache-2.0
"""Who is frozen, who hangs, who is slow: judged from heartbeats alone. Nothing here has a clock of its own."""

import dataclasses
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from ._supervision import Supervision

_RECENT = 50  # Steps that a hang is judged by.
_FEW = 3  # Steps that one must have seen to judge what hangs, ...
_LATE = 1.0  # Seconds after which a heartbeat is missed.
_MANY = 15  # ... and what is slow.
_COUNTS = 0.1  # The share of a step that one must be slower by, to count.


@dataclasses.dataclass
class Seen:
    """What is known of one process of a gang."""

    heard: float  # When it last said something.
    begun: int = 0  # Steps handed to the device.
    made: int = 0  # Steps whose results are there.
    total: int = 0
    phase: str = "starting"
    quiet: float = 0.0  # How long nothing had changed, when it was last heard.
    moved: float = 0.0  # When a step was last made.
    waited: float = 0.0  # Seconds that it has waited for the device.
    own: deque[float] = dataclasses.field(default_factory=lambda: deque(maxlen=_RECENT))  # Its part of each step.

    def where(self) -> str:
        """Returns what it is doing, for people."""
        doing = f"in {self.phase!r}" if self.phase else f"after step {self.made}, having begun step {self.begun}"
        return f"{doing}, where nothing has changed for {self.quiet:.1f} s"


class Watch:
    """Learns how long steps and phases take, and says what is wrong.

    What it learns stays over restarts: the second start of a run is judged by the first.
    """

    def __init__(self, rules: Supervision) -> None:
        self._rules = rules
        self._intervals: deque[float] = deque(maxlen=_RECENT)
        self._phases: dict[str, float] = {}  # The longest, ...
        self._through: dict[str, set[int]] = {}  # ... and who has been through it.
        self.seen: dict[int, Seen] = {}

    def restart(self, ranks: int, now: float) -> None:
        """A new gang is started. With another number of processes there are other programs to compile."""
        if ranks != len(self.seen):
            self._phases, self._through = {}, {}
        self.seen = {rank: Seen(now, moved=now) for rank in range(ranks)}

    def heard(self, rank: int, beat: Mapping[str, Any], now: float) -> None:
        """A heartbeat has come."""
        seen = self.seen[rank]
        made, waited, phase = int(beat["made"]), float(beat["waited"]), str(beat["phase"])
        if made > seen.made:
            count = made - seen.made
            if seen.made:
                whole = (now - seen.moved) / count
                self._intervals.extend(
                    [whole] * min(count, _RECENT)
                )  # Several in one heartbeat: as long as each other.
                seen.own.append(max(whole - (waited - seen.waited) / count, 0.0))
            seen.moved = now
        if seen.phase and (phase != seen.phase):
            self._phases[seen.phase] = max(self._phases.get(seen.phase, 0.0), now - seen.heard + seen.quiet)
            self._through.setdefault(seen.phase, set()).add(rank)
        seen.made, seen.waited, seen.phase, seen.heard = made, waited, phase, now
        seen.begun, seen.total, seen.quiet = int(beat["begun"]), int(beat["total"]), float(beat["quiet"])

    @property
    def made(self) -> int:
        """The last step whose results some process has."""
        return max((seen.made for seen in self.seen.values()), default=0)

    @property
    def pace(self) -> float | None:
        """The seconds that a step takes of late."""
        return statistics.median(self._intervals) if self._intervals else None

    def limit(self, seen: Seen) -> float:
        """Returns how long nothing may change in a process before it hangs."""
        rules = self._rules
        if seen.phase:
            # One process may find kept what another has to compile: what one has seen says nothing of the others.
            everyone = len(self._through.get(seen.phase, ())) == len(self.seen)
            known = self._phases[seen.phase] if everyone else None
        else:
            known = max(self._intervals) if seen.made and len(self._intervals) >= _FEW else None
        if known is None:
            return rules.start_limit
        return max(rules.hang_least if seen.made else rules.start_least, rules.hang_factor * known)

    def frozen(self, now: float) -> dict[int, str]:
        """Returns the processes that say nothing any more, and for how long."""
        late = {rank: now - seen.heard for rank, seen in self.seen.items()}
        return {
            rank: f"has not been heard of for {quiet:.1f} s"
            for rank, quiet in late.items()
            if quiet > self._rules.heartbeat
        }

    def hanging(self, now: float) -> dict[int, str]:
        """Returns the processes that hang, if some do; of several that wait for each other, those that are behind."""
        if any(now - seen.heard > _LATE for seen in self.seen.values()):
            return {}  # Others may wait for one that is frozen, which shows soon.
        quiet = {rank: now - seen.heard + seen.quiet for rank, seen in self.seen.items()}
        if not any(quiet[rank] > self.limit(seen) for rank, seen in self.seen.items()):
            return {}
        return {rank: f"hangs: it is {self.seen[rank].where()}" for rank in self.behind()}

    def behind(self) -> list[int]:
        """Returns the processes that the others wait for, as far as one can tell: those that have begun the least."""
        least = min(seen.begun for seen in self.seen.values())
        found = [rank for rank, seen in self.seen.items() if seen.begun == least]
        if len(found) < len(self.seen):
            return found
        alone = [rank for rank, seen in self.seen.items() if seen.phase]  # The others wait in a step for it.
        return alone if alone and len(alone) < len(found) else found

    def stragglers(self) -> dict[int, float]:
        """Returns the processes whose own part of a step takes longer than that of the others, and how many times."""
        own = {rank: statistics.median(seen.own) for rank, seen in self.seen.items() if len(seen.own) >= _MANY}
        if len(own) < 2 or len(own) < len(self.seen):
            return {}
        step = statistics.median(self._intervals)
        # The slow one of two is the median of none: it is compared with the faster half.
        typical = max(statistics.median_low(own.values()), 1e-4)
        limit = max(self._rules.straggler_factor * typical, typical + _COUNTS * step)
        return {rank: each / typical for rank, each in own.items() if each > limit}
