# SPDX-License-Identifier: Apache-2.0
"""Features that users wrote, a file each in `examples/`: they train, decode, scan and shard as the models they change.

Each is tried on one kind of model and on one mesh, most of them in long tests; slow tests try all on all of them.
"""

import json
import math
import shutil
from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from count_examples import count_lines
from dovetail.checkpoint import Checkpointer
from dovetail.config import ConfigError, modify, replace_all
from dovetail.data import JsonLines
from dovetail.module import call
from dovetail.nn import Linear, LoRALinear, TopKRouter
from dovetail.ops import EMPTY
from dovetail.optim import ConstantSchedule
from dovetail.parallel import parse_mesh
from examples import carried_state, dpo
from sharding_cases import TOLERANCE
from support.decoding import started
from support.examples import (
    ALONE,
    FEATURES,
    KINDS,
    allowed_error,
    applied,
    gradients_on,
    initial,
    language_model,
    reported,
    shortened,
    small,
    unrolled,
)
from support.models import random_params

FLAT, WIDE = parse_mesh("fsdp=2,seq=2,tensor=2"), parse_mesh("data=2,fsdp=2,tensor=2")
STAGES, EXPERTS = parse_mesh("pipeline=2,fsdp=2,tensor=2"), parse_mesh("fsdp=2,expert=2,tensor=2")
EARLY = parse_mesh("pipeline=2,data=2,seq=2").set(schedule="one_forward_one_backward")
SAMPLE = {
    "value_residual": ("dense", EARLY),
    "shared_kv": ("dense", STAGES),
    "per_layer_embeddings": ("moe", WIDE),
    "hyper_connections": ("dense", STAGES),
    "ngpt": ("dense", FLAT),
    "mixture_of_depths": ("hybrid", FLAT),
    "annealed_loss": ("moe", EXPERTS),
    "carried_state": ("dense", WIDE),
    "dpo": ("dense", FLAT),
    "token_reward": ("dense", WIDE),
    "logit_lens": ("dense", WIDE),
}
# The others decode as the models they are made of: they change what is trained, or evaluated, and no forward pass.
DECODES = {
    "value_residual": "hybrid",
    "shared_kv": "moe",
    "per_layer_embeddings": "dense",
    "hyper_connections": "hybrid",
    "ngpt": "moe",
    "mixture_of_depths": "dense",
}
# Two in `make test`, on two kinds of mesh; the others are long.
OFTEN = ("shared_kv", "token_reward")
SOME_ON_A_MESH = [each if each in OFTEN else pytest.param(each, marks=pytest.mark.long) for each in FEATURES]
EXAMPLES = Path(dpo.__file__).parent
ALL = [(feature, kind) for feature in FEATURES for kind in KINDS]
LENGTH = 7
IDS = np.random.default_rng(0).integers(0, 256, (2, LENGTH))


def learns(reports) -> list[float]:
    """Asserts that the loss stays finite and falls, and returns it."""
    losses = [report["loss"] for report in reports if "loss" in report]
    assert np.all(np.isfinite(losses))
    assert losses[-1] < losses[0]
    return losses


@pytest.mark.parametrize("feature", SOME_ON_A_MESH)
def test_it_trains_on_a_mesh_unrolled_as_it_would_on_one_device_by_a_scan(feature, tmp_path):
    kind, mesh = SAMPLE[feature]
    cfg = applied(feature, kind)
    run = shortened(unrolled(cfg).set(mesh=mesh), tmp_path)
    run.build().run()
    reports = reported(run)
    learns(reports)
    if feature == "annealed_loss":
        z_losses = [report["loss/model.z_loss"] for report in reports if "loss" in report]
        np.testing.assert_allclose(np.divide(z_losses, z_losses[0]), [1, 0.75, 0.5, 0.25], rtol=0.3)  # As it learns.
    if feature == "logit_lens":
        found = {name: share for report in reports for name, share in report.items() if name.startswith("lens/")}
        assert found.keys() == {f"lens/model.stack.layer[{i}]" for i in range(2)}
        assert all(0 < share < 1 for share in found.values())
    alone = gradients_on(cfg, parts=mesh.num_microbatches)(initial(cfg))
    first = next(report for report in reports if "loss" in report)
    assert (first["total_loss"], first["grad_norm"]) == pytest.approx((alone.loss, alone.norm), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("feature, kind", ALL)
def test_it_trains_on_every_kind_of_model(feature, kind, tmp_path):
    cfg = shortened(applied(feature, kind), tmp_path, steps=6)
    cfg.build().run()
    learns(reported(cfg))


def meshes(feature, kind):
    """Yields the meshes that apply."""
    if feature == "carried_state":  # No pipeline, which splits batches.
        yield from (FLAT, WIDE) if kind != "moe" else (FLAT, EXPERTS)
        return
    yield from (FLAT, STAGES) if kind != "moe" else (FLAT, EXPERTS, STAGES)
    if feature != "dpo":  # Which has two loops over layers, and is refused.
        yield EARLY


@pytest.mark.slow
@pytest.mark.parametrize("feature, kind", ALL)
def test_unrolled_and_on_any_mesh_loss_and_gradients_are_those_of_one_device(feature, kind):
    cfg = applied(feature, kind)
    if (feature, kind) == ("dpo", "moe"):
        # A pipeline splits answers, not pairs: the balance of experts in a microbatch is that of other ones.
        cfg = modify(TopKRouter.Config, lambda old: old.set(balance_loss=0.0))(cfg)
    params = jax.device_get(random_params(cfg.model.build(path="model")))
    splits = (1,) if feature == "carried_state" else (1, 2)  # Whose rows are never apart.
    runs = {parts: gradients_on(cfg, parts=parts) for parts in splits}
    alone = {parts: run(params) for parts, run in runs.items()}
    error, where = gradients_on(unrolled(cfg))(params).error(alone[1])
    assert error <= TOLERANCE or error <= allowed_error(runs[1], params), where
    for mesh in meshes(feature, kind):
        error, where = gradients_on(cfg, mesh)(params).error(alone[mesh.num_microbatches])
        allowed = TOLERANCE if error <= TOLERANCE else allowed_error(runs[mesh.num_microbatches], params)
        assert error <= allowed, f"{mesh.text()}: {where}"


def check_decoding(feature, kind):
    """Asserts that logits token by token are those of all at once; returns the state at the end."""
    cfg = applied(feature, kind)
    params = language_model(feature, random_params(cfg.model.build()))
    model = language_model(feature, cfg.model).build()
    step = jax.jit(lambda ids, state: call(model, params, ids, state=state))
    logits, state = [], started(model, params, IDS[:, :1], sizes={"batch": 2, "capacity": LENGTH})
    for t in range(LENGTH):
        out, collected = step(jnp.asarray(IDS[:, t : t + 1]), state)
        logits, state = [*logits, out], collected.state
    want = jax.jit(lambda ids: call(model, params, ids)[0])(jnp.asarray(IDS))
    np.testing.assert_allclose(np.concatenate(logits, axis=1), want, rtol=1e-4, atol=1e-5)
    return state


@pytest.mark.parametrize("feature", DECODES)
def test_token_by_token_it_is_what_it_is_all_at_once(feature):
    state = check_decoding(feature, DECODES[feature])
    if feature == "shared_kv":
        assert {path.split(".mixer")[0] for path in state if ".cache" in path} == {"stack.layer[0]"}
    if feature == "mixture_of_depths":
        (index,) = (value for path, value in state.items() if path.endswith("cache.index"))
        assert 0 < np.sum(np.asarray(index) != EMPTY) < index.size, "what is not chosen is not in the cache"


@pytest.mark.slow
@pytest.mark.parametrize("feature, kind", ALL)
def test_token_by_token_any_kind_of_model_is_what_it_is_all_at_once(feature, kind):
    check_decoding(feature, kind)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The directory of a language model that has learnt a little, and its parameters."""
    cfg = shortened(small("dense"), tmp_path_factory.mktemp("base"), steps=2)
    return cfg.directory, jax.device_get(cfg.build().run().params)


def equal(got, want):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(got), jax.device_get(want))


def test_dpo_starts_at_ln_2_and_its_reference_stays_and_is_in_no_checkpoint_and_it_resumes(base, tmp_path):
    directory, params = base
    cfg = shortened(dpo.with_dpo(small("dense"), directory), tmp_path / "run").set(save_every=2)
    state = cfg.build().run()
    assert learns(reported(cfg))[0] == pytest.approx(math.log(2), rel=1e-6)
    equal(state.params["reference"], params)
    slots = [jax.tree_util.keystr(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(state.learner)]
    saved = Checkpointer.Config(directory=f"{cfg.directory}/checkpoints").build().leaves(4)
    for names in (slots, saved):
        assert any("policy" in name for name in names)
        assert not any("reference" in name for name in names)
    shutil.rmtree(tmp_path / "run/checkpoints/step_4")
    equal(cfg.build().run(), state)


def carried(directory, mesh=ALONE, rate=1e-30):
    """A small run that carries its state, on documents that begin and end anywhere in the rows of four steps."""
    lines = [json.dumps({"text": "call me ishmael, some years ago "[i % 7 :] * (1 + i % 3)}) for i in range(60)]
    (directory / "a.jsonl").write_text("\n".join(lines))
    cfg = small("dense").set_in("input.dataset.source", JsonLines.Config(files=[f"{directory}/a.jsonl"]))
    cfg = shortened(carried_state.with_carried_state(cfg).set(mesh=mesh, save_every=2), directory / "run")
    return cfg.set_in("learner.schedule", ConstantSchedule.Config(peak=rate))


def losses_of(cfg) -> list[float]:
    return [report["loss"] for report in reported(cfg) if "loss" in report]


def unbroken(cfg, steps=4) -> list[float]:
    """The loss of each step, by one call of the model over all of the rows, joined: without rows, and without state."""
    batches = list(islice(cfg.input.build(), steps))
    joined = {name: np.concatenate([batch[name] for batch in batches], axis=1) for name in batches[0]}
    joined["segments"] = np.cumsum(joined["positions"] == 0, axis=1)
    length = batches[0]["tokens"].shape[1]
    assert (joined["positions"][:, [length * n for n in range(1, steps)]] > 0).any()
    model = cfg.model.model.build(path="model")
    found = jax.jit(lambda params: call(model, params, joined, method="log_probs")[0])(initial(cfg)["model"])
    parts = zip(*(np.split(np.asarray(each), steps, axis=1) for each in (found, joined["weights"])), strict=True)
    return [float(-(each * weights).sum() / weights.sum()) for each, weights in parts]


def test_with_its_state_carried_from_step_to_step_the_loss_is_that_of_unbroken_documents(tmp_path):
    cfg = carried(tmp_path)
    cfg.build().run()
    wanted = unbroken(cfg)
    np.testing.assert_allclose(losses_of(cfg), wanted, rtol=1e-5)
    assert max(np.abs(np.diff(wanted))) > 1e-3, "the steps are not alike"


@pytest.mark.long
def test_on_a_mesh_a_carried_state_is_the_same_and_a_run_goes_on_with_it(tmp_path):
    cfg = carried(tmp_path, parse_mesh("data=4,fsdp=2"))
    cfg.build().run()
    np.testing.assert_allclose(losses_of(cfg), unbroken(cfg), rtol=1e-5)
    learning = carried(tmp_path, parse_mesh("data=4,fsdp=2"), rate=1e-2).set(directory=str(tmp_path / "learning"))
    state = learning.build().run()
    assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(state.run_state))
    shutil.rmtree(tmp_path / "learning/checkpoints/step_4")
    equal(learning.build().run(), state)


def test_rows_with_a_state_of_their_own_are_never_split(tmp_path):
    with pytest.raises(ConfigError, match="num_microbatches"):
        carried(tmp_path).set(num_microbatches=2).build()


@pytest.mark.long
def test_dpo_of_adapters_alone_is_measured_against_the_model_without_them(tmp_path):
    with_lora = replace_all(Linear.Config, lambda old: LoRALinear.Config(rank=2, inner=old))
    cfg = shortened(applied("dpo", "dense"), tmp_path)
    cfg = with_lora(cfg).set_in("model.reference", None).set_in("learner.trainable", ("*.lora_*",))
    state = cfg.build().run()
    assert learns(reported(cfg))[0] == pytest.approx(math.log(2), rel=1e-6)
    before = initial(cfg)
    changed = jax.tree.map(lambda old, new: bool(np.any(old != new)), before, state.params)
    paths = [(keys[-1].key, moved) for keys, moved in jax.tree_util.tree_leaves_with_path(changed)]
    assert {name for name, moved in paths if moved} == {"lora_a", "lora_b"}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_at_most_ten_lines_are_outside_of_its_classes(file):
    assert count_lines(file.read_text("utf-8")).outside <= 10
    assert file.stem in FEATURES
