# SPDX-License-Identifier: Apache-2.0
"""Is told each time that a phase says how far it is."""

import contextlib
from collections.abc import Callable, Iterator

from dovetail.progress import Count, Watcher, watching


class _Told(Watcher):
    def __init__(self, told: Callable[[str, Count], None]) -> None:
        self._told, self._names = told, list[str]()

    def started(self, name: str) -> None:
        self._names.append(name)

    def ended(self, name: str, seconds: float | None) -> None:
        self._names.pop()

    def counts(self, count: Count) -> None:
        name, plain = self._names[-1], count.advance

        def advance(by: float = 1) -> None:
            plain(by)
            self._told(name, count)

        count.advance = advance


@contextlib.contextmanager
def counted(told: Callable[[str, Count], None]) -> Iterator[None]:
    """Tells of each step of the phases inside, by their name."""
    with watching(_Told(told)):
        yield
