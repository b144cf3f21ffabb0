# SPDX-License-Identifier: Apache-2.0
"""Stride scheduling: whose turn it is, where turns are as long as they happen to be and shares are of what they give.

Each part has a time of its next turn, which moves on by what a turn has given over the share of the part; whoever is
next in time has the turn. So what a part has given is never further from its share than the longest turns are.

Reference: Waldspurger and Weihl, Stride Scheduling: Deterministic Proportional-Share Resource Management, 1995.
"""

from collections.abc import Mapping
from typing import Any

from ._order import derive_seed
from ._weights import bounds_of, choose

Turns = dict[str, Any]  # "now", the time of the last turn, and "next" of each part: [time, phase]; as JSON has it.


class Stride:
    """The turns of one stream of a mixture. It keeps nothing: what has been is in the position.

    Streams run side by side, and would all choose the same part at the same row. So who has the first turn is spread
    over the streams in proportion, and all others begin at a phase of their own in each, in turns of average length.
    """

    def __init__(self, seed: int, stream: int) -> None:
        self._seed, self._stream = seed, stream

    def choose(self, turns: Turns, shares: Mapping[str, float], length: float) -> tuple[str, Turns]:
        """Returns whose turn it is, and turns in which all that have a share have a time.

        Args:
            shares: of the parts that can have a turn; at least one is above 0.
            length: what a turn gives on average.
        """
        now, following = turns.get("now", 0.0), dict(turns["next"] if turns else self._first(shares))
        times: dict[str, float] = {}
        for name, share in shares.items():
            if not share:
                continue
            base, phase = following.get(name, (-1.0, 0.0))
            times[name] = base + phase * length / share
            if times[name] < now:  # New here, or without a share for a while: what it has missed is not made up for.
                phase = self._phase(name)
                following[name] = [now, phase]
                times[name] = now + phase * length / share
        chosen = min(times, key=lambda name: times[name])
        following[chosen] = [times[chosen], 0.0]
        return chosen, {"now": times[chosen], "next": following}

    def _first(self, shares: Mapping[str, float]) -> dict[str, Any]:
        offset = derive_seed(self._seed, "first")
        return {[*shares][choose(self._stream, bounds_of([*shares.values()]), offset)]: [0.0, 0.0]}

    def done(self, turns: Turns, name: str, share: float, given: float) -> Turns:
        """Returns turns after the part that was chosen has given so much."""
        time, _ = turns["next"][name]
        return {**turns, "next": {**turns["next"], name: [time + given / share, 0.0]}}

    def _phase(self, name: str) -> float:
        """Returns a number from 0 to 1: evenly spread over streams, for each part in another way."""
        start, multiple = (derive_seed(self._seed, name, what) for what in ("phase", "multiple"))
        return (start + self._stream * (multiple | 1)) % 2**64 / 2**64
