# SPDX-License-Identifier: Apache-2.0
"""Guesses of the next tokens, which a device verifies in one step: where they come from, and when they are worth it.

A guess changes no token, only how many steps an answer takes. A step that verifies guesses takes longer than a plain
one, and no step can be started before it has ended; so each sequence keeps an average of how many of its guesses hold,
and makes none for a while when they do not.
"""

from collections.abc import Sequence as SequenceOf

from ._device import DeviceShape
from ._sequence import Sequence

_LOOKED_AT = 8  # Earlier places that are compared, the latest ones.
_COMPARED = 8  # Tokens before a place that are compared, at most.
_INDEXED = 32768  # Tokens of a prompt that are looked at, the last ones.
_WEIGHT = 0.4  # Of the last guess in the average.
_LEAST = 0.5  # Guesses that must hold in a step, on average.
_PAUSES = (16, 256)  # Tokens for which a sequence makes no guesses: at first, and at most.
_MARGIN = 0.1  # What a step with guesses must give more than it costs, for each row.


class Lookup:
    """Guesses what came after the latest earlier place where a sequence had the same last tokens, two at least.

    Of the latest such places, the one with the most tokens alike is taken. The index grows with the sequence: a token
    costs the same in long ones and short ones.

    Reference: Saxena, Prompt Lookup Decoding, 2023.
    """

    __slots__ = ("_before", "_first", "_latest", "_next")

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], int] = {}  # By two tokens: the place after them, where they were last.
        self._before: list[int] = []  # For each place: the one before it after the same two tokens; 0: none.
        self._first = self._next = 0  # Places that the index has: from the first on, before the next.

    def after(self, tokens: SequenceOf[int], count: int) -> list[int]:
        """Returns so many tokens, or none. All tokens that it was given before must be the first of these."""
        end = len(tokens)
        self._add(tokens, end)
        place = self._latest.get((tokens[-2], tokens[-1]), 0) if end > 1 else 0
        best, most = 0, 0
        for _ in range(_LOOKED_AT):
            if not place:
                break
            if (alike := _alike(tokens, place, end)) > most:
                best, most = place, alike
            place = self._before[place - self._first]
        if not best:
            return []
        period = end - best  # What is guessed may go on in itself.
        return [tokens[best + i % period] for i in range(count)]

    def _add(self, tokens: SequenceOf[int], end: int) -> None:
        """Adds all places before the end to the index."""
        if not self._next:
            self._first = self._next = max(2, end - _INDEXED)
        for place in range(self._next, end):
            two = (tokens[place - 2], tokens[place - 1])
            self._before.append(self._latest.get(two, 0))
            self._latest[two] = place
        self._next = max(self._next, end)


def _alike(tokens: SequenceOf[int], place: int, end: int) -> int:
    """How many tokens before two places are alike; the first two are known to be."""
    count = 2
    while count < _COMPARED and count < place and tokens[place - count - 1] == tokens[end - count - 1]:
        count += 1
    return count


class Guesses:
    """The guesses of a sequence, and how well they do."""

    __slots__ = ("_again", "_lookup", "_most", "_pause", "gain")

    def __init__(self, most: int, lookup: Lookup | None) -> None:
        self._most, self._lookup = most, lookup  # None: the device makes them.
        self._again = 0  # From how many tokens on there are guesses,
        self._pause = _PAUSES[0]  # and for how many there are none, if they do badly now.
        self.gain = most / 2  # Guesses that hold in a step, on average.

    def propose(self, tokens: SequenceOf[int], pending: int, most: int) -> list[int]:
        """Returns guesses of what follows `pending` tokens that are not known yet. Of a device that guesses: any."""
        count = min(most, self._most)
        if count < 1 or len(tokens) < self._again:
            return []
        return [0] * count if self._lookup is None else self._lookup.after(tokens, pending + count)[pending:]

    def learn(self, accepted: int, length: int) -> None:
        """Says how many guesses have held, and how long the sequence is now."""
        self.gain += _WEIGHT * (accepted - self.gain)
        if self.gain < _LEAST:
            self.rest(length)
        elif 2 * accepted >= self._most:
            self._pause = _PAUSES[0]

    def rest(self, length: int) -> None:
        """Makes no guesses for a while, each time longer; after that, half as hopeful as at first."""
        self._again, self.gain = length + self._pause, self._most / 4
        self._pause = min(2 * self._pause, _PAUSES[1])


class Guesser:
    """Decides which sequences are worth a guess in a step."""

    def __init__(self, shape: DeviceShape, chunk: int) -> None:
        self._shape = shape
        self._most = min(shape.drafts, chunk - 1)  # Windows have pages for a chunk.

    def begin(self, sequence: Sequence) -> None:
        """Lets a new sequence have guesses, if it can: what a grammar allows is known of the next token alone."""
        if self._most > 0 and sequence.grammar is None:
            sequence.guesses = Guesses(self._most, None if self._shape.own_drafts else Lookup())

    def guess(self, rows: list[Sequence]) -> list[list[int]] | None:
        """Returns guesses for each of these sequences; None: there are none, or too few to be worth a longer step."""
        if self._most < 1:
            return None
        found = [
            each.guesses.propose(each.tokens, each.pending, each.limit - each.length - 1) if each.guesses else []
            for each in rows
        ]
        guessed = [(each.guesses, drafts) for each, drafts in zip(rows, found, strict=True) if each.guesses and drafts]
        if not guessed:
            return None
        expected = sum(min(guesses.gain, len(drafts)) for guesses, drafts in guessed)
        if expected >= (self._cost(len(rows)) - 1 + _MARGIN) * len(rows):
            return found
        for each, drafts in zip(rows, found, strict=True):
            if each.guesses and drafts:
                each.guesses.rest(len(each.tokens))
        return None

    def _cost(self, rows: int) -> float:
        """How many plain steps of so many rows a step with guesses takes."""
        costs = zip(self._shape.rows, self._shape.draft_costs, strict=False)
        return next((cost for size, cost in costs if size >= rows), 1.0)
