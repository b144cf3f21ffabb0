# SPDX-License-Identifier: Apache-2.0
"""Stores: where a file is over HTTP, and the keys with which it is asked for."""

import base64
import hashlib
import http.server
import json
import os
import sys
import threading
import urllib.parse

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dovetail.config import ConfigError
from dovetail.data import DataError
from dovetail.data import _stores as stores_module
from dovetail.data._files import find_files, open_stream
from dovetail.data._stores import store_of
from support.s3 import BUCKET
from support.text_files import put_object

KEYS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """Nothing of AWS and of Google but what a test sets."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "STORAGE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def set_all(values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    yield set_all
    stores_module._google.cache_clear()


def headers_of(url: str) -> dict[str, str]:
    store = store_of(url, "sources")
    return dict(store.signed(url, store.address(url)))


def test_a_file_in_s3_is_asked_for_in_the_region_of_its_bucket(environment):
    environment({**KEYS, "AWS_REGION": "eu-north-1"})
    url = "s3://bucket/a dir/é+1.jsonl"
    store = store_of(url, "sources")
    assert store.address(url) == "https://bucket.s3.eu-north-1.amazonaws.com/a%20dir/%C3%A9%2B1.jsonl"
    assert store.address("s3://with.dots/a") == "https://s3.eu-north-1.amazonaws.com/with.dots/a"
    assert "/eu-north-1/s3/aws4_request" in headers_of(url)["Authorization"]
    said = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>us-west-2</Region></Error>"
    assert not store.learns(url, {}, b"<Error><Code>AccessDenied</Code></Error>")
    assert store.learns(url, {}, said)
    assert not store.learns(url, {"x-amz-bucket-region": "us-west-2"}, said)
    assert store_of("s3://third/a", "sources").learns("s3://third/a", {"x-amz-bucket-region": "eu-west-1"}, b"")
    assert store.address(url).startswith("https://bucket.s3.us-west-2.amazonaws.com/")
    assert "/us-west-2/s3/aws4_request" in headers_of(url)["Authorization"]
    assert store.address("s3://other/a") == "https://other.s3.eu-north-1.amazonaws.com/a"
    assert "secret" not in str(headers_of(url))


def test_a_bucket_is_read_without_keys_where_there_are_none(environment):
    assert headers_of("s3://open/a") == {}
    environment({"STORAGE_EMULATOR_HOST": "127.0.0.1:9"})
    assert headers_of("gs://open/a") == {}
    assert store_of("gs://open/a", "sources").address("gs://open/a") == "http://127.0.0.1:9/open/a"


def test_what_is_not_allowed_is_said_with_where_keys_come_from(environment, endpoint):
    put_object(endpoint, f"{BUCKET}/mine", b"x", readers="private")
    environment({"AWS_ENDPOINT_URL": endpoint})
    with pytest.raises(DataError) as e:
        find_files([f"s3://{BUCKET}/mine"], "sources")
    assert str(e.value) == (
        f"s3://{BUCKET}/mine: cannot be read: HTTP 403 FORBIDDEN.\n"
        "  Keys come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE), as for checkpoints."
    )


def test_names_of_any_characters_are_found_and_read(stores):
    for name in ("a b+c&d=e%25.txt", "é/[x]/~.txt"):
        put_object(stores, f"{BUCKET}/odd/{name}", name.encode())
    for scheme in ("s3", "gs"):
        files = find_files([f"{scheme}://{BUCKET}/odd/**/*.txt"], "sources")
        assert [open_stream(file).read().decode() for file in files] == ["a b+c&d=e%25.txt", "é/[x]/~.txt"]


def test_more_files_than_a_list_has_are_all_found(stores, monkeypatch):
    for i in range(5):
        put_object(stores, f"{BUCKET}/many/{i}.txt", b"x")
    real = stores_module._Buckets.listing
    monkeypatch.setattr(stores_module._Buckets, "listing", lambda *a: f"{real(*a)}&max-keys=2")
    assert len(find_files([f"s3://{BUCKET}/many/*"], "sources")) == 5


def test_googles_token_is_asked_for_with_the_key_of_a_service_account(environment, tmp_path):
    asked, digest = [], hashlib.md5(b"hi")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append(urllib.parse.parse_qs(body)["grant_type"])
            self._answer(200, json.dumps({"access_token": "a-token", "expires_in": 3600}).encode())

        def do_GET(self):
            allowed = self.headers.get("Authorization") == "Bearer a-token"
            self._answer(206 if allowed else 403, b"hi" if allowed else b"<Code>AccessDenied</Code>")

        def _answer(self, status, body):
            self.send_response(status)
            for name, value in {
                "Content-Length": str(len(body)),
                "Content-Type": "application/json",
                "Content-Range": "bytes 0-1/2",
                "x-goog-generation": "17",
                "x-goog-hash": f"crc32c=AAAAAA==,md5={base64.b64encode(digest.digest()).decode()}",
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"type": "service_account", "client_email": "me@example.com", "token_uri": f"{url}/token"}
    account |= {"private_key": key.decode(), "project_id": "p", "private_key_id": "1"}
    (tmp_path / "key.json").write_text(json.dumps(account))
    environment({"STORAGE_EMULATOR_HOST": url, "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json")})
    (file,) = find_files(["gs://bucket/a"], "sources")
    assert find_files(["gs://bucket/a"], "sources") == [file]
    assert (file.head, file.version, file.md5) == (b"hi", "x-goog-generation 17", digest.hexdigest())
    assert asked == [["urn:ietf:params:oauth:grant-type:jwt-bearer"]]
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "url, package",
    [("https://example.com/a", "urllib3"), ("s3://b/a", "botocore.session"), ("gs://b/a", "google.auth")],
)
def test_a_package_that_is_not_there_is_named_with_the_extra_that_brings_it(environment, monkeypatch, url, package):
    monkeypatch.setitem(sys.modules, package, None)
    for cached in (stores_module._s3, stores_module._google):
        cached.cache_clear()
    with pytest.raises(ConfigError, match=rf"needs? the package {package.partition('.')[0]}(.|\n)*dovetail\[remote\]"):
        find_files([url], "sources")
