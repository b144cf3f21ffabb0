# SPDX-License-Identifier: Apache-2.0
"""What runs next: decisions alone, without a clock, threads or arrays. The same requests get the same plans.

Sequences have one order for all their life: by the step in which they came, plus `ageing` steps for each unit of their
priority. So a lower priority waits, and not for ever; and the first sequence of all is never the one to give way, so
that there is always one that goes on.
"""

import bisect
from collections.abc import Iterator

from dovetail.config import ConfigError

from ._device import DeviceShape
from ._guess import Guesser
from ._pages import Pages
from ._request import Request
from ._sequence import Call, Row, Sequence

_LOOKED_AT = 64  # Waiting sequences that are looked at in a step, at most.


class Scheduler:
    """Gives slots and pages to sequences, and says which tokens the next calls read."""

    def __init__(
        self,
        shape: DeviceShape,
        *,
        prefix_cache: bool = True,
        chunk_budget: int = 512,
        ageing: int = 1000,
        patience: int = 256,
    ) -> None:
        self._shape = shape
        self.pages = Pages(shape, caches=prefix_cache)
        self._snapshots = shape.has_row_state and self.pages.caches
        self._chunks = self._chunks_that_fit()
        self._budget, self._ageing, self._patience = chunk_budget, ageing, patience
        assert not (shape.drafts and shape.has_row_state), "a row cannot go back to before a guess"
        self._guesser = Guesser(shape, self._chunks[-1])
        self.max_length = self._max_length()
        self.waiting: list[Sequence] = []  # Both in the order of their keys.
        self.running: list[Sequence] = []
        self._slots = list(range(shape.slots - 1, -1, -1))
        self._next = 0
        # Who found no room, how many ran then, in which group there was none, and how much there must be.
        self._blocked: tuple[Sequence, int, int, int] | None = None
        self.steps = 0
        self.preemptions = 0
        self.drafted = self.accepted = 0  # Guesses that were verified, and those of them that held.

    def _chunks_that_fit(self) -> tuple[int, ...]:
        chunks = list(self._shape.chunks)
        for index, group in enumerate(self._shape.groups):
            longest = self._shape.max_length
            while chunks and self.pages.most(index, longest, chunks[-1]) >= group.pages and group.window is not None:
                last = chunks.pop()
                if not chunks:
                    need = self.pages.most(index, longest, last) + 1
                    raise ConfigError(
                        f"pages of the group {group.name!r}: there are {group.pages}, of {self._shape.page} tokens;"
                        f" its window of {group.window} tokens and a chunk of {last} need {need}.\n"
                        "  Give it more memory, or use smaller chunks."
                    )
        return tuple(chunks)

    def _max_length(self) -> int:
        """The longest sequence that there is room for; its last token is never read."""
        rooms = [(group.pages - 1) * self._shape.page + 1 for group in self._shape.groups if group.window is None]
        longest = min([self._shape.max_length, *rooms])
        if longest < 2:
            raise ConfigError(f"there is room for {longest} token, expected at least 2. Give the groups more pages.")
        return longest

    # Sequences come and go.

    def add(self, request: Request, owner: object = None) -> Sequence:
        """Puts a request into the queue; that it fits has been checked."""
        limit = min(len(request.tokens) + request.max_tokens, self.max_length)
        key = (self.steps + request.priority * self._ageing, self._next)
        self._next += 1
        sequence = Sequence(request, key, limit, self._patience, owner)
        self._guesser.begin(sequence)
        self._wait(sequence)
        return sequence

    def accept(self, sequence: Sequence, count: int) -> None:
        """Says how many guesses of a sequence have held; `learn` is then told these tokens, and the one after them."""
        assert sequence.guesses is not None
        self.drafted += sequence.drafted
        self.accepted += count
        sequence.drafted = 0
        sequence.pending += count
        sequence.guesses.learn(count, sequence.length)
        self._made(sequence, count, draws=False)

    def learn(self, sequence: Sequence, token: int) -> None:
        """Says what a call has drawn."""
        sequence.tokens.append(token)
        sequence.pending -= 1

    def end(self, sequence: Sequence) -> None:
        """Takes a sequence out, whether it waits or runs; its pages are free at once, or kept in the tree."""
        if sequence.slot is None:
            if not sequence.ended:
                self.waiting.remove(sequence)
        else:
            self._leave(sequence)
        sequence.ended = True

    def _wait(self, sequence: Sequence) -> None:
        bisect.insort(self.waiting, sequence, key=_key)

    def _leave(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        assert sequence.held is not None
        self.pages.commit(sequence.held, sequence.tokens, sequence.computed)
        self.pages.release(sequence.held)
        self._slots.append(sequence.slot)
        self.running.remove(sequence)
        sequence.slot = sequence.held = None

    def _preempt(self, sequence: Sequence) -> None:
        """Takes all from a sequence but its tokens, and puts it back into the queue."""
        self._leave(sequence)
        sequence.computed = sequence.pending = sequence.drafted = 0
        sequence.counted = False
        self._wait(sequence)

    def preempt_all(self) -> None:
        """Takes all from all, and forgets what is kept: the state is of no use any more."""
        for sequence in list(self.running):
            self._preempt(sequence)
            if len(sequence.tokens) == sequence.prompt:
                sequence.scored = not sequence.request.reads_all
        self.pages.clear()
        self._blocked = None

    # A step.

    def plan(self, *, settled: bool) -> Iterator[Call] | None:
        """Yields the next calls, none if there is nothing to do. Each must have been made before the next is asked for.

        None stands for: first find out what the calls made so far have drawn, then ask again with `settled`.
        """
        assert not any(sequence.drafted for sequence in self.running), "how far a sequence is, is not known"
        rows = self._decoding(settled)
        if rows is None:
            return None
        self.steps += 1
        self._admit(rows)
        return self._calls(rows)

    def _calls(self, rows: list[Sequence]) -> Iterator[Call]:
        if rows:
            call = self._decode(rows, self._drafts(rows))
            yield call
            for row in call.rows:
                row.sequence.drafted = len(row.drafts)
                self._made(row.sequence, 1, draws=True)
        yield from self._chunk_calls()

    def _decoding(self, settled: bool) -> list[Sequence] | None:
        """The sequences that get one token, with room for it."""
        rows = list[Sequence]()
        for sequence in list(self.running):
            if sequence.slot is None:  # It has just been preempted.
                continue
            decodes = sequence.decodes
            if decodes:
                want = sequence.computed + 1
            elif not rows and sequence is self.running[0] and (unread := sequence.unread):
                want = sequence.computed + self._count(sequence, unread, self._budget)
            else:
                continue
            while sequence.slot is not None and not self._grow(sequence, want):
                if not settled:
                    return None
                self._preempt(self.running[-1])
                self.preemptions += 1
            if decodes and sequence.slot is not None:
                rows.append(sequence)
        return rows

    def _grow(self, sequence: Sequence, tokens: int, ahead: int = 0) -> bool:
        if tokens <= sequence.room:
            return True
        assert sequence.held is not None
        if not self.pages.grow(sequence.held, tokens, ahead):
            return False
        sequence.room = self.pages.covered(sequence.held)
        return True

    def _drafts(self, rows: list[Sequence]) -> list[list[int]]:
        """The guesses that are verified in a step, as far as there are pages for them: nobody gives way to a guess."""
        found = self._guesser.guess(rows)
        if found is None:
            return [[]] * len(rows)
        return [
            drafts if drafts and self._grow(sequence, sequence.computed + 1 + len(drafts)) else []
            for sequence, drafts in zip(rows, found, strict=True)
        ]

    def _decode(self, sequences: list[Sequence], drafts: list[list[int]]) -> Call:
        call = Call(self._shape.drafts + 1, [], verifies=True) if any(drafts) else Call(1, [])
        page = self._shape.page
        for sequence, guessed in zip(sequences, drafts, strict=True):
            assert sequence.held is not None
            assert sequence.slot is not None
            number = sequence.length - sequence.prompt
            count, follows = 1 + len(guessed), sequence.pending > 0
            row = Row(sequence, sequence.computed, count, True, follows, sequence.held.source, number, drafts=guessed)
            call.rows.append(row)
            self.pages.started(sequence.held)
            if self._snapshots and row.start % page == page - 1:
                answers = row.start >= sequence.prompt
                save = self.pages.moving if answers else self.pages.snapshot
                if (snapshot := save(sequence.held, row.start + 1)) is not None:
                    call.saves.append((sequence.slot, snapshot))
        return call

    def _made(self, sequence: Sequence, count: int, *, draws: bool) -> None:
        held, page = sequence.held, self._shape.page
        assert held is not None
        sequence.computed += count
        sequence.pending += draws
        if min(sequence.computed, len(sequence.tokens)) >= sequence.committed:
            self.pages.commit(held, sequence.tokens, sequence.computed)
            sequence.committed = (len(held.nodes) + 1) * page
        if sequence.computed >= sequence.freed:
            sequence.freed = self.pages.behind(held, sequence.computed)

    def _chunk_calls(self) -> Iterator[Call]:
        budget, first = self._budget, True
        for sequence in list(self.running):
            while unread := sequence.unread:
                count = self._count(sequence, unread, self._budget if first else self._chunks[-1])
                if not first and count > budget:
                    return
                if not self._grow(sequence, sequence.computed + count):
                    break  # There will be room when others have ended, or this one is the first of all.
                draws = sequence.computed + count == len(sequence.tokens) < sequence.limit
                yield self._chunk(sequence, count, draws)
                self._made(sequence, count, draws=draws)
                first, budget = False, budget - count
                if budget <= 0:
                    return

    def _count(self, sequence: Sequence, unread: int, budget: int) -> int:
        """How many tokens the next chunk of a sequence reads."""
        largest = self._chunks[bisect.bisect_right(self._chunks, max(budget, self._chunks[0])) - 1]
        start = sequence.computed
        ends = [end for end in sequence.wants if end > start]
        return min(unread, largest, min(ends, default=start + unread) - start)

    def _chunk(self, sequence: Sequence, count: int, draws: bool) -> Call:
        held, start = sequence.held, sequence.computed
        assert held is not None
        assert sequence.slot is not None
        number = len(sequence.tokens) - sequence.prompt
        row = Row(sequence, start, count, draws, False, held.source, number, scores=not sequence.scored)
        call = Call(self._chunks[bisect.bisect_left(self._chunks, count)], [row])
        end = start + count
        sequence.scored = sequence.scored or end >= sequence.prompt
        self.pages.started(held)
        if end in sequence.wants:
            sequence.wants.discard(end)
            if (snapshot := self.pages.snapshot(held, end)) is not None:
                call.saves.append((sequence.slot, snapshot))
        return call

    # The queue.

    def _admit(self, rows: list[Sequence]) -> None:
        """Gives slots to those who wait, in their order, as long as there is room and chunks to be computed."""
        reading = [sequence for sequence in self.running if sequence.unread]
        for sequence in self.waiting[:_LOOKED_AT]:
            before = sum(other.unread for other in reading if other.key < sequence.key)
            if not self._slots or before >= self._budget:
                return
            if self._is_blocked(sequence):
                return
            if self._waits_for_another(sequence):
                continue
            if not self._begin(sequence):
                return
            if sequence.decodes:
                rows.append(sequence)
            else:
                reading.append(sequence)

    def _is_blocked(self, sequence: Sequence) -> bool:
        """Whether one that found no room would find none again; to look for its prefix each time takes long."""
        if self._blocked is None:
            return False
        blocked, running, group, room = self._blocked
        return blocked is sequence and running == len(self.running) and self.pages.room(group) < room

    def _begin(self, sequence: Sequence) -> bool:
        tokens, page = sequence.tokens, self._shape.page
        held, cached, known = self.pages.take(tokens, sequence.request.salt, hits=sequence.scored)
        reserve = len(self.running)  # A page for each, so that those who run do not soon need what is given away now.
        if lack := self.pages.lacks(held, len(tokens), self._chunks[-1], reserve):
            self.pages.release(held)
            self._blocked = (sequence, reserve, *lack)
            return False
        sequence.held = held
        sequence.computed = sequence.cached = cached
        sequence.turns += 1
        sequence.slot = self._slots.pop()
        sequence.leader = None
        sequence.room, sequence.freed = 0, 0
        sequence.committed = cached + page if self.pages.caches else 2**40
        last = (len(tokens) - 1) // page * page
        sequence.wants = {end for end in (last, known) if end > cached} if self._snapshots else set()
        first = self._count(sequence, len(tokens) - cached, self._budget)
        grown = self._grow(sequence, cached + first, ahead=len(tokens))
        assert grown
        self.waiting.remove(sequence)
        bisect.insort(self.running, sequence, key=_key)
        return True

    def _waits_for_another(self, sequence: Sequence) -> bool:
        """Whether another one computes the same prefix right now, so that it is worth to wait for its pages."""
        if not self.pages.caches or not sequence.scored or sequence.patience <= 0:
            return False
        if not _leads(sequence.leader, sequence):
            sequence.leader, sequence.target = self._leader(sequence)
        if sequence.leader is None:
            return False
        sequence.patience -= 1
        return True

    def _leader(self, sequence: Sequence) -> tuple[Sequence | None, int]:
        best, target = None, 0
        for other in self.running:
            if other.unread and other.scored and other.request.salt == sequence.request.salt:
                end = self._shared(sequence.tokens, other.tokens)
                if end > max(target, other.computed):
                    best, target = other, end
        if best is not None and self._snapshots:
            best.wants.add(target)
        return best, target

    def _shared(self, tokens: list[int], others: list[int]) -> int:
        """How many tokens two sequences begin with in common: full pages, and not the last token of either."""
        page, end = self._shape.page, 0
        most = min(len(tokens), len(others)) - 1
        while end + page <= most and tokens[end : end + page] == others[end : end + page]:
            end += page
        return end


def _leads(leader: Sequence | None, sequence: Sequence) -> bool:
    return leader is not None and leader.slot is not None and leader.computed < sequence.target


def _key(sequence: Sequence) -> tuple[int, int]:
    return sequence.key
