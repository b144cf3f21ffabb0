# SPDX-License-Identifier: Apache-2.0
"""`Client`: a shelf of another host."""

import http.client
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence

from ._shelf import BlobError

_SILENCE = 5.0  # Seconds without a word from the other host, after which it counts as lost.
_CHUNK = 1 << 20


class Client:
    """Talks to one `Server`. One thread at a time; a connection is made for each request."""

    def __init__(self, address: str, token: str, *, timeout: float = _SILENCE) -> None:
        self.address, self._timeout = address, timeout
        self._headers = {"Authorization": f"Bearer {token}"}

    def put(self, name: str, data: Sequence[bytes | memoryview]) -> None:
        """Keeps the pieces of a blob there; a BlobError says why not."""
        pieces = [memoryview(piece).cast("B") for piece in data]
        crc = 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
        size = str(sum(map(len, pieces)))
        chunks = (piece[at : at + _CHUNK] for piece in pieces for at in range(0, len(piece), _CHUNK))
        self._asked("PUT", f"/blobs/{name}", {"Content-Length": size, "Crc32": f"{crc:08x}"}, chunks)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Returns a blob, or a part of it."""
        if start == stop:
            return b""
        headers = {} if stop is None else {"Range": f"bytes={start}-{stop - 1}"}
        return self._asked("GET", f"/blobs/{name}", headers)

    def sizes(self) -> Mapping[str, int]:
        """Returns what is there: the size of each blob."""
        found = json.loads(self._asked("GET", "/blobs", {}))
        return {str(name): int(size) for name, size in found.items()}

    def drop(self, names: Iterable[str]) -> None:
        """Forgets blobs."""
        body = json.dumps(list(names)).encode()
        self._asked("DELETE", "/blobs", {"Content-Length": str(len(body))}, [body])

    def _asked(
        self, method: str, path: str, headers: Mapping[str, str], body: Iterable[bytes | memoryview] = ()
    ) -> bytes:
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=self._timeout)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in {**self._headers, **headers}.items():
                connection.putheader(name, value)
            connection.endheaders()
            refused: OSError | None = None
            try:
                for chunk in body:
                    connection.send(chunk)
            except OSError as e:  # It may have said why before it stopped to read.
                refused = e
            try:
                response = connection.getresponse()
                data = response.read()
            except (OSError, http.client.HTTPException) as e:
                raise refused or e from e
        except (OSError, http.client.HTTPException) as e:
            raise BlobError(f"{self.address}: {e or type(e).__name__}") from e
        finally:
            connection.close()
        if response.status >= 400:
            raise BlobError(f"{self.address}: {data.decode(errors='replace')[:500]}")
        return data
