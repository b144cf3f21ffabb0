# SPDX-License-Identifier: Apache-2.0
"""A device whose tokens are a hash of all it reads: a page, slot, window or snapshot mixed up changes what follows.

It keeps a number for each token in a page of each group, and one for each row; the number of a token is a hash of all
that it sees. `expected` computes the same from the tokens alone. It asserts what an engine owes to any device.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.serve._device import Device, DeviceShape, Drawn, Group, RowDraw, Rows
from dovetail.serve._request import Draw, Request, Token

POISON = -1


def shape_of(**changes: Any) -> DeviceShape:
    """A small device, with changes."""
    fields: dict[str, Any] = {
        "slots": 4,
        "page": 4,
        "groups": (Group("full", None, 40),),
        "snapshots": 0,
        "has_row_state": False,
        "max_length": 64,
        "vocab_size": 50,
        "rows": (1, 2, 4),
        "chunks": (4, 8, 16),
        "max_logprobs": 3,
        "max_biased": 7,
    }
    return DeviceShape(**{**fields, **changes})


FULL = shape_of()
WINDOWED = shape_of(groups=(Group("full", None, 40), Group("near", 6, 30)))
ONLY_WINDOWED = shape_of(groups=(Group("near", 6, 30), Group("far", 11, 30)))
HYBRID = shape_of(groups=(Group("full", None, 40), Group("near", 6, 30)), has_row_state=True, snapshots=6)
RECURRENT = shape_of(groups=(), has_row_state=True, snapshots=6)
UNSAVED = shape_of(has_row_state=True, snapshots=0)
SHAPES = {
    "full": FULL,
    "windowed": WINDOWED,
    "only windowed": ONLY_WINDOWED,
    "hybrid": HYBRID,
    "recurrent": RECURRENT,
    "unsaved": UNSAVED,
}


def digest(params: int, token: int, place: int, state: int, seen: Sequence[Sequence[int]]) -> int:
    """The number of a token, from all that it sees."""
    return hash((params, token, place, state, *map(tuple, seen))) & 0x7FFFFFFFFFFF


def logprob(number: int, token: int) -> float:
    """How likely a token is after one with this number; float32, as a device has it."""
    return float(np.float32(-(hash((number, token)) % 1000) / 100))


def top(number: int, most: int, vocab: int) -> list[tuple[int, float]]:
    """The most likely tokens, or what is taken for them."""
    return [((number + j) % vocab, logprob(number, (number + j) % vocab)) for j in range(most)]


def drawn_token(
    number: int, vocab: int, draw: Draw, choice: int, place: int, said: tuple[Sequence[int], Sequence[int]], mask: Any
) -> int:
    """The token drawn after one with this number."""
    if draw.is_plain and mask is None:
        return number % vocab
    parts = [number]
    if draw.temperature:
        fields = (draw.temperature, draw.top_p, draw.min_p)
        parts += [draw.seed, choice, place, draw.top_k, *(int(1000 * np.float32(x)) for x in fields)]
    if draw.has_penalties:
        parts += [hash(tuple(sorted(said[0]))), hash(tuple(sorted(said[1])))]
    parts += [hash(tuple(sorted(draw.logit_bias.items())))]
    allowed = [i for i in range(vocab) if mask is None or mask[i // 32] >> (i % 32) & 1]
    return allowed[hash(tuple(parts)) % len(allowed)]


class FakeDevice(Device):
    """Computes hashes, at once; what it has drawn is handed out by `fetch`."""

    def __init__(self, shape: DeviceShape, *, poison: bool = False) -> None:
        self.shape = shape
        self.params = 0
        self.poison = poison  # Whether pages behind a window are overwritten; nobody else may use them, then.
        self.pages = {group.name: np.full((group.pages, shape.page), POISON, np.int64) for group in shape.groups}
        rows = shape.slots + shape.snapshots
        self.states = [0] * rows
        self.lengths: list[int | None] = [None] * rows  # Tokens that a row has read; None: nothing that can be used.
        self.last: list[int | None] = [None] * shape.slots
        self.said: list[tuple[list[int], list[int]]] = [([], []) for _ in range(shape.slots)]
        self.shapes: set[tuple[int, int]] = set()
        self.calls = 0
        self.computed = 0  # Tokens.
        self.fail_at: dict[tuple[str, int], Exception] = {}  # What fails: "run" or "fetch", and the number of the call.
        self.fetched = 0
        self._thread: int | None = None
        self.without_draw = 0
        self.guessed = self.held = 0  # Guesses, and those that have held.

    def run(self, rows: Rows) -> Any:
        self._check(rows)
        number = self.calls
        self.calls += 1
        if ("run", number) in self.fail_at:
            raise self.fail_at["run", number]
        self.without_draw += rows.draw is None
        num, size = rows.ids.shape
        tokens = np.zeros(num, np.int32)
        numbers = [[0] for _ in range(num)]
        guesses = rows.ids.copy()
        prompt = list[tuple[int, int]]()
        states = [self.states[source] if count else 0 for source, count in zip(rows.source, rows.count, strict=True)]
        written = set[tuple[str, int]]()
        for i in range(num):
            if rows.count[i]:
                numbers[i] = self._read(rows, i, states[i], guesses[i], prompt, written)
        if rows.verifies:
            return number, rows, _copies(rows), self._verified(rows, guesses, numbers)
        for i in range(num):
            if rows.draws[i]:
                slot = int(rows.slots[i])
                tokens[i] = self.last[slot] = self._drawn(rows.draw, i, numbers[i][-1], slot)
        ends = [each[-1] for each in numbers]
        return number, rows, _copies(rows), self._answer(rows, tokens, ends, prompt, size)

    def _verified(self, rows: Rows, guesses: np.ndarray, numbers: list[list[int]]) -> Drawn:
        """Draws as long as what is drawn was guessed."""
        num, size = rows.ids.shape
        tokens = np.full((num, size), -1, np.int32)
        padded = [each + [0] * (size - len(each)) for each in numbers]
        for i in map(int, np.flatnonzero(rows.count)):
            slot, count = int(rows.slots[i]), int(rows.count[i])
            assert rows.draws[i]
            self.guessed += count - 1
            for t in range(count):
                token = self._drawn(rows.draw, i, numbers[i][t], slot, t)
                tokens[i, t] = self.last[slot] = token
                if t + 1 == count or token != guesses[i, t + 1]:
                    break
                self.held += 1
            if self.poison:
                self._poison(rows, i, int(rows.start[i] + (tokens[i] >= 0).sum()))
        flat = [number for row in padded for number in row]
        found = self._answer(rows, tokens.reshape(-1), flat, [], size)
        each = {name: x.reshape(num, size, *x.shape[1:]) for name, x in found._asdict().items() if x is not None}
        return Drawn(**each)

    def _own_guess(self, number: int) -> int:
        """The most likely token, three times of four."""
        return (number + (number // 7 % 4 == 0)) % self.shape.vocab_size

    def _read(
        self, rows: Rows, i: int, state: int, ids: np.ndarray, prompt: list[tuple[int, int]], written: set[Any]
    ) -> list[int]:
        """Reads the tokens of a row, and returns the number of each. Guesses of its own are written to `ids`."""
        numbers = list[int]()
        slot, start, count = int(rows.slots[i]), int(rows.start[i]), int(rows.count[i])
        if rows.fresh[i]:
            state = 0
        page = self.shape.page
        for t in range(count):
            place = start + t
            if rows.verifies and self.shape.own_drafts and t:
                ids[t] = self._own_guess(numbers[-1])
            token = int(ids[t])
            if rows.follows[i] and t == 0:
                last = self.last[slot]
                assert last is not None, "a row follows a token that was never drawn"
                token = last
            seen = list[list[int]]()
            for group in self.shape.groups:
                table = rows.tables[group.name][i]
                first = 0 if group.window is None else max(0, place - group.window + 1)
                seen.append([self._value(group, table, p) for p in range(first, place)])
            number = digest(self.params, token, place, state, seen)
            for group in self.shape.groups:
                target = int(rows.tables[group.name][i][place // page])
                assert 0 < target < group.pages, f"{group.name}: page {target} is written"
                assert (group.name, target) not in written, "two rows write one page"
                self.pages[group.name][target, place % page] = number
            if self.shape.has_row_state:
                state = hash((state, number)) & 0x7FFFFFFFFFFF
            numbers.append(number)
            if rows.prompt_logprobs:
                assert rows.targets is not None
                prompt.append((number, int(rows.targets[i, t])))
        for group in self.shape.groups:
            for place in range(start, start + count):
                written.add((group.name, int(rows.tables[group.name][i][place // page])))
        self.computed += count
        self.states[slot], self.lengths[slot] = state, start + count
        if self.poison and not rows.verifies:
            self._poison(rows, i, start + count)
        return numbers

    def _value(self, group: Group, table: np.ndarray, place: int) -> int:
        page = int(table[place // self.shape.page])
        assert 0 < page < group.pages, f"{group.name}: page {page} is read for place {place}"
        return int(self.pages[group.name][page, place % self.shape.page])

    def _poison(self, rows: Rows, i: int, end: int) -> None:
        for group in self.shape.groups:
            if group.window is not None:
                behind = max(0, (end - group.window + 1) // self.shape.page)
                for page in rows.tables[group.name][i][:behind]:
                    self.pages[group.name][page] = POISON

    def _drawn(self, draw: RowDraw | None, i: int, number: int, slot: int, after: int = 0) -> int:
        vocab = self.shape.vocab_size
        if draw is None:
            return number % vocab
        request = Draw(
            temperature=float(draw.temperature[i]),
            top_k=int(draw.top_k[i]),
            top_p=float(draw.top_p[i]),
            min_p=float(draw.min_p[i]),
            repetition_penalty=float(draw.repetition[i]),
            presence_penalty=float(draw.presence[i]),
            frequency_penalty=float(draw.frequency[i]),
            logit_bias=draw.bias[i] if draw.bias else {},
            seed=int(draw.seed[i]),
        )
        mask = None if draw.mask is None or (draw.mask[i] == -1).all() else draw.mask[i]
        place = int(draw.number[i]) + after
        token = drawn_token(number, vocab, request, int(draw.choice[i]), place, self.said[slot], mask)
        self.said[slot][1].append(token)
        return token

    def _answer(
        self, rows: Rows, tokens: np.ndarray, numbers: list[int], prompt: list[tuple[int, int]], size: int
    ) -> Drawn:
        most, vocab = self.shape.max_logprobs, self.shape.vocab_size
        drawn = Drawn(tokens)
        if rows.draw is not None:
            tops = [top(number, most, vocab) for number in numbers]
            drawn = drawn._replace(
                logprobs=np.array([logprob(n, int(t)) for n, t in zip(numbers, tokens, strict=True)], np.float32),
                top_ids=np.array([[id for id, _ in row] for row in tops], np.int32),
                top_logprobs=np.array([[p for _, p in row] for row in tops], np.float32),
            )
        if rows.prompt_logprobs:
            prompt = prompt + [(0, 0)] * (size - len(prompt))
            tops = [top(number, most, vocab) for number, _ in prompt]
            drawn = drawn._replace(
                prompt_logprobs=np.array([logprob(*pair) for pair in prompt], np.float32),
                prompt_top_ids=np.array([[id for id, _ in row] for row in tops], np.int32),
                prompt_top_logprobs=np.array([[p for _, p in row] for row in tops], np.float32),
            )
        return drawn

    def fetch(self, started: Any) -> Drawn:
        self._own_thread()
        number, rows, copies, drawn = started
        assert all(np.array_equal(a, b) for a, b in zip(_arrays(rows), copies, strict=True)), "arrays were written to"
        self.fetched += 1
        if ("fetch", number) in self.fail_at:
            raise self.fail_at["fetch", number]
        return drawn

    def save(self, slot: int, snapshot: int) -> None:
        self._own_thread()
        assert 0 <= slot < self.shape.slots
        assert 0 <= snapshot < self.shape.snapshots
        self.states[self.shape.slots + snapshot] = self.states[slot]
        self.lengths[self.shape.slots + snapshot] = self.lengths[slot]
        length = self.lengths[slot]
        assert length is not None
        assert length % self.shape.page == 0, "a snapshot is not at the end of a page"

    def count(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        self._own_thread()
        self.said[slot] = (list(prompt), list(output))

    def swap(self, params: Any) -> None:
        self._own_thread()
        self.params = params
        self.lengths = [None] * len(self.lengths)
        for pages in self.pages.values():
            pages[:] = POISON

    def _own_thread(self) -> None:
        self._thread = self._thread or threading.get_ident()
        assert self._thread == threading.get_ident(), "calls come from two threads"

    def _check(self, rows: Rows) -> None:
        self._own_thread()
        shape = self.shape
        num, size = rows.ids.shape
        if rows.verifies:
            assert num in shape.rows, rows.ids.shape
            assert size == shape.drafts + 1 > 1, rows.ids.shape
            assert not shape.has_row_state
        else:
            assert (size == 1 and num in shape.rows) or (num == 1 and size in shape.chunks), rows.ids.shape
        self.shapes.add((num, size))
        for array, dtype in zip(_arrays(rows), _DTYPES, strict=False):
            assert array.dtype == dtype
        used = rows.count > 0
        assert (rows.slots[~used] == shape.slots).all()
        assert not rows.draws[~used].any()
        slots = rows.slots[used].tolist()
        assert len(set(slots)) == len(slots) == used.sum()
        assert all(0 <= slot < shape.slots for slot in slots)
        assert (rows.count <= size).all()
        assert (rows.start + rows.count <= shape.max_length).all()
        assert (rows.fresh[used] == (rows.start[used] == 0)).all()
        assert set(rows.tables) == {group.name for group in shape.groups}
        for group in shape.groups:
            table = rows.tables[group.name]
            assert table.shape == (num, shape.row_pages)
            assert ((table >= 0) & (table < group.pages)).all()
        for i in np.flatnonzero(used):
            source = int(rows.source[i])
            assert source == rows.slots[i] or shape.slots <= source < shape.slots + shape.snapshots
            if shape.has_row_state and not rows.fresh[i]:
                assert self.lengths[source] == rows.start[i], "the state of a row is of another number of tokens"


_DTYPES = (np.int32, np.int32, np.int32, np.bool_, np.int32, np.int32, np.bool_, np.bool_)


def _arrays(rows: Rows) -> list[np.ndarray]:
    plain = [rows.ids, rows.slots, rows.source, rows.fresh, rows.start, rows.count, rows.follows, rows.draws]
    arrays = [*plain, *rows.tables.values()]
    if rows.draw is not None:
        arrays += [value for value in vars(rows.draw).values() if isinstance(value, np.ndarray)]
    return arrays


def _copies(rows: Rows) -> list[np.ndarray]:
    return [array.copy() for array in _arrays(rows)]


class Reference:
    """The numbers of a sequence from its tokens alone."""

    def __init__(self, shape: DeviceShape, params: int = 0) -> None:
        self.shape, self.params = shape, params
        self.numbers: list[int] = []
        self.state = 0

    def read(self, token: int) -> int:
        """The number of the next token."""
        place = len(self.numbers)
        firsts = [0 if group.window is None else max(0, place - group.window + 1) for group in self.shape.groups]
        seen = [self.numbers[first:place] for first in firsts]
        number = digest(self.params, token, place, self.state, seen)
        if self.shape.has_row_state:
            self.state = hash((self.state, number)) & 0x7FFFFFFFFFFF
        self.numbers.append(number)
        return number


def expected(
    request: Request, shape: DeviceShape, params: int = 0, output: Sequence[int] = (), limit: int | None = None
) -> list[Token]:
    """The answer to a request, after the tokens of it that are there already."""
    reference = Reference(shape, params)
    number = 0
    for token in (*request.tokens, *output):
        number = reference.read(token)
    said = list(output)
    answer = list[Token]()
    grammar = request.grammar.copy() if request.grammar else None
    limit = min(len(request.tokens) + request.max_tokens, limit or shape.max_length)
    while len(request.tokens) + len(said) < limit:
        mask = grammar.mask() if grammar else None
        token = drawn_token(
            number, shape.vocab_size, request.draw, request.choice, len(said), (request.tokens, said), mask
        )
        if request.logprobs is None:
            answer.append(Token(token))
        else:
            tops = top(number, request.logprobs, shape.vocab_size)
            answer.append(Token(token, logprob(number, token), tuple(tops)))
        said.append(token)
        if token in request.stop_tokens:
            break
        if grammar:
            grammar.accept(token)
            if grammar.is_done():
                break
        number = reference.read(token)
    return answer


def expected_prompt(request: Request, shape: DeviceShape) -> tuple[Token, ...]:
    """The tokens of a prompt with their log-probabilities."""
    reference = Reference(shape)
    most = request.prompt_logprobs or 0
    tokens = [Token(request.tokens[0])]
    for token, after in zip(request.tokens, request.tokens[1:], strict=False):
        number = reference.read(token)
        tokens.append(Token(after, logprob(number, after), tuple(top(number, most, shape.vocab_size))))
    return tuple(tokens)
