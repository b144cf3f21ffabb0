# SPDX-License-Identifier: Apache-2.0
"""`GET /`: a page to chat on. It is one file, and may load nothing else, from here or elsewhere."""

import base64
import functools
import hashlib
import re
from pathlib import Path

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

_FILE = Path(__file__).with_name("chat.html")


async def page(request: HttpRequest) -> Response:
    """Answers with the page."""
    return Response(_content(), media_type="text/html", headers=_headers())


@functools.cache
def _content() -> bytes:
    return _FILE.read_bytes()


@functools.cache
def _headers() -> dict[str, str]:
    text = _content().decode()
    scripts, styles = (_hashes(re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)) for tag in ("script", "style"))
    rules = f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src 'self'; img-src data:"
    return {
        "content-security-policy": f"{rules}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }


def _hashes(parts: list[str]) -> str:
    """Returns what allows these parts of the page, and no other code."""
    digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
