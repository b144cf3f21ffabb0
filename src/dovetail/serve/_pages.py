# SPDX-License-Identifier: Apache-2.0
"""Pages: which sequence has which, what is kept for prompts to come, and what goes when room is needed.

A page that a sequence has filled is kept in a tree by the tokens that are in it and in all pages before it. It stays
there when no sequence uses it, until its room is needed: what was used longest ago goes first. Numbers only: what is in
a page, or in a snapshot of a row, a device knows.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from ._device import DeviceShape


class Node:
    """A page of tokens after all those before it: one page of each group, where it is kept, and perhaps a snapshot."""

    __slots__ = ("children", "key", "pages", "parent", "snapshot", "users")

    def __init__(self, parent: "Node | None", key: tuple[int, ...] | str, groups: int) -> None:
        self.parent = parent
        self.key = key  # The tokens; of a root, the salt.
        self.children: dict[tuple[int, ...], Node] = {}
        self.pages = [0] * groups  # 0: not kept.
        self.snapshot: int | None = None  # Of the state of a row after the last of the tokens.
        self.users = 0  # Sequences that have read these tokens.


class Held:
    """What a sequence has. A table has a page for each `page` tokens, and 0 where it is behind the window."""

    __slots__ = ("answer", "changes", "first", "loose", "nodes", "root", "source", "tables")

    def __init__(self, root: Node, groups: int) -> None:
        self.root = root
        self.tables: list[list[int]] = [[] for _ in range(groups)]
        self.first = [0] * groups  # By group: the first place of the table that is not behind the window.
        self.nodes: list[Node] = []  # Of its full pages, as far as their tokens are known.
        self.loose: dict[int, int] = {}  # Snapshots by the number of tokens, while the node is not known yet.
        self.answer = 0  # The number of tokens of the snapshot that moves on with the answer; 0: none.
        self.source: int | None = None  # The snapshot that the sequence starts from, until it has.
        self.changes: list[tuple[int, int, int]] = []  # Of the tables, since someone looked: group, place, page.


class Usage(NamedTuple):
    """How many pages of a group there are: in use, kept for prompts to come, and free."""

    used: int
    cached: int
    free: int


class Pages:
    """All pages and snapshots of a device."""

    def __init__(self, shape: DeviceShape, *, caches: bool = True) -> None:
        self._page = shape.page
        self._row_state = shape.has_row_state
        self.caches = caches and (shape.snapshots > 0 or not shape.has_row_state)
        self._groups = shape.groups
        self._windows = [group.window for group in shape.groups]
        self._free = [list(range(group.pages - 1, 0, -1)) for group in shape.groups]
        self._refs = [[0] * group.pages for group in shape.groups]  # Sequences with the page in their table.
        self._owner: list[list[Node | None]] = [[None] * group.pages for group in shape.groups]
        self._unused: list[OrderedDict[int, Node]] = [OrderedDict() for _ in shape.groups]  # The oldest first.
        self._roots: dict[str, Node] = {}
        self._free_snapshots = list(range(shape.snapshots - 1, -1, -1)) if shape.has_row_state else []
        self._snapshots: OrderedDict[int, Node] = OrderedDict()  # By number; the one used longest ago first.
        self._pins: dict[int, int] = {}  # Snapshots that sequences are about to start from, and how many.

    # Room.

    def room(self, group: int) -> int:
        """How many pages of a group can be had."""
        return len(self._free[group]) + len(self._unused[group])

    def most(self, group: int, tokens: int, chunk: int) -> int:
        """The pages that a sequence of so many tokens has at most, at once, if it is read in chunks."""
        pages, window = -(-tokens // self._page), self._windows[group]
        return pages if window is None else min(pages, -(-(window - 1 + chunk) // self._page) + 1)

    def lacks(self, held: Held, tokens: int, chunk: int, reserve: int) -> tuple[int, int] | None:
        """Returns a group without room for a sequence that begins, to so many tokens, and how much room it would need.

        So many pages as `reserve` are to be left, or a quarter of all, if that is less.
        """
        for group, table in enumerate(held.tables):
            need = self.most(group, tokens, chunk) - (len(table) - held.first[group])
            spare = min(reserve, self._groups[group].pages // 4)
            if max(0, need) + spare > self.room(group):
                return group, max(0, need) + spare
        return None

    def grow(self, held: Held, tokens: int, ahead: int = 0) -> bool:
        """Gives a sequence room for so many tokens (groups without a window: for `ahead`, if more), or nothing."""
        ends = [-(-(tokens if window else max(tokens, ahead)) // self._page) for window in self._windows]
        for group, end in enumerate(ends):
            if end - len(held.tables[group]) > self.room(group):
                return False
        for group, end in enumerate(ends):
            table = held.tables[group]
            for place in range(len(table), end):
                page = self._new_page(group)
                table.append(page)
                held.changes.append((group, place, page))
        return True

    def covered(self, held: Held) -> int:
        """How many tokens a sequence has room for; a large number, where no state is by token."""
        return min((len(table) for table in held.tables), default=2**40) * self._page

    def _new_page(self, group: int) -> int:
        if not self._free[group]:
            self._evict(group)
        page = self._free[group].pop()
        self._refs[group][page] = 1
        return page

    def _evict(self, group: int) -> None:
        page, node = next(iter(self._unused[group].items()))
        self._forget(group, page)
        if self._windows[group] is None:  # Nothing can be hit here without it: the rest of the node is of no use.
            for other, kept in enumerate(node.pages):
                if kept and not self._refs[other][kept]:
                    self._forget(other, kept)
            if node.snapshot is not None and not self._pins.get(node.snapshot):
                self._drop_snapshot(node)
        self._prune(node)

    def _forget(self, group: int, page: int) -> None:
        """Frees a page that is kept and not used."""
        node = self._unused[group].pop(page)
        node.pages[group] = 0
        self._owner[group][page] = None
        self._free[group].append(page)

    def _prune(self, node: Node) -> None:
        while not (node.children or node.users or node.snapshot is not None or any(node.pages)):
            if node.parent is None:
                self._roots.pop(str(node.key), None)
                return
            del node.parent.children[node.key]  # pyright: ignore[reportArgumentType]  # Only roots have a str.
            node = node.parent

    # Prefixes.

    def take(self, tokens: Sequence[int], salt: str = "", *, hits: bool = True) -> tuple[Held, int, int]:
        """Begins a sequence with the longest prefix that is kept, without its last token.

        Returns what it has, how many tokens that is, and how many are known in the tree: for a device with state by
        row this can be more, if no snapshot was made there.
        """
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node(None, salt, len(self._groups))
        root.users += 1
        held = Held(root, len(self._groups))
        if not (hits and self.caches):
            return held, 0, 0
        chain = self._chain(root, tokens)
        length = self._usable(chain)
        held.nodes = chain[:length]
        for node in held.nodes:
            node.users += 1
        for group, table in enumerate(held.tables):
            first = held.first[group] = self._first(group, length * self._page)
            for place, node in enumerate(held.nodes):
                page = node.pages[group] if place >= first else 0
                table.append(page)
                if page:
                    self._use(group, page)
                    held.changes.append((group, place, page))
        if self._row_state and length:
            held.source = number = held.nodes[-1].snapshot
            assert number is not None
            self._pins[number] = self._pins.get(number, 0) + 1
            self._snapshots.move_to_end(number)
        return held, length * self._page, len(chain) * self._page

    def _chain(self, root: Node, tokens: Sequence[int]) -> list[Node]:
        """The nodes of a prefix that have a page in each group without a window."""
        chain = list[Node]()
        node, page = root, self._page
        full = [group for group, window in enumerate(self._windows) if window is None]
        for end in range(page, len(tokens), page):
            child = node.children.get(tuple(tokens[end - page : end]))
            if child is None or not all(child.pages[group] for group in full):
                break
            chain.append(child)
            node = child
        return chain

    def _usable(self, chain: list[Node]) -> int:
        """How many nodes of a chain can be begun with: what the windows see is there, and a snapshot, if needed."""
        windowed = [group for group, window in enumerate(self._windows) if window is not None]
        there = [0] * len(self._windows)  # Pages that are there without a gap before this node.
        best = 0
        for length, node in enumerate(chain, start=1):
            usable = not self._row_state or node.snapshot is not None
            for group in windowed:
                there[group] = there[group] + 1 if node.pages[group] else 0
                usable = usable and there[group] >= length - self._first(group, length * self._page)
            if usable:
                best = length
        return best

    def _first(self, group: int, tokens: int) -> int:
        """The first place of a table that the token after so many sees."""
        window = self._windows[group]
        return 0 if window is None else max(0, (tokens - window + 1) // self._page)

    def _use(self, group: int, page: int) -> None:
        self._refs[group][page] += 1
        self._unused[group].pop(page, None)

    def _unuse(self, group: int, page: int) -> None:
        self._refs[group][page] -= 1
        if not self._refs[group][page]:
            node = self._owner[group][page]
            if node is None:
                self._free[group].append(page)
            else:
                self._unused[group][page] = node

    def commit(self, held: Held, tokens: Sequence[int], computed: int) -> None:
        """Puts pages that are full, and whose tokens are known, into the tree.

        Where another sequence has put the same there before, a sequence keeps its own page to itself.
        """
        if not self.caches:
            return
        page = self._page
        for place in range(len(held.nodes), min(len(tokens), computed) // page):
            end = (place + 1) * page
            parent = held.nodes[-1] if held.nodes else held.root
            key = tuple(tokens[end - page : end])
            node = parent.children.get(key)
            if node is None:
                node = parent.children[key] = Node(parent, key, len(self._groups))
            node.users += 1
            held.nodes.append(node)
            self._give(held, place)
            if (snapshot := held.loose.pop(end, None)) is not None:
                self._attach(held, node, snapshot, end)

    def _give(self, held: Held, place: int) -> None:
        """Keeps the pages of a sequence at a place of its tables in the tree, where it has none."""
        node = held.nodes[place]
        for group, table in enumerate(held.tables):
            page = table[place]
            if page and not node.pages[group] and self._owner[group][page] is None:
                node.pages[group] = page
                self._owner[group][page] = node

    def behind(self, held: Held, computed: int) -> int:
        """Lets go of what the next token no longer sees; returns from how many tokens on there is more."""
        after = 2**40
        for group, window in enumerate(self._windows):
            if window is None:
                continue
            table, first = held.tables[group], self._first(group, computed)
            for place in range(held.first[group], min(first, len(table))):
                self._unuse(group, table[place])
                table[place] = 0
                held.changes.append((group, place, 0))
            held.first[group] = max(held.first[group], min(first, len(table)))
            after = min(after, (held.first[group] + 1) * self._page + window - 1)
        return after

    def release(self, held: Held) -> None:
        """Ends a sequence. What is in the tree stays, until its room is needed."""
        for place in range(len(held.nodes)):  # What the tree has lost since, it gets again.
            self._give(held, place)
        for group, table in enumerate(held.tables):
            for page in reversed(table):  # The last page of a prefix is the first to go.
                if page:
                    self._unuse(group, page)
            table.clear()
        for snapshot in held.loose.values():
            self._free_snapshots.append(snapshot)
        held.loose.clear()
        self.started(held)
        for node in reversed(held.nodes):
            node.users -= 1
            self._prune(node)
        held.nodes = []
        held.root.users -= 1
        self._prune(held.root)

    def clear(self) -> None:
        """Forgets all that is kept; no sequence may have anything."""
        assert not any(map(any, self._refs)), "a sequence has pages"
        for group, unused in enumerate(self._unused):
            for page in list(unused):
                node = unused[page]
                self._forget(group, page)
                self._prune(node)
        for node in list(self._snapshots.values()):
            self._drop_snapshot(node)
            self._prune(node)

    # Snapshots.

    def snapshot(self, held: Held, tokens: int) -> int | None:
        """Returns where the row is to be saved that has read so many tokens, which end a page; None: nowhere."""
        assert tokens % self._page == 0
        place = tokens // self._page - 1
        known = held.nodes[place] if place < len(held.nodes) else None
        if not self.caches or tokens in held.loose or (known and known.snapshot is not None):
            return None
        if not self._free_snapshots and not self._evict_snapshot():
            return None
        number = self._free_snapshots.pop()
        if known:
            self._attach(held, known, number, tokens)
        else:
            held.loose[tokens] = number
        return number

    def moving(self, held: Held, tokens: int) -> int | None:
        """The same for a row that writes an answer: only its last snapshot is kept, if no one else has read it."""
        if held.answer in held.loose:
            self._free_snapshots.append(held.loose.pop(held.answer))
        elif 0 < held.answer <= len(held.nodes) * self._page:
            node = held.nodes[held.answer // self._page - 1]
            if node.users == 1 and node.snapshot is not None and not self._pins.get(node.snapshot):
                self._drop_snapshot(node)
        number = self.snapshot(held, tokens)
        held.answer = tokens if number is not None else 0
        return number

    def started(self, held: Held) -> None:
        """Says that the call that reads the snapshot of a sequence has been made, or never will be."""
        if held.source is not None:
            self._pins[held.source] -= 1
            if not self._pins[held.source]:
                del self._pins[held.source]
            held.source = None

    def _attach(self, held: Held, node: Node, number: int, tokens: int) -> None:
        assert node is held.nodes[tokens // self._page - 1]  # A snapshot is of the tokens that the node stands for.
        if node.snapshot is not None:
            self._free_snapshots.append(number)
            return
        node.snapshot = number
        self._snapshots[number] = node

    def _evict_snapshot(self) -> bool:
        for number, node in self._snapshots.items():
            if not self._pins.get(number):
                self._drop_snapshot(node)
                self._prune(node)
                return True
        return False

    def _drop_snapshot(self, node: Node) -> None:
        assert node.snapshot is not None
        del self._snapshots[node.snapshot]
        self._free_snapshots.append(node.snapshot)
        node.snapshot = None

    # Numbers.

    def usage(self) -> dict[str, Usage]:
        """How many pages there are, by group."""
        return {
            group.name: Usage(group.pages - 1 - len(free) - len(unused), len(unused), len(free))
            for group, free, unused in zip(self._groups, self._free, self._unused, strict=True)
        }

    def snapshots(self) -> int:
        """How many snapshots are kept."""
        return len(self._snapshots)
