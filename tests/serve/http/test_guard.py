# SPDX-License-Identifier: Apache-2.0
"""Who may ask, and how much: keys, sizes, and pages from elsewhere."""

import socket

import httpx
import pytest

from dovetail.config import ConfigError
from dovetail.serve.http import Http, open_socket
from dovetail.serve.http._guard import Keys, is_local
from support.http_server import running

BODY = {"prompt": "Hi", "max_tokens": 2, "temperature": 0}
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def locked():
    steps = iter([7, 8])

    def reload():
        step = next(steps)
        if step == 8:
            raise RuntimeError("the checkpoint is damaged")
        return step

    with running(keys=["first key", "second-key"], reload=reload) as server:
        yield server


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/nothing"])
def test_without_a_key_nothing_is_told(locked, path):
    response = locked.client.get(path)
    assert response.status_code == 401
    assert response.json()["error"] == {
        "message": "The API key is missing. Send it as Authorization: Bearer KEY.",
        "type": "authentication_error",
        "param": None,
        "code": "invalid_api_key",
    }


@pytest.mark.parametrize(
    "header", ["Bearer wrong", "Bearer", "first key", "Basic first key", "Bearer first", "Bearer é"]
)
def test_a_wrong_key_is_refused_before_the_body_is_read(locked, header):
    headers = {"authorization": header.encode()}
    response = locked.client.post(PATH, content=b"not even JSON", headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["message"] == (
        "The API key is not one of this server's. Send it as Authorization: Bearer KEY."
    )


@pytest.mark.parametrize("key", ["Bearer first key", "bearer second-key"])
def test_any_of_the_keys_opens(locked, key):
    assert locked.post(PATH, BODY, headers={"authorization": key}).status_code == 200
    assert locked.client.get("/v1/models", headers={"authorization": key}).status_code == 200


def test_health_and_the_page_need_no_key(locked):
    assert locked.client.get("/health").json() == {"status": "ok"}
    assert locked.client.get("/").status_code == 200


def test_with_a_key_any_name_and_page_may_ask(locked):
    headers = {"authorization": "Bearer second-key", "host": "models.example", "origin": "https://example.org"}
    assert locked.post(PATH, BODY, headers=headers).status_code == 200


def test_keys_are_compared_as_a_whole():
    keys = Keys(["abc"])
    assert keys.accepts("Bearer abc")
    assert not any(keys.accepts(f"Bearer {key}") for key in ("", "ab", "abcd", "ABC", "ab\udcff"))
    assert not Keys([])


def test_reload_needs_a_key_and_says_what_happened(locked, server):
    assert locked.client.post("/admin/reload").status_code == 401
    headers = {"authorization": "Bearer second-key"}
    assert locked.client.post("/admin/reload", headers=headers).json() == {"status": "ok", "step": 7}
    failed = locked.client.post("/admin/reload", headers=headers)
    assert (failed.status_code, failed.json()["error"]["message"]) == (
        500,
        "Nothing was reloaded, the model is as it was: the checkpoint is damaged",
    )
    refused = server.client.post("/admin/reload")
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        403,
        "Without an API key, a server is told to reload by the signal SIGHUP alone.",
    )


@pytest.mark.parametrize(
    "headers, message",
    [
        (
            {"host": "evil.example:8000"},
            "This server is for this machine alone, and has no name 'evil.example:8000'. Start it with an API key.",
        ),
        (
            {"origin": "https://evil.example"},
            "A page of 'https://evil.example' may not use this server. Start it with an API key.",
        ),
        ({"origin": "null"}, "A page of 'null' may not use this server. Start it with an API key."),
        ({"origin": "http://[broken"}, "A page of 'http://[broken' may not use this server. Start it with an API key."),
    ],
)
def test_without_keys_no_page_from_elsewhere_may_ask(server, headers, message):
    response = server.post(PATH, BODY, headers=headers)
    assert (response.status_code, response.json()["error"]["message"]) == (403, message)


def test_without_keys_its_own_page_may_ask(server):
    assert server.post(PATH, BODY, headers={"origin": server.url}).status_code == 200
    local = server.url.replace("127.0.0.1", "localhost").removeprefix("http://")
    assert server.post(PATH, BODY, headers={"host": local, "origin": f"http://{local}"}).status_code == 200


@pytest.mark.parametrize(
    "host, local",
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_which_addresses_are_of_this_machine_alone(host, local):
    assert is_local(host) == local


def test_another_address_needs_a_key():
    with pytest.raises(ConfigError) as e:
        open_socket("0.0.0.0", 0, has_keys=False)
    assert str(e.value) == (
        "--host 0.0.0.0 can be reached from other machines, so the server needs an API key.\n"
        "  Write one to a file, and name it: --api-key-file FILE; or set DOVETAIL_API_KEY."
    )
    open_socket("0.0.0.0", 0, has_keys=True).close()


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1, port {port}: Address already in use"):
            open_socket("127.0.0.1", port, has_keys=False)


@pytest.fixture(scope="module")
def small():
    with running(http=Http(max_bytes=2000, read_seconds=0.3)) as server:
        yield server


def test_a_body_that_is_too_large_is_refused_by_its_header_or_as_it_comes(small):
    message = "The body of the request has more than 2000 bytes."
    status, error = small.error(PATH, {"prompt": "x" * 3000})
    assert (status, error["message"], error["code"]) == (413, message, "request_too_large")
    response = small.client.post(PATH, content=(b"x" * 500 for _ in range(6)))
    assert (response.status_code, response.json()["error"]["message"]) == (413, message)
    assert small.completion("x" * 400)["usage"]["prompt_tokens"] == 400


def test_a_body_that_does_not_come_is_given_up(small):
    host, port = small.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as client:
        client.sendall(f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 408")


def test_unknown_addresses_and_methods_are_errors_of_the_same_form(server):
    found = server.client.get("/v1/nothing")
    assert (found.status_code, found.json()["error"]["message"]) == (404, "There is no GET /v1/nothing.")
    found = server.client.get(PATH)
    assert (found.status_code, found.json()["error"]["code"]) == (405, "unknown_url")
    assert found.json()["error"]["message"] == f"GET {PATH} is not possible: the address takes another method."
    found = server.post("/v1/embeddings", {"input": "x"})
    assert (found.status_code, found.json()["error"]["message"]) == (
        404,
        "The model 'scripted' is not served for embeddings, which takes serving.embed=mean, or last.",
    )


def test_half_a_request_line_harms_nobody(server):
    host, port = server.url.removeprefix("http://").split(":")
    for garbage in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"POST " + b"x" * 100_000):
        with socket.create_connection((host, int(port)), timeout=5) as client:
            client.sendall(garbage)
    assert httpx.get(f"{server.url}/health").status_code == 200
