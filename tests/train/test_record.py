# SPDX-License-Identifier: Apache-2.0
"""The record of a run: what may change without a word of permission, and what is said of the user's own code."""

import importlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import pytest

from dovetail.checkpoint import Checkpointer
from dovetail.config import ConfigError, diff, replace_all
from dovetail.data import ShippedTokenizer
from dovetail.ops import AttentionKernel, ReferenceAttention
from dovetail.optim import LinearSchedule
from dovetail.train._record import changes_since, make_directory, recorded_code, spans_of, write_record
from dovetail.zoo import recipe
from support.runs import tiny

CODE = """
from dovetail.train import JsonLines, Observer

class Quiet(Observer):
    class Config(Observer.Config):
        level: int = 0
    def start(self, directory, first_step, last_step, about): ...
    def metrics(self, step, values): ...
    def text(self, step, name, value): ...
    def stop(self): ...
"""


def made(directory, cfg):
    """Leaves what a run of `cfg` leaves after 5 steps, but for its arrays."""
    checkpoints = Checkpointer.Config(directory=str(directory / "checkpoints"), asynchronous=False).build()
    checkpoints.save(5, {"w": jnp.ones(3)}, config=cfg)
    write_record(directory, cfg)


def test_kernels_meshes_workers_and_places_may_change(tmp_path):
    cfg = tiny(tmp_path)
    made(tmp_path, cfg)
    assert changes_since(tmp_path, cfg, allow_change=False) == ""
    changed = replace_all(AttentionKernel.Config, ReferenceAttention.Config(), drop=("block",))(cfg)
    changed = changed.set_in("mesh.data", 2).set_in("input.num_workers", 1).set_in("input.dataset.source.files", ["b"])
    found = changes_since(tmp_path, changed, allow_change=False)
    assert "mesh.data: 1 -> 2" in found
    assert "kernel: dovetail.ops." in found
    assert len(found.splitlines()) > 4
    allowed = (
        r"\n  seed: 0 -> 1\n  Also different, but allowed:\n(?s:.*)\n  mesh.data: 1 -> 2\n  Use the config of the run"
    )
    with pytest.raises(ConfigError, match=allowed):
        changes_since(tmp_path, changed.set(seed=1), allow_change=False)
    assert "\n  seed: 0 -> 1" in changes_since(tmp_path, changed.set(seed=1), allow_change=True)


def test_another_model_is_refused_in_a_few_lines(tmp_path):
    cfg = tiny(tmp_path)
    made(tmp_path, cfg)
    other = recipe("gemma2-tiny").set(directory=cfg.directory, steps=cfg.steps)
    with pytest.raises(ConfigError) as e:
        changes_since(tmp_path, other, allow_change=False)
    lines = str(e.value).splitlines()
    assert any(line.startswith("  model.stack.layer: dovetail.nn.Block.Config -> ") for line in lines)
    assert not any(line[2:].startswith("model.stack.layer[") for line in lines)
    assert len(lines) < 35 < len(diff(cfg, other))


def test_more_steps_are_refused_where_the_schedule_would_have_been_another(tmp_path):
    cfg = tiny(tmp_path).set_in("learner.schedule", LinearSchedule.Config(peak=1.0, warmup_steps=3))
    made(tmp_path, cfg)
    with pytest.raises(ConfigError) as e:
        changes_since(tmp_path, cfg.set(steps=9), allow_change=False)
    assert str(e.value) == (
        f"{tmp_path}: this config is not that of the run there, which has made 5 steps:\n"
        "  steps: 6 -> 9\n"
        "  The schedule ends with the run: with other steps, those made would have had other learning rates.\n"
        "  Use the config of the run, or another directory. To go on with this one all the same: --allow-change\n"
        "  (in Python: run(allow_change=True))."
    )
    assert changes_since(tmp_path, cfg.set(steps=9), allow_change=True) == "  steps: 6 -> 9"
    rising = cfg.set_in("learner.schedule.warmup_steps", 5)  # So far, it has done nothing else.
    for i, same in enumerate((rising, tiny(tmp_path), cfg.set_in("learner.schedule.total_steps", 6))):
        made(tmp_path / str(i), same)
        assert changes_since(tmp_path / str(i), same.set(steps=9), allow_change=False) == "  steps: 6 -> 9"


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_observers.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("own_observers")
    sys.modules.pop("own_observers", None)


def test_the_users_own_code_is_recorded_and_compared(own_module, tmp_path):
    cfg = tiny(tmp_path).set(observers=(own_module.Quiet.Config(),))
    made(tmp_path, cfg)
    (code,) = recorded_code(tmp_path).values()
    assert code["file"] == own_module.__file__
    assert changes_since(tmp_path, cfg, allow_change=False) == ""
    assert "observers[0].level: 0 -> 1" in changes_since(
        tmp_path, cfg.set_in("observers[0].level", 1), allow_change=False
    )
    with open(own_module.__file__, "a") as file:
        file.write("# Another line.\n")
    said = changes_since(tmp_path, cfg, allow_change=False)
    assert said.startswith(f"  {own_module.__file__}: is not as it was when the run was started (sha256 ")
    sys.modules.pop("own_observers")
    plain = tiny(tmp_path)
    with pytest.raises(ConfigError, match="cannot be compared: observers"):  # Nothing is imported to find out.
        changes_since(tmp_path, plain, allow_change=False)
    assert "cannot be read" in changes_since(tmp_path, plain, allow_change=True)
    assert "own_observers" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", "[" * 10_000, json.dumps({"a": 1}), json.dumps({"a": {}})),
        json.dumps({"a": {"file": "\x1b[2J", "sha256": "0" * 64}}),
        json.dumps({"a": {"file": "a.py", "sha256": "0"}}),
    ],
)
def test_a_record_of_code_that_is_none_is_one_error(text, tmp_path):
    (tmp_path / "code.json").write_text(text)
    with pytest.raises(ConfigError, match=r"code\.json: is not the record of a run's code"):
        recorded_code(tmp_path)


def test_a_record_of_code_that_leads_elsewhere_is_not_opened(tmp_path):
    (tmp_path / "code.json").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="not a regular file"):
        recorded_code(tmp_path)


def test_many_may_find_out_at_once_whether_a_directory_can_be_written(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            list(pool.map(make_directory, [tmp_path / "run"] * 8, ["runs/x"] * 8))
    assert not list((tmp_path / "run").iterdir())


def test_changes_of_the_input_are_allowed_by_a_decision_on_it_but_not_what_a_token_means(tmp_path):
    cfg = tiny(tmp_path)
    made(tmp_path, cfg)
    longer = cfg.set_in("input.seq_len", 16)
    with pytest.raises(ConfigError, match=r"\n  Where only input differs: --data-change keep, restart or skip-to-step"):
        changes_since(tmp_path, longer, allow_change=False)
    assert changes_since(tmp_path, longer, allow_change=False, data_change=True) == "  input.seq_len: 32 -> 16"
    for other in (longer.set(seed=1), longer.set_in("input.tokenizer", ShippedTokenizer.Config())):
        with pytest.raises(ConfigError, match="this config is not that of the run there"):
            changes_since(tmp_path, other, allow_change=False, data_change=True)


def test_the_config_of_each_span_of_steps_is_kept(tmp_path):
    cfg = tiny(tmp_path)
    (tmp_path / "run").mkdir()

    def spans():
        found = spans_of(tmp_path / "run").items()
        return {file.relative_to(tmp_path / "run").as_posix(): (*span, seed_in(file)) for file, span in found}

    def seed_in(file):
        return int(next(line for line in file.read_text().splitlines() if line.startswith("seed = "))[7:])

    for seed, after in ((0, 0), (0, 5), (1, 10), (2, 15), (2, 17)):
        write_record(tmp_path / "run", cfg.set(seed=seed), after)
    want = {"configs/steps_1-10.txt": (1, 10, 0), "configs/steps_11-15.txt": (11, 15, 1), "config.txt": (16, None, 2)}
    assert spans() == want
    write_record(tmp_path / "run", cfg.set(seed=3), 12)  # It goes back: what was made after that is made again.
    want = {"configs/steps_1-10.txt": (1, 10, 0), "configs/steps_11-12.txt": (11, 12, 1), "config.txt": (13, None, 3)}
    assert spans() == want
