# SPDX-License-Identifier: Apache-2.0
"""A server as a program: signals reload it, and end it when all is answered, or at once."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

TESTS = Path(__file__).resolve().parents[2]
PROGRAM = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from dovetail.data import ByteTokenizer
from dovetail.serve import Engine
from dovetail.serve.http import Http, Served, address_of, open_socket, serve
from support.http_server import ScriptedDevice

def reload():
    engine.swap("new")
    print("swapped", flush=True)
    return 5

device = ScriptedDevice()
device.seconds = 0.05
with open_socket("127.0.0.1", 0, has_keys=False) as opened, Engine.Config().build(device=device) as engine:
    served = Served(engine, ByteTokenizer.Config().build(), name="x", reload=reload, http=Http(drain_seconds=20))
    serve(served, opened, ready=lambda: print(address_of(opened), flush=True))
print("ended", flush=True)
"""
BODY = {"prompt": "Hi", "max_tokens": 20, "temperature": 0}


@contextlib.contextmanager
def program() -> Iterator[tuple[Any, str]]:
    """A server that runs as a program, and its address."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=pipe, stderr=pipe, text=True) as process:
        try:
            output: Any = process.stdout
            yield process, output.readline().strip()
        finally:
            process.kill()


def asked(url: str, body, into: list) -> threading.Thread:
    """Asks in a thread, and waits until the engine is at it."""

    def ask() -> None:
        with contextlib.suppress(httpx.HTTPError):
            into.append(httpx.post(f"{url}/v1/completions", json=body, timeout=30))

    thread = threading.Thread(target=ask)
    thread.start()
    while 'num_requests_running{model_name="x"} 1.0' not in httpx.get(f"{url}/metrics").text:
        time.sleep(0.01)
    return thread


def test_after_a_signal_what_is_in_flight_is_finished_and_nothing_new_is_begun():
    with program() as (process, url):
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "swapped\n"
        with httpx.Client() as kept:
            assert kept.get(f"{url}/health").status_code == 200
            answers = []
            thread = asked(url, BODY, answers)
            process.send_signal(signal.SIGTERM)
            while httpx.get(f"{url}/health").status_code == 200:
                time.sleep(0.01)
            refused = kept.post(f"{url}/v1/completions", json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            thread.join(30)
        assert process.wait(10) == 0
        assert answers[0].json()["usage"]["completion_tokens"] == 20
        assert process.stdout.read() == "ended\n"
        said = ["Serving the parameters of step 5.", "Finishing 1 requests, and taking no new ones."]
        assert process.stderr.read().splitlines() == said


def test_a_second_signal_ends_it_at_once():
    with program() as (process, url):
        thread = asked(url, BODY | {"max_tokens": 400}, [])
        process.send_signal(signal.SIGINT)
        while httpx.get(f"{url}/health").status_code == 200:
            time.sleep(0.01)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert time.monotonic() - begin < 5
        thread.join(10)
