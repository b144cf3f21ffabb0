# SPDX-License-Identifier: Apache-2.0
"""Texts in pictures: made harmless, measured without a font, shortened to what there is room for, and numbers."""

import math
import unicodedata
from html import escape

TIMES = "\N{MULTIPLICATION SIGN}"

_NARROW = frozenset("iljI|.,:;'!`()[]{}ftr/\\- ")
_WIDE = frozenset("mwMW@%—…")


def printable(text: str) -> str:
    """Returns a text in one line with all spelled out that is not seen, such as what turns the direction of text.

    >>> printable("a\\x1b\\u202eb\\nc")
    'a\\\\x1b\\\\u202eb\\\\nc'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def marked_up(text: str) -> str:
    """Returns a text as XML and HTML have it: all of it is text, whatever it is.

    >>> marked_up("<script> & 'x'\\x00")
    '&lt;script&gt; &amp; &#x27;x&#x27;\\\\x00'
    """
    return escape(printable(text))


def width_of(text: str, size: float = 12) -> float:
    """Returns the width of a text in pixels, rather too much than too little: whoever reads it has another font."""
    return size * sum(map(_width, text if text.isprintable() else printable(text)))


def _width(character: str) -> float:
    if character in _NARROW:
        return 0.39
    if character in _WIDE or unicodedata.east_asian_width(character) in "WF":
        return 1.0
    return 0.69 if character.isupper() else 0.61


def shortened(text: str, width: float, size: float = 12, *, middle: bool = False) -> str:
    """Returns a text that is not wider than so many pixels: what is left out at its end, or in the middle, is `…`.

    >>> shortened("model.decoder.layers", 80)
    'model.dec…'
    """
    text = printable(text)
    if width_of(text, size) <= width:
        return text
    low, high = 0, len(text)
    while low < high:  # How many characters may stay.
        keep = (low + high + 1) // 2
        low, high = (keep, high) if width_of(_without(text, keep, middle), size) <= width else (low, keep - 1)
    return _without(text, low, middle)


def _without(text: str, keep: int, middle: bool) -> str:
    if not middle:
        return f"{text[:keep].rstrip()}…"
    return f"{text[: keep - keep // 2]}…{text[len(text) - keep // 2 :]}"


def number(value: float) -> str:
    """Returns a number in three digits or so.

    >>> number(0.03125), number(1234.5), number(12e6), number(3e-5), number(0.0), number(float("nan"))
    ('0.0312', '1,234', '12M', '3e-05', '0', 'nan')
    """
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e15):
        return f"{value:.3g}"
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if size >= scale * (10 if unit == "K" else 1):
            return f"{value / scale:.3g}{unit}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.3g}"
