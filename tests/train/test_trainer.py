# SPDX-License-Identifier: Apache-2.0
"""The trainer: a run that stops and goes on is the run that never stopped, and bad input gets one clear error."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError, to_json
from dovetail.data import ByteTokenizer, TextDataset, TextFiles, TextInput
from dovetail.optim import EMA, ConstantSchedule, Learner
from dovetail.train import JsonLines, Trainer, size_of
from dovetail.zoo.families import llama

TEXT = "\n\n\n".join(f"Chapter {i}. It was a dark and stormy night, the {i}th of them." for i in range(40))


def tiny(directory: Path, steps: int = 6, **fields) -> Trainer.Config:
    """A trainer with everything on that could spoil a resumed run: dropout, shuffling, accumulation, EMA."""
    directory.mkdir(parents=True, exist_ok=True)
    text = directory / "text.txt"
    text.write_text(TEXT, encoding="utf-8")

    def from_text(**options) -> TextInput.Config:
        source = TextFiles.Config(files=[str(text)], separator="\n\n\n")
        dataset = TextDataset.Config(source=source).set(**options)
        return TextInput.Config(batch_size=4, seq_len=32, tokenizer=ByteTokenizer.Config(), dataset=dataset)

    model = llama(vocab_size=260, dim=16, num_layers=2, num_heads=2, num_kv_heads=1, hidden_dim=32, tied=True)
    return Trainer.Config(
        model=model.set_in("stack.layer.dropout.rate", 0.2),
        learner=Learner.Config(schedule=ConstantSchedule.Config(peak=1e-2), ema=EMA.Config(decay=0.9)),
        input=from_text(),
        eval_input=from_text(shuffle=False, epochs=1),
        steps=steps,
        directory=str(directory / "run"),
        observers=(JsonLines.Config(),),
        num_microbatches=2,
        log_every=1,
        save_every=3,
        eval_every=3,
        sample_prompt="It was",
        sample_tokens=8,
    ).set(**fields)


def records(cfg: Trainer.Config) -> list[dict]:
    lines = (Path(cfg.directory) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def losses(cfg: Trainer.Config) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in records(cfg) if "loss" in record}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    cfg = tiny(tmp_path_factory.mktemp("unbroken"))
    return cfg, cfg.build().run()


def test_a_run_reports_every_step_and_evaluates(unbroken):
    cfg, state = unbroken
    assert int(state.step) == 6
    assert sorted(losses(cfg)) == [1, 2, 3, 4, 5, 6]
    assert losses(cfg)[6] < losses(cfg)[1]
    assert [r["step"] for r in records(cfg) if "eval/loss" in r] == [3, 6]
    samples = [r["sample"] for r in records(cfg) if "sample" in r]
    assert len(samples) == 2
    assert all(sample.startswith("It was") for sample in samples)
    assert {"tokens_per_second", "mfu", "learning_rate", "grad_norm"} <= records(cfg)[-4].keys() | records(cfg)[
        -3
    ].keys()


def test_a_resumed_run_is_bit_for_bit_the_unbroken_one(unbroken, tmp_path):
    want, state = unbroken
    short = tiny(tmp_path, steps=3)
    short.build().run()
    again = short.set(steps=6).build().run()
    assert losses(short.set(steps=6)) == losses(want)
    jax.tree.map(np.testing.assert_array_equal, again, state)


def test_the_directory_of_a_run_carries_its_config(unbroken):
    from dovetail.checkpoint import load_config

    cfg, _ = unbroken
    stored = load_config(str(Path(cfg.directory) / "checkpoints"))
    assert stored.config == to_json(cfg)
    assert stored.step == 6


def test_the_average_is_what_is_evaluated(unbroken):
    cfg, state = unbroken
    trainer = cfg.build()
    jax.tree.map(np.testing.assert_array_equal, trainer.averaged(state), state.learner.ema)
    assert not np.allclose(trainer.averaged(state)["embedding"]["table"], state.params["embedding"]["table"])
    plain = cfg.set_in("learner.ema", None).build()
    assert plain.averaged(state) is state.params


def test_the_size_of_a_run_is_known_before_it_starts(tmp_path):
    size = size_of(tiny(tmp_path))
    per_layer = 16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 32 + 2 * 16
    assert size.parameters == 260 * 16 + 2 * per_layer + 16
    products = 260 * 16 + 2 * (per_layer - 2 * 16)
    attention = 2 * 2 * 32 * 16  # Two products of 32 keys, for two layers; each 2 operations, below.
    assert size.flops_per_token == 3 * 2 * (products + attention)


def test_what_cannot_work_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(ConfigError) as e:
        tiny(tmp_path).set_in("model.vocab_size", 100).build()
    assert str(e.value).startswith("model.vocab_size is 100, but the tokenizer of the input has ")
    with pytest.raises(ConfigError) as e:
        tiny(tmp_path, log_every=0).build()
    assert str(e.value) == "log_every is 0, expected at least 1."
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ConfigError) as e:
        tiny(tmp_path).set(directory=str(blocked / "run")).build().run()
    assert str(e.value) == f"directory: cannot write to '{blocked}/run': Not a directory. Choose another one."
    assert blocked.read_text() == "in the way"


PROGRAM = """
import sys
from pathlib import Path
from test_trainer import tiny
tiny(Path(sys.argv[1]), steps=int(sys.argv[2]), save_every=1000, eval_every=1000).build().run()
"""


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    here = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "100000"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        metrics = tmp_path / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.read_text().count("\n") > 3) and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    cfg = tiny(tmp_path)
    step = max(losses(cfg))
    assert f"Stopped after step {step}, which is saved. To go on, run the same command again." in out
    state = cfg.set(steps=step + 1).build().run()
    assert int(state.step) == step + 1
