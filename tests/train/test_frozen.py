# SPDX-License-Identifier: Apache-2.0
"""A child that stays as it is: no update, no optimizer state, no place in checkpoints, and values from another run."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from dovetail.checkpoint import Checkpointer
from dovetail.config import ConfigError
from dovetail.data import ByteTokenizer, ShippedCorpus, TextDataset, TextInput
from dovetail.optim import EMA, ConstantSchedule, Learner
from dovetail.parallel import parse_mesh
from dovetail.train import InitFrom, JsonLines, Program, Trainer, load_trained
from support.models import lm
from support.objectives import Pairs, Preference

LEARNER = Learner.Config(schedule=ConstantSchedule.Config(peak=1e-2), ema=EMA.Config(decay=0.5))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The directory of a language model, trained for two steps."""
    data = TextInput.Config(
        batch_size=2,
        seq_len=8,
        tokenizer=ByteTokenizer.Config(),
        dataset=TextDataset.Config(source=ShippedCorpus.Config()),
    )
    directory = tmp_path_factory.mktemp("base")
    cfg = Trainer.Config(
        model=lm(vocab_size=260), learner=LEARNER, input=data, steps=2, directory=str(directory), observers=()
    )
    return str(directory), jax.device_get(cfg.build().run())


def preference(base, directory, **fields) -> Trainer.Config:
    model = lm(vocab_size=260)
    return Trainer.Config(
        model=Preference.Config(policy=model, reference=model),
        learner=LEARNER,
        input=Pairs.Config(batch_size=4),
        init_from=tuple(InitFrom(path=base, to=f"model.{name}") for name in ("policy", "reference")),
        steps=4,
        directory=str(directory),
        observers=(JsonLines.Config(),),
        log_every=1,
        save_every=2,
    ).set(**fields)


def losses(cfg):
    lines = (Path(cfg.directory) / "metrics.jsonl").read_text().splitlines()
    return {r["step"]: r["loss"] for r in map(json.loads, lines) if "loss" in r}


def test_a_frozen_reference_is_the_run_it_is_from_and_is_in_no_checkpoint(base, tmp_path):
    path, trained = base
    cfg = preference(path, tmp_path / "run")
    state = cfg.build().run()
    published = trained.learner.ema
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params["reference"]), published)
    assert not np.array_equal(state.params["policy"]["norm"]["scale"], published["norm"]["scale"])
    assert losses(cfg)[1] == pytest.approx(np.log(2))  # Policy and reference start as one.
    kept = {jax.tree_util.keystr(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(state.learner)}
    assert any("policy" in each for each in kept)
    assert not any("reference" in each for each in kept)
    checkpoints = Checkpointer.Config(directory=f"{cfg.directory}/checkpoints").build()
    assert not any("reference" in leaf for leaf in checkpoints.leaves(4))
    # A run that goes on, and one that is used, take it from there again.
    copy = Path(shutil.copytree(cfg.directory, tmp_path / "copy"))
    shutil.rmtree(copy / "checkpoints/step_4")
    again = cfg.set(directory=str(copy)).build().run()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(again), jax.device_get(state))
    used = load_trained(cfg)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(used.params["reference"]), published)
    jax.tree.map(np.testing.assert_array_equal, used.params["policy"], state.learner.ema["policy"])


def test_checkpoints_have_what_is_frozen_if_asked_to(base, tmp_path):
    path, _ = base
    source = shutil.copytree(path, tmp_path / "source")
    cfg = preference(str(source), tmp_path / "run", steps=2, save_frozen=True)
    cfg.build().run()
    shutil.rmtree(source)
    used = load_trained(cfg)
    assert used.params["reference"]["norm"]["scale"].shape == (8,)
    assert int(cfg.set(steps=3).build().run().step) == 3
    with pytest.raises(ConfigError, match="is not the directory of a run or a step"):
        load_trained(cfg.set(save_frozen=False))


@pytest.mark.long
def test_a_mesh_changes_nothing_of_it(base, tmp_path):
    path, _ = base
    runs = [preference(path, tmp_path / mesh, mesh=parse_mesh(mesh), steps=2) for mesh in ("data=1", "fsdp=2,tensor=2")]
    for cfg in runs:
        cfg.build().run()
    np.testing.assert_allclose(list(losses(runs[1]).values()), list(losses(runs[0]).values()), rtol=1e-5)


def test_what_frozen_parameters_need_is_counted_so(base, tmp_path):
    program = Program(preference(base[0], tmp_path))
    trained = jax.tree.leaves(program.learner.trainable["reference"])
    assert trained
    assert not any(trained)


@pytest.mark.parametrize(
    "sources, message",
    [
        ([{"to": "model.judge"}], "init_from.to: there are no parameters at 'model.judge'. There are: model.policy, "),
        ([{"part": "model.policy"}], "init_from.part: there are no parameters at 'model.policy'. There are: model.emb"),
        ([{"to": "model.policy"}, {"to": "model.policy.norm", "part": "model.norm"}], "is taken from both"),
        ([{}], "does not fit this run:\n  'policy.embedding.table' is not there."),
    ],
)
def test_parts_that_do_not_fit_are_refused(sources, message, base, tmp_path):
    cfg = preference(base[0], tmp_path / "run", init_from=tuple(InitFrom(path=base[0], **each) for each in sources))
    with pytest.raises(ConfigError) as e:
        cfg.build().run()
    assert message in str(e.value)
    assert not (tmp_path / "run").exists()
