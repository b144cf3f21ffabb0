# SPDX-License-Identifier: Apache-2.0
"""Stores: how the URL of a file becomes a request over HTTP, with the keys that the environment has.

All of them are read in the same way. S3 and Google's store have the same language for it (Google calls it the XML API),
and differ in addresses and in how a request is signed.
"""

import abc
import base64
import contextlib
import functools
import importlib
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from dovetail.config import ConfigError

from ._http import library

SCHEMES = ("s3", "gs", "https", "http")


class Store(abc.ABC):
    """Where files have URLs of one scheme."""

    encoding = "identity"  # What may be done to a body on its way.
    help = "See whether the address needs a signature, or another account."

    @abc.abstractmethod
    def address(self, url: str) -> str:
        """Returns where a file is, as HTTP has it."""

    def signed(self, url: str, address: str) -> Mapping[str, str]:
        """Returns the headers that say who asks for an address of a URL."""
        return {}

    def listing(self, url: str, token: str) -> str:
        """Returns the address that lists what begins as a URL does, after a token. Of stores with buckets."""
        raise NotImplementedError

    def learns(self, url: str, headers: Mapping[str, str], error: bytes) -> bool:
        """Whether an answer that is an error says where to ask instead: then ask again."""
        return False

    def md5(self, headers: Mapping[str, str]) -> str:
        """Returns the MD5 of a whole file, in hexadecimal, where an answer tells it."""
        return ""


def store_of(url: str, where: str, *, lists: bool = False) -> Store:
    """Returns the store of a URL, of a file or of the beginning of a list; `where` names it, for errors."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise ConfigError(
            f"{where}: {url!r}: files are read from paths, s3://, gs://, https:// and http://.\n"
            "  Other file systems: mount them, and give the path."
        )
    if "@" in rest.partition("/")[0]:
        raise ConfigError(
            f"{where}: {scheme}://...@{rest.partition('@')[2]}: a name or a password in a URL would be kept with "
            "what is made of it.\n  Give the URL without, or a signed one."
        )
    bucket, _, key = rest.partition("/")
    if not bucket or (scheme in ("s3", "gs") and not lists and not key.strip("/")):
        raise ConfigError(f"{where}: {url!r} names no file. Give {scheme}://BUCKET/NAME, or a glob: BUCKET/*.jsonl.")
    if scheme == "s3":
        return _s3(tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_"))))
    names = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG")
    return _Web() if scheme in ("http", "https") else _google(tuple(os.environ.get(name, "") for name in names))


class _Web(Store):
    def address(self, url: str) -> str:
        return url.partition("#")[0]


class _Buckets(Store, abc.ABC):
    """Files in buckets, by the language of S3."""

    def address(self, url: str) -> str:
        bucket, key = _bucket_and_key(url)
        return f"{self._bucket(bucket)}/{quote(key, safe='/-_.~')}"

    def listing(self, url: str, token: str) -> str:
        bucket, key = _bucket_and_key(url)
        asked = {"list-type": "2", "prefix": key, **({"continuation-token": token} if token else {})}
        query = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(asked.items()))
        return f"{self._bucket(bucket)}/?{query}"

    @abc.abstractmethod
    def _bucket(self, bucket: str) -> str: ...


def _bucket_and_key(url: str) -> tuple[str, str]:
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key


class _S3(_Buckets):
    help = "Keys come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE), as for checkpoints."

    def __init__(self) -> None:
        self._session = _library("botocore.session", "s3://").get_session()
        self._auth = _library("botocore.auth", "s3://").S3SigV4Auth
        self._request = _library("botocore.awsrequest", "s3://").AWSRequest
        self._keys = self._session.get_credentials()
        found = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        self._endpoint = found.rstrip("/") if found else None
        known = os.environ.get("AWS_REGION") or self._session.get_config_variable("region")
        self._region, self._regions = known or "us-east-1", dict[str, str]()

    def _bucket(self, bucket: str) -> str:
        if self._endpoint:
            return f"{self._endpoint}/{bucket}"
        host = f"s3.{self._regions.get(bucket, self._region)}.amazonaws.com"
        return f"https://{host}/{bucket}" if "." in bucket else f"https://{bucket}.{host}"

    def signed(self, url: str, address: str) -> Mapping[str, str]:
        if self._keys is None:
            return {}  # A bucket that all may read.
        region = self._regions.get(_bucket_and_key(url)[0], self._region)
        request = self._request(method="GET", url=address)
        self._auth(self._keys, "s3", region).add_auth(request)
        return dict(request.headers.items())

    def learns(self, url: str, headers: Mapping[str, str], error: bytes) -> bool:
        said = re.search(rb"<Region>([\w-]{1,40})</Region>", error)
        bucket = _bucket_and_key(url)[0]
        region = headers.get("x-amz-bucket-region") or (said[1].decode() if said else None)
        if not region or region == self._regions.get(bucket, self._region):
            return False
        self._regions[bucket] = region
        return True

    def md5(self, headers: Mapping[str, str]) -> str:
        tag = headers.get("ETag", "").strip(
            '"'
        )  # Of an object in parts it has a dash; with a key of KMS it is another.
        is_plain = headers.get("x-amz-server-side-encryption", "AES256") == "AES256"
        is_plain &= "x-amz-server-side-encryption-customer-algorithm" not in headers
        return tag.lower() if is_plain and len(tag) == 32 and set(tag.lower()) <= set("0123456789abcdef") else ""


class _Google(_Buckets):
    encoding = "gzip"  # Else what is kept compressed would be unpacked on its way, and have no ranges.
    help = "Application default credentials are used: gcloud auth application-default login."

    def __init__(self) -> None:
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        self._endpoint = (emulator if "://" in emulator or not emulator else f"http://{emulator}").rstrip("/")
        self._keys: Any = None
        if self._endpoint and not os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            return
        auth, errors = _library("google.auth", "gs://"), _library("google.auth.exceptions", "gs://")
        with contextlib.suppress(errors.DefaultCredentialsError):  # Then it must be a bucket that all may read.
            self._keys, _ = auth.default(scopes=["https://www.googleapis.com/auth/devstorage.read_only"])

    def _bucket(self, bucket: str) -> str:
        return f"{self._endpoint or 'https://storage.googleapis.com'}/{bucket}"

    def signed(self, url: str, address: str) -> Mapping[str, str]:
        if self._keys is None:
            return {}
        if not self._keys.valid:
            errors, transport = (
                _library(f"google.auth.{name}", "gs://") for name in ("exceptions", "transport.urllib3")
            )
            try:
                self._keys.refresh(transport.Request(library("gs://").PoolManager()))
            except errors.GoogleAuthError as e:
                raise ConfigError(f"gs://: the credentials are refused: {e}.\n  {self.help}") from e
        return {"Authorization": f"Bearer {self._keys.token}"}

    def md5(self, headers: Mapping[str, str]) -> str:
        for part in headers.get("x-goog-hash", "").split(","):
            name, _, value = part.strip().partition("=")
            if name == "md5":
                return base64.b64decode(value).hex()
        return ""


@functools.lru_cache(maxsize=4)
def _s3(environment: tuple[tuple[str, str], ...]) -> Store:
    return _S3()


@functools.lru_cache(maxsize=4)
def _google(environment: tuple[str, ...]) -> Store:
    return _Google()


def _library(module: str, scheme: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise ConfigError(
            f"{scheme} needs the package {module.split('.')[0]}, which cannot be imported: {e}.\n"
            "  Install it: pip install 'dovetail[remote]'"
        ) from e
