# SPDX-License-Identifier: Apache-2.0
"""`Guard`: who may ask: this machine alone, or whoever has the token; and no page of another address."""

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from dovetail.config import ConfigError

from ._api import Refused

LEAST = 16  # Characters of a token.
_NAME = "dovetail_board"


class Guard:
    """Checks the headers of requests to a server at a host and a port.

    Without a token a request must be for a name of this machine: a page that a browser shows could otherwise lead it
    here by a name of its own (DNS rebinding). With one, it must have it.
    """

    def __init__(self, host: str, port: int, token: str | None) -> None:
        if token is None and not is_local(host):
            raise ConfigError(
                f"board: --host {host} can be reached from other machines, so it needs a token.\n"
                "  Set DOVETAIL_BOARD_TOKEN, as by `openssl rand -hex 16`; or leave out --host, and use an ssh tunnel."
            )
        if token is not None and (len(token) < LEAST or not token.isascii() or not token.isprintable() or " " in token):
            raise ConfigError(
                f"board: the token has {len(token)} characters, expected at least {LEAST} letters and digits.\n"
                "  Make one by `openssl rand -hex 16`."
            )
        self._token = None if token is None else _digest(token)
        # What a browser keeps tells nothing of the token. Cookies are shared by all ports of a host.
        self._name = f"{_NAME}_{port}"
        self._session = "" if token is None else hashlib.sha256(f"{_NAME} {token}".encode()).hexdigest()

    @property
    def has_token(self) -> bool:
        """Whether a token is needed."""
        return self._token is not None

    def check(self, headers: Mapping[str, str], *, is_page: bool) -> None:
        """Raises `Refused` if a request may not be answered; `is_page`: it is for the page itself, without data."""
        host = headers.get("host", "")
        if self._token is None and not is_local(_hostname(host)):
            raise Refused(403, f"This server is for this machine alone, and has no name {host!r:.100}.")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refused(403, "A page from elsewhere may not ask this server.")
        if headers.get("sec-fetch-site") == "cross-site" and not is_page:
            raise Refused(403, "A page from elsewhere may not ask this server.")
        if self._token is not None and not (self._is_bearer(headers) or self._has_cookie(headers)):
            raise Refused(
                401, "Open this page with its token: /?token=TOKEN. Programs send Authorization: Bearer TOKEN."
            )

    def _is_bearer(self, headers: Mapping[str, str]) -> bool:
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.is_token(sent.strip())

    def is_token(self, text: str) -> bool:
        """Whether a text is the token; how long this takes says nothing of it."""
        return self._token is not None and hmac.compare_digest(_digest(text), self._token)

    def _has_cookie(self, headers: Mapping[str, str]) -> bool:
        pairs = [each.strip().partition("=") for each in headers.get("cookie", "").split(";")]
        sent = [value for name, _, value in pairs if name == self._name]
        return any(hmac.compare_digest(_digest(value), _digest(self._session)) for value in sent)

    @property
    def cookie(self) -> str:
        """What a browser is given that came with the token."""
        return f"{self._name}={self._session}; Path=/; HttpOnly; SameSite=Strict"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_local(host: str) -> bool:
    """Whether a name is one of this machine that others cannot reach.

    >>> [is_local(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.com", "")]
    [True, True, True, False, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
