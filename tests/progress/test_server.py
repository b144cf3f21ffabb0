# SPDX-License-Identifier: Apache-2.0
"""The status of a run over HTTP: what it tells, to whom, and that those who mean harm cannot do any."""

import contextlib
import json
import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dovetail.config import ConfigError
from dovetail.progress import STATUS, Account, Status, StatusServer, _server

TOKEN = "0123456789abcdef"


def found(**changes) -> dict:
    account = Account()
    account.add(
        {"event": "open", "life": "a", "wall": 0, "clock": 0, "boot": "", "supervised": 0, "events": 0, "gap": {}}
    )
    account.add({"life": "a", "wall": 9, "clock": 9, "step": 3, "kind": "step", "seconds": {"start": 3, "step": 6}})
    process = {"process": 0, "slot": "0", "heartbeat_seconds": 0.1, "quiet_seconds": 0.2, "step": 3}
    about = {"run": 'runs/"odd"\\name', "recipe": "tiny-lm", "phase": "step", "problem": "", "seconds_left": 1.5}
    counts = {"step": 3, "steps": 6, "loss": 2.5, "rate": {"tokens": 100.0}, "restarts": 1, "failures": [{}]}
    return {**about, **counts, "goodput": account.named(), "processes": [process], **changes}


async def nothing() -> dict[str, object]:
    return {}


@pytest.fixture
def served(tmp_path):
    """A server with a token, its answer to be, and what it was asked to do."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    state, done = found(), []

    async def snapshot():
        return state

    status = Status(token_file=str(tmp_path / "token"))
    actions = {"stop": lambda: done.append("stop")}
    with StatusServer(status, snapshot, actions=actions, directory=tmp_path).in_thread() as url:
        yield url, state, done


def asked(url: str, lines: str, *, body: str = "") -> tuple[int, str]:
    """Returns the code and the body of the answer to a request, whose lines are sent as they are."""
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60) as connection:
        connection.sendall((lines.replace("\n", "\r\n") + "\r\n\r\n" + body).encode("latin-1"))
        data = b""
        while received := connection.recv(1 << 16):
            data += received
    head, _, text = data.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]) if head else 0, text


def test_status_metrics_and_health_say_what_there_is_and_prometheus_can_read_it(served, tmp_path):
    url, state, _ = served
    assert json.loads((tmp_path / STATUS).read_text())["url"] == url
    assert json.loads(urllib.request.urlopen(f"{url}/status").read()) == state
    text = urllib.request.urlopen(f"{url}/metrics").read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    values = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    assert values["dovetail_run_info", 'runs/"odd"\\name', "tiny-lm"] == 1
    assert values["dovetail_time_seconds", "step"] == 6
    assert values["dovetail_goodput_ratio",] == pytest.approx(2 / 3)
    assert values["dovetail_units_per_second", "tokens"] == 100
    assert values["dovetail_process_step", "0"] == 3
    assert asked(url, "GET /healthz HTTP/1.1") == (200, "ok\n")
    state["problem"] = "process 1 hangs"
    assert asked(url, "GET /healthz HTTP/1.1") == (503, "process 1 hangs\n")
    state |= {"loss": None, "goodput": {}, "processes": []}  # As before the first step.
    assert list(text_string_to_metric_families(urllib.request.urlopen(f"{url}/metrics").read().decode()))
    assert asked(url, "HEAD /status HTTP/1.1") == (200, "")


def test_nothing_is_changed_without_the_token_and_nothing_can_be_without_one(served, tmp_path):
    url, _, done = served
    for header in ("", "\nAuthorization: Bearer x", f"\nAuthorization: Basic {TOKEN}"):
        assert asked(url, f"POST /stop HTTP/1.1{header}")[0] == 401
    assert asked(url, "GET /stop HTTP/1.1")[0] == 404
    assert asked(url, f"POST /status HTTP/1.1\nAuthorization: Bearer {TOKEN}")[0] == 404
    assert done == []
    assert asked(url, f"POST /stop HTTP/1.1\nAuthorization: Bearer {TOKEN}\nContent-Length: 2", body="{}")[0] == 202
    assert done == ["stop"]
    actions = {"stop": lambda: done.append("again")}
    with StatusServer(Status(), nothing, actions=actions, directory=tmp_path).in_thread() as other:
        assert asked(other, "POST /stop HTTP/1.1\nAuthorization: Bearer ") == (
            404,
            "Nothing is done without a token.\n",
        )
    assert done == ["stop"]


@pytest.mark.parametrize(
    "lines, code",
    [
        ("GET /status HTTP/1.1\nHost: evil.example:80", 403),
        ("GET /status HTTP/1.1\nHost: 10.0.0.1", 403),
        ("GET /status HTTP/1.1\nHost: localhost\nOrigin: http://evil.example", 403),
        ("GET /status HTTP/1.1\nHost: localhost\nHost: localhost", 400),
        ("GET /status HTTP/1.1\nHost: [::1", 403),
        ("GET /status HTTP/1.1\nno header", 400),
        ("GET /../token HTTP/1.1", 404),
        ("PUT /status HTTP/1.1", 405),
        ("nonsense", 400),
        ("GET /status HTTP/1.1\nContent-Length: 999999999999999999999", 413),
        ("GET /status HTTP/1.1\nTransfer-Encoding: chunked", 413),
        ("GET /status HTTP/1.1\nX: " + "x" * 20_000, 431),
    ],
)
def test_what_is_no_honest_request_is_refused(lines, code, served):
    assert asked(served[0], lines)[0] in (code, 0 if code == 431 else code)


def test_who_sends_slowly_is_cut_off_and_keeps_nobody_out(served, monkeypatch):
    url, _, _ = served
    monkeypatch.setattr(_server, "_PATIENCE", 0.5)
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    slow = [socket.create_connection(address, timeout=60) for _ in range(40)]
    for connection in slow:
        connection.sendall(b"GET /status HT")
    assert asked(url, "GET /healthz HTTP/1.1") == (200, "ok\n")
    for connection in slow:
        with connection, contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert asked(url, "GET /healthz HTTP/1.1") == (200, "ok\n")


def test_an_address_that_is_taken_is_said_and_the_run_goes_on(served, tmp_path, caplog):
    port = int(served[0].rpartition(":")[2])
    with StatusServer(Status(port=port), nothing, actions={}, directory=tmp_path).in_thread() as url:
        assert url == ""
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"status: not served at 127.0.0.1:{port}: ")
    assert said.endswith("The run goes on.")


def test_a_file_without_a_token_is_refused(tmp_path):
    file = tmp_path / "token"
    with pytest.raises(ConfigError, match=r"cannot be read: No such file or directory\.$"):
        Status(token_file=str(file)).token()
    file.write_text("short\n")
    with pytest.raises(ConfigError, match=r"has 5 characters, expected at least 16\.\n  Make one by"):
        Status(token_file=str(file)).token()
    with pytest.raises(ConfigError, match=r"^status\.port is 70000, expected 0"):
        Status(port=70000).token()
