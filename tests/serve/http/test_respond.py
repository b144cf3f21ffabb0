# SPDX-License-Identifier: Apache-2.0
"""Clients that go, that read slowly, that ask for too much at once, or too long; and engines that fail."""

import asyncio
import json
import socket
import threading
import time

import pytest

from dovetail.serve.http import Http, build_app
from support.http_server import ScriptedDevice, running

PATH = "/v1/completions"
LONG = {"prompt": "Hi", "max_tokens": 400, "temperature": 0}


@pytest.fixture(scope="module")
def slow():
    """A server that takes 20 s for 400 tokens, with room for two requests at once and two that wait."""
    device = ScriptedDevice(slots=2)
    device.seconds = 0.05
    with running(device, queue=2) as server:
        yield server


def sent(server, body) -> socket.socket:
    """A connection on which a request has been sent."""
    host, port = server.url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    client = socket.create_connection((host, int(port)), timeout=10)
    head = f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
    client.sendall(head.encode() + content)
    return client


def wait_for(condition) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_when_the_client_goes_the_work_ends_at_once(slow, stream, n):
    assert slow.idle()
    with sent(slow, LONG | {"stream": stream, "n": n}) as client:
        wait_for(lambda: slow.served.engine.stats().running == n)
        if stream:
            assert client.recv(100).startswith(b"HTTP/1.1 200 OK")
    assert slow.idle(1.0)


def test_a_client_that_goes_while_its_request_waits_leaves_no_trace(slow):
    with sent(slow, LONG), sent(slow, LONG):
        wait_for(lambda: slow.served.engine.stats().running == 2)
        with sent(slow, LONG):
            wait_for(lambda: slow.served.engine.stats().waiting == 1)
        wait_for(lambda: slow.served.engine.stats().waiting == 0)
    assert slow.idle(1.0)


def test_what_the_queue_has_no_room_for_is_told_to_come_again(slow):
    with sent(slow, LONG), sent(slow, LONG):
        wait_for(lambda: slow.served.engine.stats().running == 2)
        with sent(slow, LONG), sent(slow, LONG):
            wait_for(lambda: slow.served.engine.stats().waiting == 2)
            response = slow.post(PATH, LONG)
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert error["message"].startswith("The server has as many requests waiting as it takes. Try again in ")
    assert slow.idle(1.0)


def test_of_a_request_that_does_not_fit_nothing_is_left_behind(slow):
    status, error = slow.error(PATH, LONG | {"n": 8})
    assert (status, error["code"]) == (429, "rate_limit_exceeded")
    assert slow.idle(1.0)


def test_more_http_requests_than_the_limit_are_refused_before_they_are_read():
    device = ScriptedDevice()
    device.seconds = 0.05
    with running(device, http=Http(max_requests=1)) as server:
        with sent(server, LONG):
            wait_for(lambda: server.served.in_flight == 1)
            status, error = server.error(PATH, "nothing")
            message = "The server is answering 1 requests, which is its limit. Try again."
            assert (status, error["message"], error["code"]) == (429, message, "rate_limit_exceeded")
            assert server.client.get("/health").status_code == 200
        assert server.idle(1.0)


def test_a_request_that_takes_too_long_is_given_up():
    device = ScriptedDevice()
    device.seconds = 0.05
    with running(device, http=Http(seconds=0.3)) as server:
        message = "The request took more than 0.3 s, which is the limit of this server."
        status, error = server.error(PATH, LONG)
        assert (status, error["code"], error["message"]) == (504, "timeout", message)
        assert server.idle(1.0)
        *texts, last = server.events(PATH, LONG)
        assert texts
        assert last == {"error": {"message": message, "type": "server_error", "param": None, "code": "timeout"}}
        assert server.idle(1.0)


def test_a_device_that_fails_is_an_error_and_no_trace():
    device = ScriptedDevice()
    with running(device) as server:
        device.error = "out of memory"
        message = "The engine failed: the device has failed: RuntimeError: out of memory."
        status, error = server.error(PATH, LONG)
        assert (status, error["message"], error["type"]) == (500, message, "server_error")
        assert server.events(PATH, LONG)[-1]["error"]["message"] == message
        device.error = None
        assert server.completion()["choices"][0]["finish_reason"] == "length"
        device.error = "again"
        for _ in range(4):
            server.post(PATH, LONG)
        status, error = server.error(PATH, LONG)
        assert (status, error["code"]) == (503, "unavailable")
        assert server.client.get("/health").status_code == 503
        assert server.client.get("/health").json() == {"status": "failed"}


def test_what_nobody_foresaw_is_told_without_details(server, monkeypatch, caplog):
    monkeypatch.setattr(server.served.engine, "submit", lambda request: 1 / 0)
    status, error = server.error(PATH, LONG)
    assert (status, error["message"]) == (500, "The server failed to answer. Its log has more.")
    assert "ZeroDivisionError" in caplog.text


def test_while_it_drains_new_requests_are_refused_and_those_in_flight_finish(slow):
    answer = {}
    thread = threading.Thread(target=lambda: answer.update(slow.post(PATH, LONG | {"max_tokens": 12}).json()))
    thread.start()
    wait_for(lambda: slow.served.engine.stats().running == 1)
    slow.served.is_draining = True
    try:
        response = slow.post(PATH, LONG)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert response.json()["error"]["message"] == "The server is shutting down."
        assert slow.client.get("/health").json() == {"status": "draining"}
        assert slow.client.get("/metrics").status_code == 200
        thread.join(10)
        assert answer["usage"]["completion_tokens"] == 12
    finally:
        slow.served.is_draining = False


def asgi(app, body, send) -> None:
    """Runs an application on one request, of a client that stays, with what takes its answer."""
    scope = {"type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode(), "query_string": b""}
    scope |= {"headers": [(b"host", b"localhost")], "asgi": {"version": "3.0", "spec_version": "2.3"}}

    async def run() -> None:
        messages = [{"type": "http.request", "body": json.dumps(body).encode()}]

        async def receive():
            if messages:
                return messages.pop()
            await asyncio.Event().wait()

        await asyncio.wait_for(app(scope, receive, send), 10)

    asyncio.run(run())


def test_a_client_that_reads_nothing_is_given_up_and_its_work_ends():
    with running(http=Http(write_seconds=0.2)) as server:
        taken = []

        async def send(message):
            taken.append(message)
            if len(taken) == 3:
                await asyncio.Event().wait()

        begin = time.monotonic()
        asgi(build_app(server.served), LONG | {"stream": True}, send)
        assert time.monotonic() - begin < 5
        assert len(taken) == 3
        assert server.idle(1.0)


def test_what_a_slow_client_has_not_read_comes_together():
    with running() as server:
        taken = []

        async def send(message):
            taken.append(message.get("body", b""))
            await asyncio.sleep(0.02)

        asgi(build_app(server.served), LONG | {"stream": True}, send)
        events = [json.loads(part[6:]) for part in taken if part.startswith(b"data: {")]
        assert len(events) < 100
        whole = server.completion(**LONG)["choices"][0]["text"]
        assert "".join(event["choices"][0]["text"] for event in events) == whole
        assert taken[-2:] == [b"data: [DONE]\n\n", b""]
