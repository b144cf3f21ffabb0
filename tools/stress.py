# SPDX-License-Identifier: Apache-2.0
"""Puts a server under stress, as clients that behave badly do, and checks what the others get.

`python tools/stress.py MODEL [--requests 5000] [--seed N]` starts `dovetail serve MODEL` with an API key, and sends it
requests of many kinds at once: good ones, streamed and not; clients that leave in the middle; bodies that are no JSON,
too large, or of the wrong type; prompts that are too long; wrong keys; readers that hardly read. Half-way the server is
killed, and started again. At the end: each good answer equals the one that the same prompt got from an idle server, the
server is alive and has no request and no page left, its memory has not grown, and how long good requests took beside
a run of good ones alone.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

KEY = "stress-key"
GOOD = ("plain", "streamed", "chat-like", "drawn")
BAD = (
    "leaves",
    "leaves stream",
    "no json",
    "wrong types",
    "too long",
    "too large",
    "wrong key",
    "slow",
    "half a request",
)


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes
    seconds: float


class Server:
    """`dovetail serve` in a process of its own."""

    def __init__(self, model: str, place: Path) -> None:
        self._command = [
            str(Path(sys.executable).with_name("dovetail")), "serve", model, "--port", "0",
            "--api-key-file", str(place / "key"), "serving.slots=8", "serving.max_length=256", "engine.queue=64",
            "http.max_bytes=200000", "http.write_seconds=2", "http.read_seconds=5",
        ]  # fmt: skip
        (place / "key").write_text(KEY, encoding="utf-8")
        self._log = place / "log"
        self.process: Any = None
        self.port = 0

    def start(self) -> None:
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            lines = [line for line in self._log.read_text(encoding="utf-8").splitlines() if line.startswith("Serving ")]
            if lines:
                self.port = int(lines[0].split("http://127.0.0.1:")[1].split()[0].strip("/()"))
                return
            if self.process.poll() is not None:
                raise SystemExit(self._log.read_text(encoding="utf-8"))
            time.sleep(0.1)
        raise SystemExit("the server did not start in 300 s")

    def memory(self) -> int:
        """Returns the bytes that the process has in memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

    def traces(self) -> int:
        """Returns how often the log has a trace."""
        return self._log.read_text(encoding="utf-8", errors="replace").count("Traceback")


def request(method: str, path: str, body: bytes, key: str = KEY, length: int | None = None) -> bytes:
    """Returns an HTTP request as it goes over the wire."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {length or len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def send(port: int, data: bytes, *, leave_after: float | None = None, slow: bool = False) -> Answer:
    """Sends a request and reads the answer; or leaves, or reads slowly."""
    begin = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    try:
        writer.write(data)
        await writer.drain()
        if leave_after is not None:
            await asyncio.sleep(leave_after)
            writer.transport.abort()
            return Answer(0, b"", 0.0)
        if slow:
            await asyncio.sleep(3)
        raw = await asyncio.wait_for(reader.read(), 120)
    finally:
        writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    status = int(head.split()[1]) if head else 0
    return Answer(status, body, time.monotonic() - begin)


def good(kind: str, number: int) -> bytes:
    """Returns the body of a request whose answer depends on its number alone."""
    words = random.Random(number)
    prompt = "".join(words.choice("abcdefgh ") for _ in range(words.randint(3, 120)))
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": words.randint(4, 40), "temperature": 0, "ignore_eos": True}
    if kind == "drawn":
        body |= {"temperature": 1.0, "seed": number, "top_p": 0.9}
    if kind == "chat-like":
        body |= {"n": 2, "temperature": 0.8, "seed": number}
    if kind == "streamed":
        body["stream"] = True
    return json.dumps(body).encode()


def text_of(answer: Answer) -> Any:
    """Returns the texts of an answer, by choice; streamed ones put together."""
    texts: dict[int, str] = {}
    if answer.body.lstrip().startswith(b"{"):
        return {each["index"]: each["text"] for each in json.loads(answer.body)["choices"]}
    for line in answer.body.splitlines():
        if line.startswith(b"data: {"):
            for each in json.loads(line[6:]).get("choices", []):
                texts[each["index"]] = texts.get(each["index"], "") + each["text"]
    return texts


def unchunked(answer: Answer) -> Answer:
    """Returns an answer whose body is not in HTTP chunks any more."""
    body, rest = b"", answer.body
    while rest[:1].isalnum() and b"\r\n" in rest[:12]:
        size, _, rest = rest.partition(b"\r\n")
        count = int(size, 16)
        body, rest = body + rest[:count], rest[count + 2 :]
        if not count:
            break
    return answer._replace(body=body) if body else answer


async def one(port: int, kind: str, number: int, rng: random.Random) -> Answer:
    """Sends one request of a kind."""
    body = good(kind if kind in GOOD else "plain", number)
    if kind in GOOD:
        return unchunked(await send(port, request("POST", "/v1/completions", body)))
    if kind == "leaves stream":
        body = good("streamed", number)
    if kind == "no json":
        body = rng.choice([b"{", b"[1, 2", b"\xff\xfe", b"null", b'"x"', b"{]" * 40])
    if kind == "wrong types":
        field = rng.choice(["prompt", "max_tokens", "temperature", "n", "stop", "logprobs", "stream", "logit_bias"])
        body = json.dumps(
            {"prompt": "x", field: rng.choice([{}, [[]], -5, "x" * 50, 1e300, True, None, [None]])}
        ).encode()
    if kind == "too long":
        body = json.dumps({"prompt": "a" * rng.randint(300, 5000), "max_tokens": 5}).encode()
    if kind == "too large":
        body = json.dumps({"prompt": "a" * 300_000}).encode()
    key = "wrong" if kind == "wrong key" else KEY
    length = len(body) + 500 if kind == "half a request" else None
    data = request("POST", "/v1/completions", body, key, length)
    leaves = rng.uniform(0, 0.3) if kind in ("leaves", "leaves stream", "half a request") else None
    return await send(port, data, leave_after=leaves, slow=kind == "slow")


class Tally:
    """What was seen."""

    def __init__(self) -> None:
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.wrong: list[str] = []
        self.seconds: list[float] = []
        self.lost = 0


async def flood(port: int, numbers: Sequence[int], known: dict[Any, Any], tally: Tally, rng: random.Random) -> None:
    """Sends requests, some at once, and checks the good ones against what is known."""
    gate = asyncio.Semaphore(24)

    async def run(number: int) -> None:
        kind = rng.choice(GOOD) if rng.random() < 0.5 else rng.choice(BAD)
        async with gate:
            try:
                answer = await one(port, kind, number % len(KNOWN), rng)
            except (OSError, TimeoutError) as e:
                tally.lost += 1
                tally.statuses[kind, -1] += 1
                if kind in GOOD and not isinstance(e, ConnectionError):
                    tally.wrong.append(f"{kind} {number}: {type(e).__name__}")
                return
        tally.statuses[kind, answer.status] += 1
        if kind in GOOD and answer.status == 200:
            tally.seconds.append(answer.seconds)
            if text_of(answer) != known[kind, number % len(KNOWN)]:
                tally.wrong.append(f"{kind} {number}: another answer")
        elif kind in GOOD and answer.status not in (0, 429, 503):
            tally.wrong.append(f"{kind} {number}: {answer.status} {answer.body[:200]!r}")
        elif answer.status >= 500 and answer.status != 503:
            tally.wrong.append(f"{kind} {number}: {answer.status}")

    await asyncio.gather(*(run(number) for number in numbers))


KNOWN = range(40)  # Good requests that there are, of each kind.


async def quiet(port: int) -> dict[Any, Any]:
    """Returns the answers of a server that does nothing else."""
    return {
        (kind, number): text_of(await one(port, kind, number, random.Random(0))) for kind in GOOD for number in KNOWN
    }


async def good_only(port: int, count: int) -> list[float]:
    gate = asyncio.Semaphore(12)

    async def run(number: int) -> float:
        async with gate:
            return (await one(port, GOOD[number % len(GOOD)], number % len(KNOWN), random.Random(0))).seconds

    return list(await asyncio.gather(*(run(number) for number in range(count))))


async def idle(port: int) -> dict[str, float]:
    """Waits until nothing is answered any more, and returns what the server says of itself."""
    wanted = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    found: dict[str, float] = {}
    for _ in range(100):
        text = (await send(port, request("GET", "/metrics", b""))).body.decode()
        lines = [line.split() for line in text.splitlines() if line.startswith(wanted)]
        found = {line[0].partition("{")[0]: float(line[-1]) for line in lines}
        if not any(found[name] for name in wanted[:2]):
            return found
        await asyncio.sleep(0.2)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="hf:DIRECTORY or a run; a small one")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    args = parser.parse_args(argv)
    print(f"seed {args.seed}", flush=True)
    rng, tally = random.Random(args.seed), Tally()
    with tempfile.TemporaryDirectory() as place:
        server = Server(args.model, Path(place))
        server.start()
        try:
            known = asyncio.run(quiet(server.port))
            alone = asyncio.run(good_only(server.port, 400))
            half = args.requests // 2
            asyncio.run(flood(server.port, range(half // 4), known, tally, rng))
            before = server.memory()
            asyncio.run(flood(server.port, range(half // 4, half), known, tally, rng))
            grown, left, traces = server.memory() - before, asyncio.run(idle(server.port)), server.traces()
            killed = asyncio.run(_killed(server, known, rng))
            server.start()
            asyncio.run(flood(server.port, range(half, args.requests), known, tally, rng))
            left2, traces = asyncio.run(idle(server.port)), traces + server.traces()
            server.process.send_signal(signal.SIGTERM)
            ended = server.process.wait(60)
        finally:
            if server.process.poll() is None:
                server.process.kill()
    for (kind, status), count in sorted(tally.statuses.items()):
        print(f"{kind:16} {status:4} {count:6}")
    ratio = statistics.median(tally.seconds) / statistics.median(alone)
    print(f"good answers {len(tally.seconds)}, other than those of an idle server or refused: {len(tally.wrong)}")
    print("\n".join(tally.wrong[:10]))
    print(f"median seconds of good requests: {statistics.median(tally.seconds):.3f}, with no bad ones beside: "
          f"{statistics.median(alone):.3f}, {ratio:.2f} times")  # fmt: skip
    print(f"memory grew by {grown / 1e6:.0f} MB; left when idle: {left}, after the restart: {left2}; traces: {traces}")
    print(f"killed with {killed} requests under way; ended by SIGTERM with code {ended}")
    bad = bool(tally.wrong) or traces or ended or any([*left.values(), *left2.values()]) or grown > 100e6
    return 1 if bad else 0


async def _killed(server: Server, known: dict[Any, Any], rng: random.Random) -> int:
    """Kills the server while requests are under way, whose clients must all get an end."""
    tally = Tally()
    running = asyncio.create_task(flood(server.port, range(400), known, tally, rng))
    await asyncio.sleep(0.3)
    os.kill(server.process.pid, signal.SIGKILL)
    await asyncio.wait_for(running, 60)
    server.process.wait()
    return tally.lost


if __name__ == "__main__":
    sys.exit(main())
