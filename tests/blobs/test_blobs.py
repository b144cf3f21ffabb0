# SPDX-License-Identifier: Apache-2.0
"""Blobs: whole or not at all, in memory or in files, read over HTTP by those who know the token."""

import http.client
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.blobs import BlobError, Client, Directory, Memory, Server, Shelf

TOKEN = "of this test"


@pytest.fixture(params=["memory", "directory"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    return Memory(limit=10_000_000) if request.param == "memory" else Directory(tmp_path / "blobs")


@pytest.fixture
def client(shelf: Shelf) -> Iterator[Client]:
    with Server(shelf, host="127.0.0.1", token=TOKEN) as server:
        yield Client(server.address, TOKEN)


def test_what_is_put_is_read_whole_and_in_parts_until_it_is_dropped(client: Client):
    data = bytes(range(256)) * 10_000
    client.put("a/1.data", [data[:1000], memoryview(data)[1000:]])
    client.put("a/2.data", [])
    assert client.sizes() == {"a/1.data": len(data), "a/2.data": 0}
    assert client.get("a/1.data") == data
    assert client.get("a/1.data", 255, 1_234_567) == data[255:1_234_567]
    assert client.get("a/2.data") == b""
    client.put("a/1.data", [b"other"])
    assert client.get("a/1.data") == b"other"
    client.drop(["a/1.data", "a/3.data"])
    assert client.sizes() == {"a/2.data": 0}
    with pytest.raises(BlobError, match=r"a/1\.data"):
        client.get("a/1.data")
    with pytest.raises(BlobError, match="has 0 bytes: there are none from 3 to 5"):
        client.get("a/2.data", 3, 5)


def test_without_the_token_nothing_is_told_and_nothing_changes(client: Client):
    client.put("a", [b"1"])
    stranger = Client(client.address, "another")
    for work in (lambda: stranger.sizes(), lambda: stranger.get("a"), lambda: stranger.put("a", [b"2"])):
        with pytest.raises(BlobError, match="the token is missing or wrong"):
            work()
    with pytest.raises(BlobError, match="token"):
        stranger.drop(["a"])
    assert client.get("a") == b"1"


@pytest.mark.parametrize("name", ["../a", "a/../../b", "/etc/passwd", "a//b", "a b", "", "a/.", "x.part"])
def test_a_name_leads_nowhere_else(shelf: Shelf, name: str):
    with pytest.raises(BlobError, match="cannot be the name of a blob"):
        shelf.put(name, 0, 0, lambda _: 0)


def test_a_blob_that_breaks_off_or_changes_on_its_way_is_not_kept_and_leaves_the_old_one(client: Client):
    client.put("a", [b"old"])
    host, _, port = client.address.rpartition(":")
    headers = {"Authorization": f"Bearer {TOKEN}", "Crc32": f"{zlib.crc32(b'another'):08x}"}
    changed = http.client.HTTPConnection(host, int(port), timeout=10)
    changed.request("PUT", "/blobs/a", b"anothes", headers)
    response = changed.getresponse()
    sent = f"a arrived with crc32 {zlib.crc32(b'anothes'):08x}, {zlib.crc32(b'another'):08x} was sent"
    assert (response.status, response.read().decode()) == (507, sent)
    broken = http.client.HTTPConnection(host, int(port), timeout=10)
    broken.putrequest("PUT", "/blobs/a")
    for item in {**headers, "Content-Length": "7"}.items():
        broken.putheader(*item)
    broken.endheaders(b"ano")
    broken.close()
    assert client.get("a") == b"old"
    assert client.sizes() == {"a": 3}


def test_memory_is_bounded_and_says_so():
    shelf = Memory(limit=3_000_000)
    with Server(shelf, host="127.0.0.1", token=TOKEN) as server:
        client = Client(server.address, TOKEN)
        client.put("a", [bytes(2_000_000)])
        with pytest.raises(BlobError, match=r"no room for 2\.0 MB: 2\.0 MB are held, of 3\.0 MB at most"):
            client.put("b", [bytes(2_000_000)])
        client.drop(["a"])
        client.put("b", [bytes(2_000_000)])
        assert client.sizes() == {"b": 2_000_000}


def test_many_at_once_do_not_mix(client: Client):
    contents = {f"k/{i}": bytes([i]) * 200_000 for i in range(8)}
    threads = [threading.Thread(target=client.put, args=(name, [data])) for name, data in contents.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: client.get(name) for name in contents} == contents


def test_a_host_that_is_gone_is_named():
    with Server(Memory(), host="127.0.0.1", token=TOKEN) as server:
        address = server.address
    with pytest.raises(BlobError, match=f"{address}: .*refused"):
        Client(address, TOKEN).sizes()


def test_blobs_do_not_import_jax():
    code = "import sys, dovetail.blobs; assert not {'jax', 'numpy'} & sys.modules.keys()"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
