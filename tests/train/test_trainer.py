# SPDX-License-Identifier: Apache-2.0
"""The trainer: a run that stops and goes on is the run that never stopped, and bad input gets one clear error."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
import pytest

from dovetail.checkpoint import Checkpointer
from dovetail.config import ConfigError, config_for, fields_of, to_json
from dovetail.data import FileSource, HuggingFaceTokenizer, SentencePieceTokenizer, TextInput
from dovetail.module import constant
from dovetail.optim import LinearSchedule
from dovetail.train import Observer, Trainer, TrainingError, size_of
from dovetail.train._processes import interruptible
from support.runs import evaluated_at_the_end, tiny


def records(cfg: Trainer.Config) -> list[dict]:
    lines = (Path(cfg.directory) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def losses(cfg: Trainer.Config) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in records(cfg) if "loss" in record}


def test_a_run_reports_every_step_and_evaluates(unbroken):
    cfg, state = unbroken
    assert int(state.step) == 6
    assert sorted(losses(cfg)) == [1, 2, 3, 4, 5, 6]
    assert losses(cfg)[6] < losses(cfg)[1]
    assert [r["step"] for r in records(cfg) if "eval/loss" in r] == [3, 6]
    samples = [r["sample"] for r in records(cfg) if "sample" in r]
    assert len(samples) == 2
    assert all(sample.startswith("It was") for sample in samples)
    (last,) = (r for r in records(cfg) if r["step"] == 6 and "loss" in r)
    assert {"tokens_per_second", "mfu", "host_ms", "learning_rate", "grad_norm"} <= last.keys()


def test_the_schedule_follows_the_steps_of_the_run(tmp_path):
    cfg = tiny(tmp_path, steps=8).set_in("learner.schedule", LinearSchedule.Config(peak=1.0))
    assert cfg.build().learner.schedule(6) == 0.25


def files_in(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


def test_a_resumed_run_is_bit_for_bit_the_unbroken_one_and_passes_over_a_damaged_step_aloud(unbroken, tmp_path, caplog):
    want, state = unbroken
    copy = Path(shutil.copytree(want.directory, tmp_path / "run"))
    for name in ("manifest.json", "data_state.json"):
        (copy / "checkpoints/step_6" / name).write_bytes(b"{}")
    (copy / "metrics.jsonl").unlink()
    cfg = want.set(directory=str(copy))
    again = cfg.build().run()
    (said,) = (r.message for r in caplog.records if r.name.startswith("dovetail"))
    assert said.startswith(f"checkpoint {copy}/checkpoints/step_6 is damaged:\n  manifest.json: ")
    assert said.endswith("Falling back to step_3.")
    assert losses(cfg) == {step: loss for step, loss in losses(want).items() if step > 3}
    jax.tree.map(np.testing.assert_array_equal, again, state)
    assert (copy / "checkpoints/step_6.corrupt").is_dir()
    (said,) = (r for r in records(cfg) if "changes of the config" in r)
    assert (said["step"], said["changes of the config"]) == (3, f"  directory: {want.directory!r} -> {str(copy)!r}")


def test_a_run_that_is_done_does_nothing_and_says_so(unbroken, capsys):
    cfg, state = unbroken
    before = files_in(Path(cfg.directory))
    again = cfg.set(save_every=5).build().run()
    jax.tree.map(np.testing.assert_array_equal, again, state)
    assert capsys.readouterr().out == (
        "Nothing to do: 6 of 6 steps are done.\nThis config is not the one that made them:\n  save_every: 3 -> 5\n"
    )
    assert files_in(Path(cfg.directory)) == before


@pytest.mark.parametrize(
    "path, value",
    [("seed", 1), ("input.batch_size", 8), ("learner.schedule.peak", 0.5), ("model.dim", 32), ("input.seed", 1)],
)
def test_a_config_that_changes_the_past_is_refused_and_nothing_is_written(path, value, unbroken):
    cfg, _ = unbroken
    before = files_in(Path(cfg.directory))
    with pytest.raises(ConfigError) as e:
        cfg.set(steps=7).set_in(path, value).build().run()
    lines = str(e.value).splitlines()
    assert lines[0] == f"{cfg.directory}: this config is not that of the run there, which has made 6 steps:"
    assert lines[1].startswith(f"  {path}: ")
    assert lines[2:4] == ["  Also different, but allowed:", "  steps: 6 -> 7"]
    assert lines[4].endswith("To go on with this one all the same: --allow-change")
    assert (len(lines) > 6) == path.startswith("input.")
    assert files_in(Path(cfg.directory)) == before


def test_a_change_that_is_allowed_may_be_one_of_the_data(unbroken, capsys):
    cfg, _ = unbroken
    cfg.set_in("input.seq_len", 16).build().run(allow_change=True)  # Whose position is that of another input.
    assert capsys.readouterr().out.startswith("Nothing to do: 6 of 6 steps are done.\n")


def test_what_may_change_are_fields():
    assert Trainer.Config.may_change <= fields_of(Trainer.Config).keys()
    for cfg in (TextInput.Config, FileSource.Config, HuggingFaceTokenizer.Config, SentencePieceTokenizer.Config):
        assert cfg.may_change <= fields_of(cfg).keys()


def test_the_directory_of_a_run_carries_its_config(unbroken):
    from dovetail.checkpoint import load_config

    cfg, _ = unbroken
    stored = load_config(str(Path(cfg.directory) / "checkpoints"))
    assert stored.config == to_json(cfg)
    assert stored.step == 6


def test_a_checkpoint_of_another_model_is_refused_and_left_alone(unbroken):
    cfg, _ = unbroken
    before = files_in(Path(cfg.directory))
    with pytest.raises(ConfigError, match=r"(?s)do not fit this model.*Nothing was restored\."):
        cfg.set_in("model.dim", 32).build().run(allow_change=True)
    assert files_in(Path(cfg.directory)) == before


class Breaks(Observer):
    """An observer that cannot go on, or whose user presses Ctrl-C as soon as the run starts."""

    class Config(Observer.Config):
        at: int = 4
        interrupts: bool = False

    def start(self, directory: Path, first_step: int, last_step: int, about: str) -> None:
        if self.cfg.interrupts:
            signal.raise_signal(signal.SIGINT)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if step == self.cfg.at:
            raise RuntimeError("no room left")

    def text(self, step: int, name: str, value: str) -> None: ...

    def stop(self) -> None: ...


def test_an_error_after_a_good_step_saves_it_and_the_end_of_the_data_ends_the_run_well(tmp_path, capsys):
    cfg = evaluated_at_the_end(tiny(tmp_path, steps=1000, save_every=1000))
    cfg = cfg.set_in("input.dataset.epochs", 1)
    with pytest.raises(RuntimeError, match="no room left"):
        cfg.set(observers=(Breaks.Config(),)).build().run()
    assert capsys.readouterr().err.endswith("Step 6 is saved, before the error that ends the run.\n")
    checkpoints = Checkpointer.Config(directory=f"{cfg.directory}/checkpoints").build()
    assert checkpoints.steps() == [6]  # Its metrics are two steps behind the device.
    state = cfg.build().run()
    last = int(state.step)
    assert 6 < last < 1000
    assert (
        capsys.readouterr().out == f"The input has data for {last} steps, not 1000: the run ends there, and is saved.\n"
    )
    assert checkpoints.steps() == [6, last]
    assert [r["step"] for r in records(cfg) if "eval/loss" in r] == [last]
    cfg.build().run()
    assert f"data for {last} steps" in capsys.readouterr().out
    assert checkpoints.steps() == [6, last]


def test_an_error_in_one_process_says_that_the_last_step_could_not_be_saved(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dovetail.train._trainer.meet", lambda name, seconds: False)  # It takes 30 s to find out.
    cfg = evaluated_at_the_end(tiny(tmp_path, save_every=1000, observers=(Breaks.Config(),)))
    with pytest.raises(RuntimeError, match="no room left"):
        cfg.build().run()
    said = "Step 6 is not saved: the other processes did not come to save it within 30 seconds.\n"
    assert capsys.readouterr().err.endswith(said)


def test_ctrl_c_before_the_first_step_ends_the_run_well(tmp_path, capsys):
    state = tiny(tmp_path, observers=(Breaks.Config(interrupts=True),)).build().run()
    assert int(state.step) == 0
    said = "Stopped before the first step. To go on, run the same command again.\n"
    assert capsys.readouterr().out.endswith(said)
    assert not list((tmp_path / "run/checkpoints").iterdir())


def test_ctrl_c_in_one_of_several_processes_is_an_error_before_which_they_save(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # As on the command line.
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_loss_that_stays_nan_ends_the_run(tmp_path):
    broken = tiny(tmp_path, max_bad_steps=3).set_in("model.embedding.init", config_for(constant, value=float("nan")))
    with pytest.raises(TrainingError) as e:
        broken.build().run()
    assert str(e.value).startswith("the loss of the last 3 steps, up to step 3, was not finite (nan).\n  Lower the")
    assert not list((tmp_path / "run/checkpoints").iterdir())  # No state of nan takes the place of a good one.


def test_the_host_adds_little_and_says_how_much(unbroken):
    cfg, _ = unbroken
    steps = [r for r in records(cfg) if "host_ms" in r]
    assert [r["step"] for r in steps][:2] == [2, 3]
    assert all(r["host_ms"] >= 0 and r["tokens_per_second"] > 0 for r in steps)


def test_the_size_of_a_run_is_known_before_it_starts(tmp_path):
    size = size_of(tiny(tmp_path))
    per_layer = 16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 32 + 2 * 16
    assert size.parameters == 260 * 16 + 2 * per_layer + 16
    products = 260 * 16 + 2 * (per_layer - 2 * 16)
    attention = 2 * 2 * 16  # Two products with each key that is seen, for two layers; each 2 operations, below.
    assert size.flops_per_unit == 3 * 2 * (products + attention * 33 / 2)
    assert size.full_flops_per_unit == 3 * 2 * (products + attention * 32)


def test_what_cannot_work_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(ConfigError) as e:
        tiny(tmp_path).set_in("model.vocab_size", 100).build()
    assert str(e.value) == (
        "model.vocab_size is 100, but 'tokens' of input (TextInput) has values below 259. Set it to at least that."
    )
    with pytest.raises(ConfigError) as e:
        tiny(tmp_path, log_every=0).build()
    assert str(e.value) == "log_every is 0, expected at least 1."
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ConfigError) as e:
        tiny(tmp_path).set(directory=str(blocked / "run")).build().run()
    assert str(e.value) == f"directory: cannot write to '{blocked}/run': Not a directory. Choose another one."
    assert blocked.read_text() == "in the way"
    foreign = tmp_path / "run/checkpoints/notes.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    with pytest.raises(ConfigError, match=r"run/checkpoints holds something else: 'notes.txt'\."):
        tiny(tmp_path).build().run()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]


PROGRAM = """
import sys
from pathlib import Path
from support.runs import evaluated_at_the_end, tiny
evaluated_at_the_end(tiny(Path(sys.argv[1]), steps=int(sys.argv[2]), save_every=1000)).build().run()
"""


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
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
