# SPDX-License-Identifier: Apache-2.0
"""What a run has trained, loaded from its directory; or what it would start from."""

from typing import Any

import jax
import numpy as np
import pytest

from dovetail.checkpoint import Checkpointer, load_config
from dovetail.config import ConfigError, from_json
from dovetail.module import run_specs
from dovetail.optim import by_path
from dovetail.parallel import Mesh
from dovetail.train import InitFrom, load_initial, load_trained, save_initial
from dovetail.train._trained import has_only_weights
from dovetail.zoo.recipes import finetune
from support.directories import write_small
from support.published import random_weights


def test_the_moving_average_is_what_is_published(unbroken):
    cfg, state = unbroken
    trained = load_trained(cfg)
    assert trained.step == 6
    jax.tree.map(np.testing.assert_array_equal, trained.params, state.learner.ema)
    plain = load_trained(cfg.set_in("learner.ema", None))
    jax.tree.map(np.testing.assert_array_equal, plain.params, state.params)
    assert not np.allclose(trained.params["embedding"]["table"], plain.params["embedding"]["table"])


def test_a_step_may_be_asked_for_and_the_data_is_not_needed(unbroken):
    cfg, state = unbroken
    earlier = load_trained(cfg.set_in("input.dataset.source.files", ["gone.txt"]), step=3)
    assert earlier.step == 3
    assert not np.array_equal(earlier.params["embedding"]["table"], state.learner.ema["embedding"]["table"])


# Published models.


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The config of a run that starts from a published model in bfloat16, and the weights of that by path."""
    cfg: Any = finetune(write_small(tmp_path_factory.mktemp("published"), "deepseek-v3-tiny", dtype="bfloat16"))
    return cfg, random_weights(cfg.model)


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(fsdp=2, expert=2)], ids=Mesh.text)
def test_a_published_model_is_loaded_without_a_run_and_with_its_state(published, mesh):
    cfg, weights = published
    found = load_initial(cfg.set(mesh=mesh))
    assert found.step == 0
    assert found.program.cfg.mesh == mesh
    values = by_path(jax.device_get(found.params))
    assert {value.dtype for value in values.values()} == {np.dtype(np.float32)}
    jax.tree.map(np.testing.assert_array_equal, values, weights)
    assert any(by_path(run_specs(found.model)))  # The biases of the routers are not parameters, and come along.


def test_saved_weights_keep_the_dtypes_of_their_files_and_are_a_run_of_their_own(published, tmp_path):
    cfg, weights = published
    cfg = cfg.set(directory=str(tmp_path / "run"))
    size = sum(value.size for value in weights.values())
    assert save_initial(cfg, {"tokenizer.json": b"{}"}) == (size, "bfloat16")
    with Checkpointer.Config(directory=str(tmp_path / "run" / "checkpoints")).build() as checkpointer:
        assert checkpointer.latest() == 0
        assert has_only_weights(checkpointer, 0)
        dtypes = {path: leaf.dtype for path, leaf in checkpointer.leaves(0).items()}
    assert dtypes.pop("step") == "int32"
    assert set(dtypes.values()) == {"bfloat16"}
    stored = load_config(str(tmp_path / "run" / "checkpoints"), 0)
    assert dict(stored.files) == {"tokenizer.json": b"{}"}
    assert from_json(stored.config) == cfg.set(init_from=None)
    found = load_trained(cfg.set(init_from=None, mesh=Mesh(fsdp=2)))
    assert found.step == 0
    values = by_path(jax.device_get(found.params))
    assert {value.dtype for value in values.values()} == {np.dtype(np.float32)}
    jax.tree.map(np.testing.assert_array_equal, values, weights)


def test_a_step_of_training_has_more_than_weights(unbroken):
    with Checkpointer.Config(directory=f"{unbroken[0].directory}/checkpoints").build() as checkpointer:
        assert not has_only_weights(checkpointer, 3)


@pytest.mark.parametrize("source", [None, (), InitFrom(path="runs/other")], ids=["none", "empty", "run"])
def test_weights_of_anything_but_a_published_model_are_not_saved(source, published, tmp_path):
    cfg = published[0].set(directory=str(tmp_path / "run"), init_from=source)
    with pytest.raises(ConfigError) as e:
        save_initial(cfg, {})
    assert str(e.value) == (
        "init_from: weights are saved from one published model. Leave init_from as its recipe has it."
    )
    assert not (tmp_path / "run").exists()
