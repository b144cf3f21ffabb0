# SPDX-License-Identifier: Apache-2.0
"""Messages between the processes of a launch: JSON objects, one a line."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

LIMIT = 1 << 20  # Bytes of a message: a traceback fits, and nobody fills the memory of another.

Message = dict[str, Any]


def packed(message: Message) -> bytes:
    """Returns a message as it is sent."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def unpacked(line: bytes) -> Message:
    """Returns the message in a line; a ValueError if it is none."""
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, found {line[:80]!r}")
    return found


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    """Yields messages until the other side is gone, or sends what is none."""
    while True:
        try:
            line = await reader.readline()
            if not line.endswith(b"\n"):
                return
            yield unpacked(line)
        except (ValueError, ConnectionError, OSError):
            return
