# SPDX-License-Identifier: Apache-2.0
"""Text that a model has written, made safe to print: it must not move the cursor, change a title or hide itself."""

import re

# Control characters but tab and newline, and those that change the direction of what follows.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Returns `text` with its control characters spelled out, but for tabs and ends of lines.

    >>> visible("red: \\x1b[31m, tab:\\tend")
    'red: \\\\x1b[31m, tab:\\tend'
    """
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def escaped(json_text: str) -> str:
    """Returns JSON with the control characters in its strings escaped; it says the same.

    >>> escaped('{"text": "\\x9b2J"}')
    '{"text": "\\\\u009b2J"}'
    """
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text)
