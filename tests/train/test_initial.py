# SPDX-License-Identifier: Apache-2.0
"""A run that starts from the weights of another: what is taken, on any mesh, and what does not fit."""

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.parallel import Mesh
from dovetail.train import InitFrom, Program
from dovetail.train._initial import check_init_from, initial_state


def started(cfg, path, files=None, **fields):
    cfg = cfg.set(init_from=InitFrom(path=path, **fields))
    return initial_state(Program(cfg), cfg, files)


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(data=2, tensor=2)], ids=Mesh.text)
def test_weights_are_those_that_the_other_run_publishes_and_nothing_else_is_taken(unbroken, mesh):
    cfg, last = unbroken
    state, said = started(cfg.set(mesh=mesh), cfg.directory)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params), last.learner.ema)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.learner.ema), last.learner.ema)
    assert int(state.step) == 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(jax.device_get(state.learner.optimizer)) if leaf.ndim)
    assert said == f"Weights are from {cfg.directory}, step 6."


def test_a_step_is_named_by_its_directory(unbroken):
    cfg, last = unbroken
    step = f"{cfg.directory}/checkpoints/step_3"
    state, said = started(cfg, step)
    assert said == f"Weights are from {step}, step 3."
    assert not np.array_equal(state.params["embedding"]["table"], last.learner.ema["embedding"]["table"])


def test_what_does_not_fit_is_listed_and_taken_from_scratch_only_if_allowed(unbroken):
    cfg, last = unbroken
    other = cfg.set_in("model.vocab_size", 270).set_in("model.stack.layer.mixer.key.bias", True)
    with pytest.raises(ConfigError) as e:
        started(other, cfg.directory)
    lines = str(e.value).splitlines()
    assert lines[0] == f"init_from: {cfg.directory}, step 6 does not fit this run:"
    assert "  'embedding.table' is (260, 16) there, (270, 16) in this model." in lines
    assert any(line.endswith("is not there.") for line in lines)
    assert lines[-1] == "  To take what fits, and start the rest from scratch: init_from.strict=False"
    state, said = started(other, cfg.directory, strict=False)
    assert said.splitlines()[1:] == lines[1:-1]
    fresh = initial_state(Program(other), other, {})[0].params
    np.testing.assert_array_equal(state.params["embedding"]["table"], fresh["embedding"]["table"])
    np.testing.assert_array_equal(state.params["norm"]["scale"], last.learner.ema["norm"]["scale"])


def test_nothing_is_written_where_it_does_not_fit(unbroken, tmp_path):
    cfg, _ = unbroken
    other = cfg.set_in("model.vocab_size", 270).set(directory=str(tmp_path / "new"))
    with pytest.raises(ConfigError, match="does not fit this run"):
        other.set(init_from=InitFrom(path=cfg.directory)).build().run()
    assert not (tmp_path / "new").exists()


def test_a_model_with_nothing_in_common_is_refused_even_if_not_all_must_fit(unbroken):
    cfg, _ = unbroken
    with pytest.raises(ConfigError, match="Nothing of it does: it is another model"):
        started(cfg.set_in("model.dim", 32), cfg.directory, strict=False)


def test_an_input_with_other_files_does_not_fit(unbroken):
    cfg, _ = unbroken
    with pytest.raises(ConfigError, match=r"files of its input are others \(tokenizer.json\): the same numbers may"):
        started(cfg, cfg.directory, {"tokenizer.json": b"{}"})
    assert started(cfg, cfg.directory, {})[1] == started(cfg, cfg.directory, None)[1]  # None: nothing is known of them.


def test_a_place_without_a_run_is_an_error(unbroken, tmp_path):
    with pytest.raises(ConfigError) as e:
        started(unbroken[0], str(tmp_path))
    assert str(e.value) == (
        f"init_from: {str(tmp_path)!r} is not the directory of a run or a step: no '{tmp_path}/checkpoints'."
    )


@pytest.mark.parametrize("path", ["{}", "{}/checkpoints/step_3", "{}/../run"])
def test_a_run_does_not_start_from_itself(unbroken, path):
    cfg, _ = unbroken
    cfg = cfg.set(init_from=InitFrom(path=path.format(cfg.directory)))
    with pytest.raises(ConfigError, match=r"is this run itself\. Give the new one a directory: directory=runs/NAME"):
        check_init_from(Program(cfg), cfg, {}, starts=False)
