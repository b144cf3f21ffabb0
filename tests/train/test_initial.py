# SPDX-License-Identifier: Apache-2.0
"""A run that starts from other weights: what is taken, on any mesh, and what does not fit."""

from typing import Any

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.nn import LayerNorm
from dovetail.optim import by_path
from dovetail.parallel import Mesh
from dovetail.train import InitFrom, Program
from dovetail.train._initial import check_init_from, initial_state, initial_values
from dovetail.zoo.recipes import finetune
from support.directories import write_small
from support.published import random_weights


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


# Published models.


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The config of a run that starts from a published model in bfloat16, and the weights of that by path."""
    cfg: Any = finetune(write_small(tmp_path_factory.mktemp("published"), dtype="bfloat16"))
    return cfg, random_weights(cfg.model)


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(data=2, fsdp=2, tensor=2)], ids=Mesh.text)
def test_weights_of_a_published_model_are_those_of_its_files_on_any_mesh(published, mesh):
    cfg, weights = published
    cfg = cfg.set(mesh=mesh)
    state, said = initial_state(Program(cfg), cfg, {})
    found = by_path(jax.device_get(state.params))
    assert found.keys() == weights.keys()
    for path, value in weights.items():
        assert found[path].dtype == np.float32
        np.testing.assert_array_equal(found[path], value)
    assert int(state.step) == 0
    assert said == f"Weights are from {cfg.init_from.path}."
    only = {path: weights[path] for path in ("norm.scale", "stack.layer.ffn.up.weight")}
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(initial_values(Program(cfg), cfg, only)), only)


def test_what_a_published_model_has_not_starts_from_scratch_only_if_allowed(published):
    cfg, weights = published
    cfg = cfg.set_in("model.stack.layer.ffn_norm", LayerNorm.Config())
    with pytest.raises(ConfigError) as e:
        initial_state(Program(cfg), cfg, {})
    assert str(e.value) == (
        "this model has parameters for which the format of its family has no place:\n"
        "  stack.layer.ffn_norm.bias\n"
        "  Leave out what they belong to, or use a family that has it."
    )
    cfg = cfg.set_in("init_from.strict", False)
    state, said = initial_state(Program(cfg), cfg, {})
    assert said == f"Weights are from {cfg.init_from.path}, but:\n  'stack.layer.ffn_norm.bias' is not there."
    found = by_path(jax.device_get(state.params))
    assert not found.pop("stack.layer.ffn_norm.bias").any()
    jax.tree.map(np.testing.assert_array_equal, found, weights)


def test_a_published_model_without_its_table_is_refused(published):
    cfg, _ = published
    cfg = cfg.set_in("init_from.weights", ())
    with pytest.raises(ConfigError) as e:
        check_init_from(Program(cfg), cfg, {}, starts=True)
    path = cfg.init_from.path
    assert str(e.value) == (
        f"init_from: {path!r} is in the format of Hugging Face, but there is no table of its weights.\n"
        f"  Start from its recipe, which has it: dovetail train {path} ..."
    )
    check_init_from(Program(cfg), cfg, {}, starts=False)  # Once it has started, it has its own.


def test_a_parameter_has_one_source(published):
    cfg, _ = published
    cfg = cfg.set(init_from=(cfg.init_from, cfg.init_from))
    with pytest.raises(ConfigError, match=r"is taken from both 'hf:.*' and 'hf:.*'\. Use `to` to tell them apart\."):
        check_init_from(Program(cfg), cfg, {}, starts=True)
