# SPDX-License-Identifier: Apache-2.0
"""`serve`: a run behind OpenAI's interface, from the command to the signal that ends it; and what it refuses."""

import os
import re
import signal
import threading
import time
import weakref

import httpx
import jax
import pytest

from dovetail import serve
from dovetail.cli import main, parsed
from dovetail.config import ConfigError
from support.http_server import ScriptedDevice

ADDRESS = re.compile(r"Serving (\S+) at (http://127\.0\.0\.1:\d+) \(OpenAI's interface: \S+/v1\)\n")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("runs") / "mine")
    assert main(["train", "gpt2-tiny", "steps=1", "input.batch_size=2", "evaluators={}", f"directory={directory}"]) == 0
    return directory


def test_the_command_has_these_options_and_no_other():
    args = vars(parsed(["serve", "runs/mine", "http.name=x"]))
    names = {"command", "run_directory", "overrides", "code", "host", "port", "api_key_file", "mesh", "on", "run"}
    assert args.keys() == names
    assert (args["host"], args["port"]) == ("127.0.0.1", 8000)


def test_a_run_is_served_from_its_address_until_a_signal(run, monkeypatch, capfd, tmp_path):
    device, seen = ScriptedDevice(vocab_size=4096), {}

    def opened(trained, serving, engine):
        seen["read"] = weakref.ref(jax.tree.leaves(trained.params)[0])
        return engine.build(device=device)

    monkeypatch.setattr(serve, "open_engine", opened)
    (tmp_path / "keys").write_text("\nfirst\nsecond\n")

    def ask():
        text = ""
        end = time.monotonic() + 60
        while not (found := ADDRESS.search(text)) and time.monotonic() < end:
            time.sleep(0.05)
            text += capfd.readouterr().out
        try:
            assert found is not None
            headers = {"authorization": "Bearer second"}
            body = {"prompt": "Call me", "max_tokens": 3}
            seen["name"], seen["is kept"] = found[1], seen["read"]() is not None
            seen["answer"] = httpx.post(f"{found[2]}/v1/completions", json=body, headers=headers).json()
            seen["refused"] = httpx.post(f"{found[2]}/v1/completions", json=body).status_code
            seen["reload"] = httpx.post(f"{found[2]}/admin/reload", headers=headers, timeout=60).json()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=ask)
    thread.start()
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # If it never comes to serving.
    try:
        options = ["--port", "0", "--api-key-file", str(tmp_path / "keys"), "http.drain_seconds=5"]
        assert main(["serve", run, *options]) == 0
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, before)
    assert seen["name"] == "mine"
    assert not seen["is kept"]  # The engine has its own; a second copy is of no use.
    assert seen["answer"]["usage"]["completion_tokens"] == 3
    assert seen["refused"] == 401
    assert seen["reload"] == {"status": "ok", "step": 1}


@pytest.mark.parametrize(
    "options, mesh",
    [
        (["--on", "cpu-4"], "tensor=2"),
        (["mesh.fsdp=2"], "fsdp=2"),
        (["--on", "cpu-4", "--mesh", "tensor=2"], "tensor=2"),
        ([], "data=1"),
    ],
)
def test_layers_are_split_over_the_devices_unless_a_mesh_is_chosen(run, options, mesh, monkeypatch):
    seen = []

    def stop(cfg, step):
        seen.append(cfg.mesh.text())
        raise ConfigError("enough")

    monkeypatch.setattr("dovetail.train.load_trained", stop)
    assert main(["serve", run, "--port", "0", *options]) == 2
    assert seen == [mesh]


@pytest.mark.parametrize(
    "options, message",
    [
        (
            ["--host", "0.0.0.0"],
            "--host 0.0.0.0 can be reached from other machines, so the server needs an API key.\n"
            "  Write one to a file, and name it: --api-key-file FILE; or set DOVETAIL_API_KEY.\n",
        ),
        (["--port", "70000"], "--port is 70000, expected 0 to 65535.\n"),
        (["http.seconds=0"], "http.seconds is 0.0, expected more than 0.\n"),
        (["http.secnds=1"], "http.secnds: http is Http, it has no field 'secnds'. Did you mean 'http.seconds'?\n"),
        (["serving.slots=0"], "slots is 0, expected at least 1.\n"),
    ],
)
def test_what_cannot_be_served_is_told_before_anything_is_loaded(run, options, message, capsys, monkeypatch):
    monkeypatch.delenv("DOVETAIL_API_KEY", raising=False)
    monkeypatch.setattr(serve, "open_engine", None)
    assert main(["serve", run, *options]) == 2
    assert capsys.readouterr().err.startswith(f"dovetail serve: {message}")


def test_keys_come_from_a_file_with_keys_in_it(tmp_path, capsys):
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.write_text(" \n\n")
    assert main(["serve", "runs/mine", "--api-key-file", str(missing)]) == 2
    assert main(["serve", "runs/mine", "--api-key-file", str(empty)]) == 2
    assert capsys.readouterr().err == (
        f"dovetail serve: --api-key-file: {str(missing)!r} cannot be read: No such file or directory.\n"
        f"dovetail serve: --api-key-file: {str(empty)!r} has no key in it. Write one to a line.\n"
    )


def test_there_must_be_a_run(capsys):
    assert main(["serve", "nowhere"]) == 2
    assert capsys.readouterr().err == (
        "dovetail serve: there is no run in 'nowhere': it has no directory 'checkpoints'.\n"
    )


def test_a_server_that_lacks_packages_names_the_extra(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["serve", "nowhere"]) == 2
    assert capsys.readouterr().err == (
        "dovetail serve: a server needs starlette, uvicorn, prometheus_client: pip install 'dovetail[serve]'\n"
    )
