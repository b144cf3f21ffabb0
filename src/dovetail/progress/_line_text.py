# SPDX-License-Identifier: Apache-2.0
"""What a line of progress says: what is happening, how far, how long still, in the room that there is."""

import dataclasses
import itertools
import unicodedata
from collections.abc import Sequence

from ._phase import Count

SHORT = 0.8  # Seconds; what is over by then is not worth a line that stays.
_PACE = 2.0  # Seconds after which the pace says how long it still takes.
_LEAST = 12  # Columns that a name keeps.
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")


@dataclasses.dataclass(frozen=True)
class Running:
    """A phase that has not ended."""

    name: str
    start: float
    count: Count


def line(running: Sequence[Running], now: float, width: int | None = None) -> str:
    """Returns what goes on: the innermost phase, after those around it that count.

    What is least needed is left out where there is no room for it; then the name is cut.
    """
    *outer, last = running
    parts, needed = _parts(last, now)

    def text(left_out: int = 0, around: str = "") -> str:
        shown = [part for part, rank in zip(parts, needed, strict=True) if rank >= left_out]
        return f"{around}{last.name} ... {', '.join(shown)}".rstrip()

    around = "".join(f"{each.name} {_share(each.count)}: " for each in outer if _counts(each.count))
    texts = [text(0, around), *(text(least) for least in range(max(needed, default=0) + 1))]
    if width is None:
        return texts[0]
    for each in texts:
        if columns(each) <= width:
            return each
    rest = texts[-1].removeprefix(last.name)
    return _first(f"{cut(last.name, max(width - columns(rest), _LEAST))}{rest}", width)


def _parts(running: Running, now: float) -> tuple[list[str], list[int]]:
    """Returns what there is to say of a phase, in order, and how much each is needed: 0 the least."""
    count, seconds = running.count, now - running.start
    found: list[tuple[str, int]] = []
    if _counts(count):
        if count.total:
            found.append((f"{100 * min(count.done / count.total, 1):.0f} %", 4))
        found.append((_amounts(count), 2))
        if note := count.note or _rate(count, seconds):
            found.append((note, 0))
    if seconds >= SHORT:
        found.append((duration(seconds), 1 if _counts(count) else 4))
    left = count.left(seconds) if seconds >= _PACE else None
    if left:
        found.append((f"{duration(left, rough=True)} left", 4))
    ranks = sorted({rank for _, rank in found})
    return [text for text, _ in found], [ranks.index(rank) for _, rank in found]


def _counts(count: Count) -> bool:
    return count.total is not None or count.done > count.first


def _share(count: Count) -> str:
    return _amounts(count) if count.unit != "bytes" or not count.total else f"{100 * count.done / count.total:.0f} %"


def _amounts(count: Count) -> str:
    """Returns what is done, of how much.

    >>> _amounts(Count(1.5e9, "bytes", 2e8)), _amounts(Count(12_000, "rows", 7)), _amounts(Count(None, "rows", 7))
    ('0.2 of 1.5 GB', '7 of 12,000 rows', '7 rows')
    """
    unit = f" {count.unit}" if count.unit else ""
    if count.unit == "bytes":
        most = count.done if count.total is None else max(count.total, count.done)
        power = min(int(len(str(int(most))) - 1) // 3, len(_BYTES) - 1)
        numbers = [f"{each / 1000**power:.{1 if power > 1 else 0}f}" for each in (count.done, count.total or 0)]
        unit = f" {_BYTES[power]}"
    else:
        numbers = [f"{int(count.done):,}", f"{int(count.total or 0):,}"]
    return f"{numbers[0]}{unit}" if count.total is None else f"{numbers[0]} of {numbers[1]}{unit}"


def _rate(count: Count, seconds: float) -> str:
    """Returns how fast bytes go; other things have no rate that says much."""
    if count.unit != "bytes" or seconds < _PACE:
        return ""
    return f"{(count.done - count.first) / seconds / 1e6:,.0f} MB/s"


def columns(text: str) -> int:
    """Returns how many columns of a terminal a text takes.

    >>> columns("abc"), columns("\\u6d77")
    (3, 2)
    """
    return sum(_columns(each) for each in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Returns as much of a text as there is room for; two dots say that it goes on.

    >>> cut("restoring the checkpoint", 12), cut("restoring", 12)
    ('restoring ..', 'restoring')
    """
    if columns(text) <= width:
        return text
    return _first(text, width - 2) + ".."


def _first(text: str, width: int) -> str:
    ends = itertools.accumulate(map(_columns, text))
    return text[: sum(end <= width for end in ends)]


def duration(seconds: float, *, rough: bool = False) -> str:
    """Returns a time as a person says it; what is guessed has no tenths.

    >>> duration(1.234), duration(12.3), duration(125.0), duration(7500.0), duration(1.2, rough=True)
    ('1.2 s', '12 s', '2 min 5 s', '2 h 5 min', '1 s')
    """
    if seconds < 9.95 and not rough:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 120:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes >= 2 else f"{round(seconds)} s"
