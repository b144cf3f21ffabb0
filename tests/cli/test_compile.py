# SPDX-License-Identifier: Apache-2.0
"""Hardware on the command line: `show`, `diff` and `train` on it, and `compile` for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.cli import _code, main, resolve
from dovetail.config import to_text
from dovetail.hardware import hardware
from dovetail.plan import _cache, lower_step


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_show_prints_the_config_for_the_hardware(capsys):
    assert main(["show", "llama2-70b", "--full", "--on", "tpu-v5p-1024"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "mesh.fsdp = 512" in lines
    assert "compute_dtype = 'bfloat16'" in lines
    assert "model.stack.layer.mixer.kernel.kernels[0] = dovetail.ops.SplashAttention.Config" in lines


def test_diff_between_hardware_shows_only_what_hardware_changes(capsys):
    assert main(["diff", "llama2-70b@tpu-v5p-1024", "llama2-70b@gpu-h100-512", "--json"]) == 0
    paths = [each["path"] for each in json.loads(capsys.readouterr().out)]
    starts = ("mesh", "remat", "num_microbatches", "compiler_options", "model.stack.layer.mixer.kernel")
    assert paths
    assert [path for path in paths if not path.startswith(starts)] == []


def test_overrides_win_and_are_known_to_the_rules(capsys):
    changes = ["remat=full", "input.batch_size=512", "mesh.data=2"]
    assert main(["show", "llama2-7b", "--full", "--on", "tpu-v5p-512", *changes]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"remat = 'full'", "mesh.data = 2", "mesh.fsdp = 256"} <= set(lines)


def test_train_on_the_hardware_that_is_there(tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main(["train", "qwen3-tiny", "--on", "cpu-4", "steps=1", f"directory={run}"]) == 0
    assert "mesh.fsdp = 4" in (Path(run) / "config.txt").read_text().splitlines()


def test_a_config_for_tpus_trains_on_a_cpu_and_says_what_it_runs_instead(tmp_path, capsys):
    run = str(tmp_path / "run")
    command = ["train", "qwen3-tiny", "--on", "tpu-v5e-8", "steps=1", "input.seq_len=128", f"directory={run}"]
    assert main(command) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "BlockwiseAttention; not SplashAttention: it runs on tpu, this is cpu" in shown
    metrics = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    assert any(name.startswith("fallback/model.stack.layer.mixer.kernel") for each in metrics for name in each)


def test_compile_reports_and_answers_at_once_the_second_time(capsys):
    command = ["compile", "qwen3-tiny", "--on", "cpu-4"]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    fields = "fits hbm_per_chip_gib hbm_by_path model_flops hardware_flops collectives kernels compile_seconds versions"
    assert set(fields.split()) <= set(report)
    assert (report["recipe"], report["hardware"], report["cached"]) == ("qwen3-tiny", "cpu-4", False)
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == report | {"cached": True}
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "qwen3-tiny on cpu-4: 4 chips, mesh fsdp=4, remat save_all"
    assert lines[2].startswith("compiled in ")
    assert "(kept from before)" in lines[2]
    assert any(line.startswith("model.stack.layer.ffn") for line in lines)


_OWN = """
from dovetail.config import replace_all
from dovetail.nn import FeedForward
from dovetail.zoo import recipe


class Scaled(FeedForward):
    class Config(FeedForward.Config):
        pass

    def forward(self, x, context=None):
        return {factor} * x


def run():
    return replace_all(FeedForward.Config, lambda old: Scaled.Config())(recipe("llama3-tiny"))
"""


def test_a_changed_layer_of_the_user_is_another_question(tmp_path, monkeypatch):
    """The config is the same; the program that goes to the compiler is not."""
    path, found = tmp_path / "own_layer.py", []
    for number, factor in enumerate((2.0, 2.0, 3.0)):
        path.write_text(_OWN.format(factor=factor), encoding="utf-8")
        os.utime(path, (number, number))  # Python takes a file of equal size and second for unchanged.
        monkeypatch.setattr(_code, "_files", {})  # As in a new process, which reads the file anew.
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
        cfg = resolve(f"{path}:run", on="cpu-1").cfg
        found.append((to_text(cfg), _cache.key(lower_step(cfg, hardware("cpu-1")).lowered, {}, "cpu-1", {})))
    assert found[0] == found[1]
    assert found[2][0] == found[0][0]
    assert found[2][1] != found[0][1]


def test_devices_that_are_only_described_need_none_of_the_cpu():
    code = (
        "import jax; from dovetail.cli import main\n"
        "assert main(['compile', 'qwen3-tiny', '--on', 'trn2-64', 'input.batch_size=256']) == 2\n"
        "print(jax.device_count('cpu'))"
    )
    environ = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.mark.parametrize(
    "arguments,text",
    [
        (["llama2-7b", "--on", "tpu-v5p-500"], "hardware 'tpu-v5p-500': tpu-v5p does not come in 500."),
        (["llama2-7b", "--on", "tpu-v9-8"], "there is no chip 'tpu-v9'."),
        (["llama2-7b", "--on", "trn2-64"], "no compiler for AWS Trainium2"),
        (["no-such", "--on", "cpu-4"], "no recipe is called 'no-such'."),
    ],
)
def test_what_cannot_be_compiled_is_one_message_and_exit_2(arguments, text, capsys):
    assert main(["compile", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("dovetail compile: ")
    assert text in message


def test_compile_says_what_serving_takes(capsys):
    command = ["compile", "llama3-tiny", "--on", "cpu-2", "--serve", "serving.slots=2", "serving.max_length=32"]
    command += ["serving.chunks=(8,)", "model.stack.num_layers=1"]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["recipe"], report["slots"], report["tokens"], report["mesh"]) == (
        "llama3-tiny",
        2,
        64,
        {"tensor": 2},
    )
    assert [(step["what"], step["rows"], step["tokens"]) for step in report["steps"]] == [
        ("decode", 2, 1),
        ("prefill", 1, 8),
    ]
    assert main([*command, "mesh.fsdp=1", "mesh.data=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("llama3-tiny served on cpu-2: 2 chips, mesh data=2, float32, ")
    assert "room: 2 sequences at once, of 32 tokens at most; 64 tokens of all together, in pages of 16" in lines
    assert "a token of each of 2 sequences with 32 tokens: at least not known" in lines


def test_serving_is_asked_for_by_names_that_there_are(capsys):
    assert main(["compile", "llama3-tiny", "--on", "cpu-2", "--serve", "serving.slot=2"]) == 2
    assert "Did you mean 'slots'?" in capsys.readouterr().err
