# SPDX-License-Identifier: Apache-2.0
"""Puts a server under stress, as clients that behave badly do, and checks what the others get.

`python tools/stress.py MODEL [--requests 5000] [--seed N]` starts `dovetail serve MODEL` with an API key, and sends it
requests of many kinds at once: good ones, streamed and not; clients that leave in the middle; bodies that are no JSON,
too large, or of the wrong type; prompts that are too long; wrong keys; readers that hardly read. Half-way the server is
killed, and started again. At the end: each good answer equals the one that the same prompt got from an idle server, the
server is alive and has no request and no page left, and its memory has not grown.

Well-behaved clients are always twelve, each of which sends its next request when it has the answer to the last; for
each answer that they get, one of twelve bad clients sends something. How long good requests take is compared on the
same ones, sent in the same way without bad clients, before and after; it must be less than twice as long.
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


async def flood(
    port: int, numbers: Sequence[int], known: dict[Any, Any], tally: Tally, rng: random.Random, *, bad: bool = True
) -> None:
    """Has twelve clients send good requests, which are checked against what is known; and as many send bad ones."""
    waiting, turns = iter(numbers), asyncio.Semaphore(_CLIENTS)

    async def run_good() -> None:
        for number in waiting:
            kind, which = GOOD[number % len(GOOD)], number // len(GOOD) % len(KNOWN)
            answer = await _tried(port, kind, which, rng, tally)
            turns.release()
            if answer is not None and answer.status == 200:
                tally.seconds.append(answer.seconds)
                if text_of(answer) != known[kind, which]:
                    tally.wrong.append(f"{kind} {which}: another answer")
            elif answer is not None and answer.status not in (0, 429, 503):
                tally.wrong.append(f"{kind} {which}: {answer.status} {answer.body[:200]!r}")

    async def run_bad() -> None:
        while True:
            await turns.acquire()
            kind = rng.choice(BAD)
            answer = await _tried(port, kind, rng.randrange(len(KNOWN)), rng, tally)
            if answer is not None and answer.status >= 500 and answer.status != 503:
                tally.wrong.append(f"{kind}: {answer.status}")

    others = [asyncio.create_task(run_bad()) for _ in range(_CLIENTS if bad else 0)]
    await asyncio.gather(*(run_good() for _ in range(_CLIENTS)))
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _tried(port: int, kind: str, number: int, rng: random.Random, tally: Tally) -> Answer | None:
    """Sends a request, and returns the answer; None: there is none."""
    try:
        answer = await one(port, kind, number, rng)
    except (OSError, TimeoutError) as e:
        tally.lost += 1
        tally.statuses[kind, -1] += 1
        if kind in GOOD and not isinstance(e, ConnectionError):
            tally.wrong.append(f"{kind} {number}: {type(e).__name__}")
        return None
    tally.statuses[kind, answer.status] += 1
    return answer


_CLIENTS = 12  # That behave well, and as many that do not.
KNOWN = range(40)  # Good requests that there are, of each kind.


async def quiet(port: int) -> dict[Any, Any]:
    """Returns the answers of a server that does nothing else."""
    return {
        (kind, number): text_of(await one(port, kind, number, random.Random(0))) for kind in GOOD for number in KNOWN
    }


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
    rng, tally, alone = random.Random(args.seed), Tally(), Tally()
    half, compared = args.requests // 4, range(min(800, args.requests // 4))  # Good ones: half of all.
    with tempfile.TemporaryDirectory() as place:
        server = Server(args.model, Path(place))
        server.start()
        try:
            known = asyncio.run(quiet(server.port))
            asyncio.run(flood(server.port, range(100), known, Tally(), rng, bad=False))  # All has run once.
            asyncio.run(flood(server.port, compared, known, alone, rng, bad=False))
            asyncio.run(flood(server.port, compared, known, tally, rng))
            beside, before = list(tally.seconds), server.memory()
            asyncio.run(flood(server.port, compared, known, alone, rng, bad=False))
            asyncio.run(flood(server.port, range(len(compared), half), known, tally, rng))
            grown, left, traces = server.memory() - before, asyncio.run(idle(server.port)), server.traces()
            killed = asyncio.run(_killed(server, known, rng))
            server.start()
            asyncio.run(flood(server.port, range(half, 2 * half), known, tally, rng))
            left2, traces = asyncio.run(idle(server.port)), traces + server.traces()
            server.process.send_signal(signal.SIGTERM)
            ended = server.process.wait(60)
        finally:
            if server.process.poll() is None:
                server.process.kill()
    for (kind, status), count in sorted(tally.statuses.items()):
        print(f"{kind:16} {status:4} {count:6}")
    wrong = tally.wrong + alone.wrong
    print(f"good answers {len(tally.seconds)}, other than those of an idle server or refused: {len(wrong)}")
    print("\n".join(wrong[:10]))
    ratios = [_shown(name, beside, alone.seconds, at) for name, at in (("median", 50), ("95 of 100 within", 95))]
    print(f"memory grew by {grown / 1e6:.0f} MB; left when idle: {left}, after the restart: {left2}; traces: {traces}")
    print(f"killed with {killed} requests under way; ended by SIGTERM with code {ended}")
    failed = bool(wrong) or traces or ended or any([*left.values(), *left2.values()]) or grown > 100e6
    return 1 if failed or max(ratios) > 2 else 0


def _shown(name: str, beside: Sequence[float], alone: Sequence[float], at: int) -> float:
    """Prints how long the same good requests took beside bad ones and alone; returns their ratio."""
    first, second = (statistics.quantiles(each, n=100)[at - 1] for each in (beside, alone))
    print(f"{name}, seconds of the same {len(beside)} good requests: {first:.3f} beside bad clients, {second:.3f} "
          f"without, {first / second:.2f} times")  # fmt: skip
    return first / second


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
