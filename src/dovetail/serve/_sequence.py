# SPDX-License-Identifier: Apache-2.0
"""Sequences in the hands of a scheduler, and the calls that it plans for them."""

import dataclasses
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any

import numpy as np

from ._pages import Held
from ._request import Request

if TYPE_CHECKING:
    from ._guess import Guesses


class Sequence:
    """A request, how far it is, and what it has. Only a scheduler changes it."""

    __slots__ = (
        "cached",
        "committed",
        "computed",
        "counted",
        "drafted",
        "ended",
        "freed",
        "grammar",
        "guesses",
        "held",
        "key",
        "leader",
        "limit",
        "mask",
        "owner",
        "patience",
        "pending",
        "prompt",
        "request",
        "room",
        "scored",
        "slot",
        "target",
        "tokens",
        "turns",
        "wants",
    )

    def __init__(self, request: Request, key: tuple[int, int], limit: int, patience: int, owner: Any = None) -> None:
        self.request = request
        self.key = key  # Lower ones come first.
        self.owner = owner  # Whatever is wanted: the scheduler does not look at it.
        self.grammar = request.grammar.copy() if request.grammar else None
        self.mask: np.ndarray | None = self.grammar.mask() if self.grammar else None  # Of the next token.
        self.tokens = list(request.tokens)  # Those that are known.
        self.prompt = len(request.tokens)
        self.limit = limit  # Tokens, at most.
        self.pending = 0  # Tokens that calls have drawn, or will have, and that are not known yet.
        self.computed = 0  # Tokens that the state has seen, after the calls planned so far.
        self.cached = 0  # Of them, those that were known when it got its slot.
        self.slot: int | None = None
        self.held: Held | None = None
        self.room = 0  # Tokens that there are pages for.
        self.committed = 0  # From how many known tokens on there is a page to keep,
        self.freed = 0  # and from how many on one falls behind a window.
        self.wants: set[int] = set()  # After how many tokens of the prompt a snapshot is wanted.
        self.counted = False  # Whether the device knows which tokens have been there.
        self.guesses: Guesses | None = None  # Of tokens to come; None: it has none.
        self.drafted = 0  # Guesses that a call verifies: how far it is then, is not known yet.
        self.scored = not request.reads_all  # Whether all that is wanted of the prompt is under way.
        self.turns = 0  # How often it has got a slot.
        self.ended = False
        self.leader: Sequence | None = None  # One that computes what this one can then begin with,
        self.target = 0  # as soon as it has come so far.
        self.patience = patience  # How many steps it still waits for others.

    @property
    def length(self) -> int:
        """Tokens, with those that are not known yet."""
        return len(self.tokens) + self.pending

    @property
    def decodes(self) -> bool:
        """Whether one token is left to be read, and another may be drawn after it."""
        length = len(self.tokens) + self.pending
        if length - self.computed != 1 or length >= self.limit or not self.scored:
            return False
        return not (self.pending and self.grammar)

    @property
    def unread(self) -> int:
        """Tokens to be read in chunks."""
        left = len(self.tokens) + self.pending - self.computed
        if left == 1 and self.scored and self.limit > self.prompt:
            return 0
        return left


@dataclasses.dataclass(slots=True)
class Row:
    """Tokens of a sequence that a call reads."""

    sequence: Sequence
    start: int
    count: int
    draws: bool  # Whether it draws the next one.
    follows: bool  # Whether the token is not known yet.
    source: int | None  # A snapshot that it starts from.
    number: int  # Of the token that is drawn, in the answer.
    scores: bool = False  # Whether its tokens are read for what is wanted of the prompt.
    drafts: SequenceOf[int] = ()  # Guesses of the tokens after the first; `count` has them.


@dataclasses.dataclass
class Call:
    """One call of the device, and what is saved after it."""

    size: int  # 1: one token of each row; otherwise a chunk of one row, or guesses.
    rows: list[Row]
    saves: list[tuple[int, int]] = dataclasses.field(default_factory=list[tuple[int, int]])  # Slot, snapshot.
    verifies: bool = False  # Whether rows have guesses.
