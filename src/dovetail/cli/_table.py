# SPDX-License-Identifier: Apache-2.0
"""Tables and figures in print, the same way in every command."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

_NUMBER = re.compile(r"[\d,.]+ ?[KMGTPEZYB]?(iB)?|-|")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns rows in columns; numbers stand at the right."""
    cells = [tuple(head), *(tuple(f"{v:,}" if isinstance(v, int) else str(v) for v in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [all(map(_NUMBER.fullmatch, column[1:])) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    )


def printable(text: str) -> str:
    """Returns a text that may be from elsewhere with all spelled out that is not seen, but for ends of lines.

    >>> printable("red: \\x1b[31m")
    'red: \\\\x1b[31m'
    """
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def short(number: float) -> str:
    """Returns a count in three digits, a billion of something being a `B`.

    >>> short(54_240), short(6_738_415_616), short(405_853_388_800), short(2.5e15)
    ('54.2K', '6.74B', '406B', '2,500T')
    """
    return _scaled(number, 1000, ("", "K", "M", "B", "T"))


def operations(number: float) -> str:
    """Returns a number of floating-point operations in three digits.

    >>> operations(8_064_000), operations(4.2e24)
    ('8.06M', '4.20Y')
    """
    return _scaled(number, 1000, ("", "K", "M", "G", "T", "P", "E", "Z", "Y"))


def size(num_bytes: float) -> str:
    """Returns a number of bytes in three digits.

    >>> size(640), size(1_282_560), size(6.5 * 2**40)
    ('640 B', '1.22 MiB', '6.50 TiB')
    """
    return _scaled(num_bytes, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def _scaled(number: float, base: int, units: Sequence[str]) -> str:
    power = 0
    while number >= 999.5 and power < len(units) - 1:
        number, power = number / base, power + 1
    digits = 0 if not power or number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:,.{digits}f}{units[power]}"
