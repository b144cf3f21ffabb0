# SPDX-License-Identifier: Apache-2.0
"""Objects by key in a store such as S3, through TensorStore: whole, one at a time, each call within a time limit.

No secret is in a config: keys, region and endpoint come from the environment, as AWS and Google have it.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from dovetail.config import ConfigError

from ._errors import StorageError, reason

SECONDS = 60.0  # In which one request has an answer, repeated or not.
# Errors that pass (500, 503, a broken connection) are tried again after 0.2 s, 0.4 s, ... and at most 4 s.
_RETRIES = {"max_retries": 8, "initial_delay": "200ms", "max_delay": "4s"}
# A transfer that stands still this long is broken off and tried again; unless the user has said something else.
_CURL = {"TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "20", "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "1"}
_CURL |= {"TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS": "10"}
_NONE = b"\x02"  # What TensorStore calls the generation of an object that is not there.
_DRIVERS = {"s3": "s3", "gs": "gcs"}


class Objects:
    """The objects whose keys begin with the path of a URL, `s3://bucket/path` or `gs://bucket/path`."""

    def __init__(
        self, url: str, *, where: str, seconds: float = SECONDS, error: type[Exception] = StorageError
    ) -> None:
        """Nothing is read. `where` names the URL, for messages; a request is answered in so many seconds, or fails.

        `error` is what is raised then.
        """
        scheme, _, rest = url.partition("://")
        bucket, _, path = rest.partition("/")
        if scheme not in _DRIVERS or not bucket or not path.strip("/"):
            raise ConfigError(
                f"{where}: expected a path, s3://BUCKET/NAME or gs://BUCKET/NAME, found {url!r}.\n"
                "  Other file systems: mount them, and give the path."
            )
        self.url = f"{scheme}://{bucket}/{path.strip('/')}"
        self.spec: dict[str, Any] = {"driver": _DRIVERS[scheme], "bucket": bucket, "path": f"{path.strip('/')}/"}
        if scheme == "s3":
            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
            if endpoint:
                self.spec["endpoint"] = endpoint.rstrip("/")
                region = region or "us-east-1"
            if os.environ.get("AWS_ACCESS_KEY_ID"):
                self.spec["aws_credentials"] = {"type": "environment"}
            if region:
                self.spec["aws_region"] = region
        self.seconds = seconds
        self._where, self._opened, self._error = where, None, error
        self._written: dict[str, bytes] = {}  # What TensorStore calls the state of an object, after `create`, `update`.

    def _store(self) -> Any:
        if self._opened is None:
            import tensorstore  # Here: it takes a while, and most commands do not need it.

            for name, value in _CURL.items():
                os.environ.setdefault(name, value)
            try:
                context = tensorstore.Context({"s3_request_retries": _RETRIES, "gcs_request_retries": _RETRIES})
                opened = tensorstore.KvStore.open(self.spec, context=context)
            except ValueError as e:
                raise ConfigError(f"{self._where}: {self.url!r} cannot be used: {reason(e)}") from e
            self._opened = self._answer(opened, self.url)
        return self._opened

    def read(self, key: str) -> bytes | None:
        """Returns an object; None if there is none."""
        found = self._answer(self._store().read(key), self._named(key))
        return bytes(found.value) if found.state == "value" else None

    def read_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Returns many objects, read side by side."""
        asked = [self._store().read(key) for key in keys]
        found = self.answers(zip(asked, map(self._named, keys), strict=True))
        return [bytes(each.value) if each.state == "value" else None for each in found]

    def write(self, key: str, data: bytes) -> None:
        """Writes an object, in place of what there is."""
        self._answer(self._store().write(key, data), self._named(key))

    def create(self, key: str, data: bytes) -> bool:
        """Writes an object and returns True, or returns False if there is one already: one PUT with a condition.

        If an answer was lost and the request made again, what is there is what was to be written, and that is True.
        """
        written = self._answer(self._store().write(key, data, if_equal=_NONE), self._named(key))
        self._written[key] = written.generation
        return bool(written.generation) or self._is_written(key, data)

    def update(self, key: str, data: bytes) -> bool:
        """Writes an object that the caller has created or updated last; False if it is there no more, or another."""
        written = self._answer(self._store().write(key, data, if_equal=self._written[key]), self._named(key))
        self._written[key] = written.generation
        return bool(written.generation) or self._is_written(key, data)

    def _is_written(self, key: str, data: bytes) -> bool:
        """Whether an object is what was to be written: the answer was lost, and the request made again."""
        found = self._answer(self._store().read(key), self._named(key))
        self._written[key] = found.stamp.generation
        return found.state == "value" and bytes(found.value) == data

    def delete(self, key: str) -> None:
        """Deletes an object, if it is there."""
        self._answer(self._store().write(key, None), self._named(key))

    def delete_all(self, prefix: str) -> None:
        """Deletes all objects whose keys begin so."""
        keys = self.keys(prefix)
        for some in (keys[i : i + 256] for i in range(0, len(keys), 256)):
            asked = [self._store().write(f"{prefix}{key}", None) for key in some]
            self.answers((each, self._named(prefix)) for each in asked)

    def keys(self, prefix: str) -> list[str]:
        """Returns what the keys that begin with `prefix` go on with, in order."""
        from tensorstore import KvStore

        keys = KvStore.KeyRange(prefix, f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}") if prefix else KvStore.KeyRange()
        asked = self._store().list(keys, strip_prefix_length=len(prefix))
        return sorted(key.decode() for key in self._answer(asked, self._named(prefix)))

    def start_writing(self, key: str, data: bytes) -> tuple[Any, str]:
        """Starts to write an object, in place of what there is; for `answers`."""
        return self._store().write(key, data), self._named(key)

    def start_reading(self, key: str, begin: int, end: int) -> tuple[Any, str]:
        """Starts to read some of an object; `answers` has a `state`, "value" if there is one, and a `value`."""
        return self._store().read(key, byte_range=slice(begin, end)), self._named(key)

    def answers(self, asked: Iterable[tuple[Any, str]]) -> list[Any]:
        """Returns the answers to requests that run side by side; an error if for too long none of them is answered."""
        waiting = list(asked)
        try:
            return [self._answer(each, name) for each, name in waiting]
        except BaseException:
            for each, _ in waiting:
                each.cancel()
            raise

    def _answer(self, asked: Any, name: str) -> Any:
        try:
            return asked.result(timeout=self.seconds)
        except TimeoutError as e:
            asked.cancel()
            raise self._error(f"{name}: no answer within {self.seconds:g} seconds") from e
        except Exception as e:
            raise self._error(f"{name}: {reason(e)}") from e

    def _named(self, key: str) -> str:
        return f"{self.url}/{key}"
