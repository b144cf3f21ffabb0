# SPDX-License-Identifier: Apache-2.0
"""What must hold of pages at any time, whatever has been done with them."""

from collections import Counter
from collections.abc import Iterable

from dovetail.serve._pages import Held, Node, Pages


def nodes_of(pages: Pages) -> list[Node]:
    """All nodes of the tree, roots included."""
    found, todo = list[Node](), list(pages._roots.values())
    while todo:
        node = todo.pop()
        found.append(node)
        for key, child in node.children.items():
            assert child.parent is node
            assert child.key == key
            todo.append(child)
    return found


def check_pages(pages: Pages, helds: Iterable[Held]) -> None:
    """Asserts that each page is at one place, that references are counted, and that nothing is lost."""
    helds = list(helds)
    nodes = nodes_of(pages)
    for index, group in enumerate(pages._groups):
        used = Counter(page for held in helds for page in held.tables[index] if page)
        free, unused = pages._free[index], pages._unused[index]
        assert sorted([*free, *unused, *used]) == list(range(1, group.pages)), group.name
        assert pages._refs[index] == [used[page] for page in range(group.pages)]
        kept = {node.pages[index]: node for node in nodes if node.pages[index]}
        assert len(kept) == sum(node.pages[index] != 0 for node in nodes)
        assert kept == {page: node for page, node in enumerate(pages._owner[index]) if node}
        assert all(kept[page] is node for page, node in unused.items())
        assert not kept.keys() & set(free)
        assert unused.keys() == kept.keys() - used.keys()
        for held in helds:
            first = held.first[index]
            assert not any(held.tables[index][:first])
            assert all(held.tables[index][first:])
    users = Counter(id(node) for held in helds for node in (held.root, *held.nodes))
    for node in nodes:
        assert node.users == users.pop(id(node), 0)
        assert node.children or node.users or node.snapshot is not None or any(node.pages), "nobody needs a node"
    assert not users, "a sequence has a node that is not in the tree"
    _check_snapshots(pages, helds, nodes)


def _check_snapshots(pages: Pages, helds: list[Held], nodes: list[Node]) -> None:
    attached = {node.snapshot: node for node in nodes if node.snapshot is not None}
    loose = [snapshot for held in helds for snapshot in held.loose.values()]
    assert len(attached) == sum(node.snapshot is not None for node in nodes)
    assert attached == dict(pages._snapshots)
    numbers = sorted([*pages._free_snapshots, *attached, *loose])
    assert numbers == list(range(len(numbers)))
    sources = Counter(held.source for held in helds if held.source is not None)
    assert pages._pins == dict(sources)
    assert sources.keys() <= attached.keys()


def check_all_free(pages: Pages) -> None:
    """Asserts that no sequence has anything, and that nothing is left when what is kept is forgotten."""
    check_pages(pages, [])
    assert all(usage.used == 0 for usage in pages.usage().values())
    pages.clear()
    check_pages(pages, [])
    assert not pages._roots
    assert not pages.snapshots()
    assert all(usage.cached == 0 for usage in pages.usage().values())
