# SPDX-License-Identifier: Apache-2.0
"""The server: who is answered, with which headers, and that nothing outside of the directory is ever given out."""

import json
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dovetail.board import Board, DirectoryRuns
from dovetail.config import ConfigError
from support.boards import ask, served, write_metrics, write_run

TOKEN = "0123456789abcdef0123"


def test_every_answer_has_the_headers_that_keep_a_browser_safe(board: Board) -> None:
    for target in ("/", "/api/runs", "/api/nothing", "/static/nothing.js", "/export?run=gone"):
        headers = ask(board, target).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert not any(name.startswith("access-control") for name in headers)
        assert "Python" not in headers["server"]
    picture = ask(board, "/api/picture?run=a&file=pictures/p/40.png").headers
    assert picture["content-security-policy"] == "default-src 'none'; sandbox; frame-ancestors 'none'"


def test_the_page_and_its_files_are_given_out_and_no_others(board: Board) -> None:
    page = ask(board, "/")
    assert page.body == ask(board, "/static/index.html").body
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name in (
        "../_api.py",
        "..%2f_api.py",
        "",
        ".",
        "..",
        "%2e%2e/_api.py",
        "/etc/passwd",
        "a\\b.js",
        "index.html/",
        "x.py",
    ):
        assert ask(board, f"/static/{name}").status == 404


def test_head_has_the_headers_of_get_and_no_body(board: Board) -> None:
    head, get = ask(board, "/api/run?run=a", "HEAD"), ask(board, "/api/run?run=a")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(get.body))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "FOO"])
def test_no_other_method_is_answered(board: Board, method: str) -> None:
    found = ask(board, "/api/runs", method)
    assert (found.status, found.json["error"]) == (405, "Only GET and HEAD are answered here.")
    assert found.headers["allow"] == "GET, HEAD"
    assert "default-src 'none'" in found.headers["content-security-policy"]


HOSTILE = [
    "../secret.txt",
    "..",
    ".",
    "/",
    "",
    "../runs/a",
    "a/../a",
    "a/..",
    "./a",
    "a/",
    "/a",
    "a//",
    "a\0",
    "a\0/../../secret.txt",
    "link",
    "link/runs/a",
    "%2e%2e",
    "%2e%2e/secret.txt",
    "..\\secret.txt",
    "a/checkpoints",
    "a/pictures",
    "/etc",
    "data:text/html,x",
    "~",
    "a" * 3000,
    "\u202ea",
    "a\n",
    "*",
    "${HOME}",
]


@pytest.mark.parametrize("run", HOSTILE, ids=range(len(HOSTILE)))
def test_only_a_run_that_was_found_is_answered_for(board: Board, run: str) -> None:
    asked = [f"/api/{what}?run={quote(run, safe='')}" for what in ("run", "goodput", "memory", "log", "diff")]
    asked += [f"/api/curves?name=loss&run={quote(run, safe='')}", f"/export?run={quote(run, safe='')}"]
    asked += [f"/api/picture?file=pictures/p/40.png&run={quote(run, safe='')}"]
    for target in asked:
        found = ask(board, target)
        assert found.status == 404, target
        assert b"SECRET" not in found.body


FILES = [
    "../secret.txt",
    "../../secret.txt",
    "pictures/../../../secret.txt",
    "/etc/passwd",
    "pictures/p/../../metrics.jsonl",
    "pictures/%2e%2e/x",
    "pictures/p/40.png\0.svg",
    "pictures",
    "pictures/",
    "pictures//p/40.png",
    "./pictures/p/40.png",
]


@pytest.mark.parametrize("file", FILES, ids=range(len(FILES)))
def test_only_a_picture_below_its_run_is_given_out(board: Board, file: str) -> None:
    found = ask(board, f"/api/picture?run=a&file={quote(file, safe='')}")
    assert found.status in (400, 404)
    assert b"SECRET" not in found.body


ADDRESSES = [
    "/../secret.txt",
    "/%2e%2e/secret.txt",
    "/static/../../secret.txt",
    "/api/../secret.txt",
    "/link/secret.txt",
    "http://evil.example/api/runs",
    "*",
    "/secret.txt%00",
]


@pytest.mark.parametrize("target", ADDRESSES, ids=range(len(ADDRESSES)))
def test_addresses_are_no_paths(board: Board, target: str) -> None:
    assert ask(board, target).status in (403, 404)


def test_without_a_token_only_names_of_this_machine_are_answered(board: Board) -> None:
    for host in ("127.0.0.1", f"localhost:{board.port}", "[::1]:9", "127.9.9.9", "x.localhost:80"):
        assert ask(board, "/api/runs", headers={"Host": host}).status == 200
    for host in (
        "evil.example",
        f"evil.example:{board.port}",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "",
        "192.168.0.1",
        "[::",
    ):
        found = ask(board, "/api/runs", headers={"Host": host})
        assert (found.status, "this machine alone" in found.json["error"]) == (403, True), host


def test_a_page_of_another_address_is_not_answered(board: Board) -> None:
    host = f"127.0.0.1:{board.port}"
    own = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    assert ask(board, "/api/runs", headers=own).status == 200
    assert ask(board, "/api/runs", headers={**own, "Origin": "http://evil.example"}).status == 403
    for origin in ("null", "", "http://[", f"http://{host}.evil.example", f"http://{host}@evil.example"):
        assert ask(board, "/api/runs", headers={**own, "Origin": origin}).status == 403
    assert ask(board, "/api/runs", headers={**own, "Sec-Fetch-Site": "cross-site"}).status == 403
    assert ask(board, "/", headers={"Host": host, "Sec-Fetch-Site": "cross-site"}).status == 200  # A link to the page.


def test_what_is_too_long_or_has_a_body_is_refused(board: Board) -> None:
    assert ask(board, "/api/run?run=" + "a" * 40_000).status == 414
    assert ask(board, "/api/runs", headers={"Host": "localhost", "Content-Length": "5"}).status == 413
    assert ask(board, "/api/runs", headers={"Host": "localhost", "Transfer-Encoding": "chunked"}).status == 413


@pytest.mark.parametrize(
    "data", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00", b"A" * 70_000]
)
def test_what_is_no_request_ends_its_connection_and_nothing_else(board: Board, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", board.port), timeout=30) as connection:
        connection.sendall(data + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass
    assert ask(board, "/api/runs").status == 200


def test_an_error_in_one_answer_is_told_and_the_others_go_on(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(DirectoryRuns, "goodput", broken)
    found = ask(board, "/api/goodput?run=a")
    assert (found.status, "ZeroDivisionError" in found.json["error"], b"inside" in found.body) == (500, True, False)
    assert ask(board, "/api/runs").status == 200


@pytest.fixture(scope="module")
def guarded(place: Path) -> Iterator[Board]:
    with served(place, token=TOKEN) as found:
        yield found


def test_with_a_token_nothing_is_answered_without_it(guarded: Board) -> None:
    for target in (
        "/",
        "/api/runs",
        "/static/index.html",
        "/export?run=a",
        "/api/changes",
        "/?token=",
        "/?token=wrong",
    ):
        assert ask(guarded, target).status == 401
    for sent in ("Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer ", "Bearer \udcff"[:7]):
        assert ask(guarded, "/api/runs", headers={"Authorization": sent}).status == 401
    assert ask(guarded, "/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
    assert ask(guarded, "/api/runs", headers={"Authorization": f"bearer {TOKEN}", "Host": "any.example"}).status == 200


def test_the_address_with_the_token_gives_a_cookie_that_does_not_hold_it(guarded: Board) -> None:
    found = ask(guarded, f"/?token={TOKEN}")
    cookie = found.headers["set-cookie"]
    assert found.status == 200
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert TOKEN not in cookie
    assert TOKEN.encode() not in found.body
    pair = cookie.partition(";")[0]
    assert ask(guarded, "/api/runs", headers={"Cookie": f"other=1; {pair}"}).status == 200
    assert ask(guarded, "/api/runs", headers={"Cookie": f"{pair}x"}).status == 401
    assert ask(guarded, "/api/runs", headers={"Cookie": pair.partition("=")[2]}).status == 401


def test_other_machines_are_only_listened_to_with_a_token_that_is_one(tmp_path: Path) -> None:
    runs = DirectoryRuns(tmp_path)
    with pytest.raises(ConfigError, match=r"--host 0\.0\.0\.0 can be reached from other machines, so it needs a token"):
        Board(runs, host="0.0.0.0", port=0)
    for token in ("short", "has a space in it all", "ünïcödeünïcödeünïcöde"):
        with pytest.raises(ConfigError, match=r"the token has \d+ characters, expected at least 16 letters and digits"):
            Board(runs, port=0, token=token)


def test_a_port_that_is_taken_is_an_error_that_names_the_next_free_one(board: Board, tmp_path: Path) -> None:
    runs = DirectoryRuns(tmp_path)
    with pytest.raises(
        ConfigError, match=rf"port {board.port} of 127\.0\.0\.1 is taken\.\n  Use --port (\d+)"
    ) as raised:
        Board(runs, port=board.port)
    free = int(str(raised.value).partition("--port ")[2].partition(",")[0])
    assert free == 0 or free > board.port
    with pytest.raises(ConfigError, match=r"--port is 70000, expected 0 \(any that is free\) to 65535"):
        Board(runs, port=70_000)


def changes_of(board: Board, found: "queue.Queue[str]") -> threading.Thread:
    """Reads lines of the stream of changes into a queue."""
    connection = socket.create_connection(("127.0.0.1", board.port), timeout=30)
    connection.sendall(b"GET /api/changes HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def read() -> None:
        with connection, connection.makefile("r") as lines:
            for line in lines:
                found.put(line.strip())
                if line.startswith("data:"):
                    return

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def test_changes_are_told_while_they_are_made(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    write_run(tmp_path / "other", 3)
    with served(tmp_path) as board:
        looked = threading.Event()
        stamps = board._runs.stamps

        def seen() -> dict[str, object]:
            found = stamps()
            looked.set()
            return found

        board._server.changes._stamps, board._server.changes._every = seen, 0.01
        lines: queue.Queue[str] = queue.Queue()
        thread = changes_of(board, lines)
        assert looked.wait(30)
        write_metrics(tmp_path / "run", [{"step": 4, "loss": 1.0}])
        thread.join(30)
        found = list(lines.queue)
        assert "Content-Type: text/event-stream; charset=utf-8" in found
        assert found[-2:] == ["event: changed", 'data: {"runs":["run"]}']


def test_pages_that_wait_for_changes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as board:
        board._server.listeners = threading.Semaphore(0)
        found = ask(board, "/api/changes")
        assert (found.status, "wait for changes already" in found.json["error"]) == (503, True)


def test_connections_are_bounded(tmp_path: Path) -> None:
    with served(tmp_path) as board:
        board._server._slots = threading.Semaphore(1)
        with socket.create_connection(("127.0.0.1", board.port), timeout=30) as one:
            one.sendall(b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert one.recv(12) == b"HTTP/1.1 200"  # And is kept open.
            with socket.create_connection(("127.0.0.1", board.port), timeout=30) as two:
                assert two.recv(12) == b"HTTP/1.1 503"


def test_a_hostile_name_is_data_and_nothing_else(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>&\"'</script>"
    write_run(tmp_path / name.replace("/", "%"), 3)
    with served(tmp_path) as board:
        found = ask(board, "/api/runs")
        assert found.headers["content-type"] == "application/json"
        assert json.loads(found.body)["runs"][0]["id"] == name.replace("/", "%")
        assert ask(board, f"/api/run?run={quote(name.replace('/', '%'), safe='')}").status == 200
