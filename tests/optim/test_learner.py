# SPDX-License-Identifier: Apache-2.0
"""The learner as a whole: against a reference in float64, skipped, resumed, donated, abstract and sharded."""

import dataclasses
import functools
import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dovetail.config import ConfigError, from_json, to_json
from dovetail.module import abstract, call, init
from dovetail.module import specs as specs_of
from dovetail.optim import (
    EMA,
    SGD,
    Adafactor,
    AdamW,
    ConstantSchedule,
    CosineSchedule,
    Group,
    Learner,
    Lion,
    Muon,
    Skip,
    WeightDecay,
    WSDSchedule,
    value_and_grad,
)
from dovetail.optim._groups import by_path
from support.compare import assert_same
from support.transformer import decoder

SCHEDULE = CosineSchedule.Config(peak=0.1, warmup_steps=2, total_steps=8)
CFG = Learner.Config(
    schedule=SCHEDULE, clip_norm=5.0, ema=EMA.Config(decay=0.9), skip=Skip.Config(), report_update_norm=True
)
SPIKES = Skip.Config(spike_factor=3.0, window=4, min_window=1)
OPTIMIZERS = {
    "adamw": AdamW.Config(),
    "adamw in bfloat16": AdamW.Config(mu_dtype=jnp.bfloat16, nu_dtype=jnp.bfloat16),
    "lion": Lion.Config(),
    "sgd": SGD.Config(momentum=0.9),
    "adafactor": Adafactor.Config(min_dim_size_to_factor=2, momentum=0.9),
    "muon": Muon.Config(),
}


@pytest.fixture(scope="module")
def compiled(specs):
    """A function that gives learner and jitted `init` and `update` of a config; each is compiled once for all tests."""

    @functools.cache
    def make(cfg):
        learner = cfg.build(specs=specs)
        return learner, jax.jit(learner.init), jax.jit(learner.update)

    return make


def run(update, params, state, grads):
    """Returns parameters, state and the metrics of all steps."""
    metrics = []
    for g in grads:
        params, state, metric = update(params, g, state, loss=jnp.float32(1.0))
        metrics.append(jax.tree.map(np.asarray, metric))
    return params, state, metrics


def assert_identical(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(np.testing.assert_array_equal, got, want)


def learner_reference(params, grads, decays):
    """Yields parameters, average and metrics of AdamW, clipped at 5, decayed, and averaged with 0.9."""
    m = v = dict.fromkeys(params, 0.0)
    ema = params
    for t, step in enumerate(grads, 1):
        warm = (t - 1) / 2 if t < 3 else 0.5 * (1 + np.cos(np.pi * min((t - 3) / 6, 1)))
        norm = np.sqrt(sum(np.sum(g**2) for g in step.values()))
        g = {path: x * min(1, 5 / norm) for path, x in step.items()}
        m = {path: 0.9 * m[path] + 0.1 * g[path] for path in g}
        v = {path: 0.95 * v[path] + 0.05 * g[path] ** 2 for path in g}
        adam = {path: m[path] / (1 - 0.9**t) / (np.sqrt(v[path] / (1 - 0.95**t)) + 1e-8) for path in g}
        old = params
        params = {path: p - 0.1 * warm * (adam[path] + decays[path] * p) for path, p in params.items()}
        change = np.sqrt(sum(np.sum((params[path] - old[path]) ** 2) for path in params))
        ema = {path: 0.9 * ema[path] + 0.1 * params[path] for path in params}
        yield params, ema, 0.1 * warm, norm, change


def test_clipped_decayed_scheduled_averaged_and_skipped_as_in_the_reference(specs, arrays, compiled):
    # Gradients below and above the limit of 5; the fourth is not a number.
    grads: list[Any] = [jax.tree.map(lambda x, i=i: x * 0.1 * (1 + i), arrays(i)) for i in range(6)]
    bad = jax.tree.map(lambda x: x * np.where(x == x.max(), np.nan, 1.0), grads[3])
    cfg = CFG.set(
        weight_decay=WeightDecay.Config(rate=0.2),
        groups=(Group(paths=("embedding.*",), decay=0.3), Group(paths=("up.*",), decay=0.0)),
    )
    _, make, update = compiled(cfg)
    params = jax.tree.map(jnp.float32, arrays(99))
    params, state, metrics = run(update, params, make(params), [*grads[:3], bad, *grads[4:]])
    decays = dict.fromkeys(by_path(specs), 0.0) | {"embedding.table": 0.3}
    decays |= dict.fromkeys(["layer.attention.query.weight", "layer.experts.weight", "head.weight"], 0.2)
    good = [by_path(g) for g in [*grads[:3], *grads[4:]]]
    wanted = list(learner_reference(by_path(arrays(99)), good, decays))
    assert_same(by_path(params), {path: np.float32(p) for path, p in wanted[-1][0].items()})
    assert_same(by_path(state.ema), {path: np.float32(p) for path, p in wanted[-1][1].items()})
    assert (int(state.num_updates), int(state.num_skipped)) == (5, 1)
    assert [int(m["skipped"]) for m in metrics] == [0, 0, 0, 1, 1, 1]
    del metrics[3]
    for metric, (now, _, rate, norm, change) in zip(metrics, wanted, strict=True):
        size = np.sqrt(sum(np.sum(p**2) for p in now.values()))
        got = [metric[key] for key in ("learning_rate", "grad_norm", "update_norm", "param_norm")]
        np.testing.assert_allclose(got, [rate, norm, change, size], rtol=1e-5)
    assert max(w[3] for w in wanted) > 5 > min(w[3] for w in wanted)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_skipped_step_changes_nothing_but_what_counts_it(optimizer, arrays, compiled):
    _, make, update = compiled(CFG.set(optimizer=OPTIMIZERS[optimizer], skip=SPIKES))
    params = jax.tree.map(jnp.float32, arrays(0))
    params, state, _ = run(update, params, make(params), [arrays(1), arrays(2)])
    spike = jax.tree.map(lambda x: 10 * x, arrays(3))
    for grads, loss in ((spike, 1.0), (arrays(3), np.nan)):
        after, new, metrics = update(params, grads, state, loss=jnp.float32(loss))
        assert_identical(after, params)
        assert_identical(new._replace(num_skipped=state.num_skipped, skip=state.skip), state)
        assert_identical(new.skip._replace(streak=state.skip.streak), state.skip)
        assert (int(metrics["skipped"]), float(metrics["update_norm"])) == (1, 0.0)
        np.testing.assert_allclose(metrics["learning_rate"], 0.1)
    after, new, metrics = update(params, arrays(3), state, loss=jnp.float32(1.0))
    assert (int(metrics["skipped"]), int(new.num_updates)) == (0, 3)


def test_without_a_branch_a_skipped_step_is_the_same(specs, arrays, compiled):
    cfg = CFG.set(skip=SPIKES)
    _, make, update = compiled(cfg)
    params = jax.tree.map(jnp.float32, arrays(0))
    grads = [arrays(1), jax.tree.map(lambda x: 10 * x, arrays(2)), arrays(3)]
    found = run(jax.jit(cfg.build(specs=specs, branches=False).update), params, make(params), grads)
    assert_same(found, run(update, params, make(params), grads))
    assert int(found[1].num_skipped) == 1


def test_without_skip_nothing_is_skipped(arrays, compiled):
    _, make, update = compiled(CFG.set(skip=None, clip_norm=None, weight_decay=None, ema=None, optimizer=SGD.Config()))
    grads = arrays(1)
    grads["up"]["weight"][0, 0] = np.nan
    params = jax.tree.map(jnp.float32, arrays(0))
    params, state, _ = run(update, params, make(params), [arrays(2), grads])
    assert np.isnan(params["up"]["weight"][0, 0])
    assert (int(state.num_skipped), state.ema, state.skip) == (0, (), ())
    # The first update has the learning rate 0, the second 0.05; nothing is clipped, nothing decays.
    np.testing.assert_allclose(
        params["head"]["weight"], arrays(0)["head"]["weight"] - 0.05 * grads["head"]["weight"], rtol=1e-5
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_frozen_parameter_stays_and_changes_nothing_else(name, specs, arrays, compiled):
    cfg = CFG.set(optimizer=OPTIMIZERS[name], skip=SPIKES)
    _, make, update = compiled(cfg)
    still = dataclasses.replace(specs["layer"]["experts"]["weight"], frozen=True)
    learner = cfg.build(specs={**specs, "still": still})
    first, second, value = (jnp.float32(arrays(i)["layer"]["experts"]["weight"]) for i in range(3))
    params = jax.tree.map(jnp.float32, arrays(0))
    grads = [arrays(1), arrays(2)]
    # Trained, it would be clipped, and its gradients taken for spikes.
    big = [{**grads[0], "still": 1e3 * first}, {**grads[1], "still": 1e6 * second}]
    want = run(update, params, make(params), grads)
    got = run(jax.jit(learner.update), {**params, "still": value}, learner.init({**params, "still": value}), big)
    assert_identical(got[0].pop("still"), value)
    assert not jax.tree.leaves(got[1].ema.pop("still"))
    # But for the empty place of the parameter in the state of optax, all else is the same.
    assert_same(jax.tree.leaves(got[:2]), jax.tree.leaves(want[:2]))
    assert_same([m["grad_norm"] for m in got[2]], [m["grad_norm"] for m in want[2]])


def saved_and_restored(state, like):
    """Returns the state after a way through a file of plain arrays, put back into an abstract one."""
    file = io.BytesIO()
    leaves = jax.tree.leaves(state)
    np.savez(file, *[np.asarray(x).view(np.uint16) if x.dtype == jnp.bfloat16 else np.asarray(x) for x in leaves])
    file.seek(0)
    loaded = list(np.load(file).values())
    shapes, structure = jax.tree.flatten(like)
    assert len(loaded) == len(shapes)
    return jax.tree.unflatten(structure, [jnp.asarray(a.view(s.dtype)) for a, s in zip(loaded, shapes, strict=True)])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_run_is_the_unbroken_one(name, specs, arrays, compiled):
    cfg = CFG.set(optimizer=OPTIMIZERS[name], skip=SPIKES)
    _, make, update = compiled(cfg)
    params = jax.tree.map(jnp.float32, arrays(0))
    grads = [jax.tree.map(jnp.float32, arrays(i)) for i in range(1, 5)]
    whole = run(update, params, make(params), grads)
    half, state, _ = run(update, params, make(params), grads[:2])
    like = jax.eval_shape(from_json(to_json(cfg)).build(specs=specs).init, params)
    resumed = run(update, half, saved_and_restored(state, like), grads[2:])
    assert_identical(resumed[:2], whole[:2])


def kinds(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_shapes_and_dtypes_out_are_those_in(name, dtype, specs):
    learner = CFG.set(optimizer=OPTIMIZERS[name], skip=SPIKES).build(specs=specs)
    params = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, dtype), specs)
    state = jax.eval_shape(learner.init, params)
    after, new, _ = jax.eval_shape(learner.update, params, params, state)
    assert (kinds(after), kinds(new)) == (kinds(params), kinds(state))


def few(tree):
    """Returns a part of the parameters, for what is slow to compile."""
    return {"experts": tree["layer"]["experts"], "norm": tree["layer"]["norm"], "up": tree["up"]}


def test_jit_is_eager(specs, arrays):
    learner = CFG.set(optimizer=OPTIMIZERS["muon"], skip=SPIKES).build(specs=few(specs))
    params, grads = (jax.tree.map(jnp.float32, few(arrays(seed))) for seed in (0, 1))
    state = learner.init(params)
    state = state._replace(num_updates=state.num_updates + 3)
    assert_same(learner.update(params, grads, state), jax.jit(learner.update)(params, grads, state))


def test_parameters_and_state_can_be_donated(arrays, compiled):
    learner, make, _ = compiled(CFG.set(optimizer=SGD.Config(momentum=0.9), skip=SPIKES))
    update = jax.jit(learner.update, donate_argnums=(0, 2))
    for start in (make, learner.init):
        params = jax.tree.map(jnp.float32, arrays(0))
        state = start(params)
        before = jax.tree.leaves((params, state))
        update(params, jax.tree.map(jnp.float32, arrays(1)), state)
        assert all(leaf.is_deleted() for leaf in before)


@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_sharded_is_single(name, specs, arrays):
    learner = CFG.set(optimizer=OPTIMIZERS[name], skip=SPIKES).build(specs=few(specs))
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("fsdp", "tensor"))
    names = {"embed": "fsdp", "mlp": "tensor"}
    shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, PartitionSpec(*(names.get(axis) for axis in spec.axes))), few(specs)
    )
    replicated = NamedSharding(mesh, PartitionSpec())

    def values(seed):
        return jax.tree.map(jnp.float32, few(arrays(seed)))

    params = jax.device_put(values(0), shardings)
    places = learner.like_params(params, shardings, replicated)
    state = jax.jit(learner.init, out_shardings=places)(params)
    update = jax.jit(learner.update, out_shardings=(shardings, places, replicated))
    got = run(update, params, state, [jax.device_put(values(i), shardings) for i in (1, 2)])
    want = run(jax.jit(learner.update), values(0), jax.jit(learner.init)(values(0)), [values(1), values(2)])
    assert_same(got, want)
    assert got[1].ema["up"]["weight"].sharding.spec == PartitionSpec("fsdp", "tensor")
    like_experts = [leaf for leaf in jax.tree.leaves(got[1]) if leaf.shape == specs["layer"]["experts"]["weight"].shape]
    assert [leaf.sharding.spec for leaf in like_experts] == [PartitionSpec(None, None, "tensor", "fsdp")] * 2


def test_all_of_it_works_on_shapes_alone():
    model = decoder().build()
    learner = CFG.build(specs=specs_of(model))
    params = abstract(model)
    state = jax.eval_shape(learner.init, params)
    after, new, metrics = jax.eval_shape(learner.update, params, params, state)
    assert (after, new) == (params, state)
    assert {key: (value.shape, value.dtype.name) for key, value in metrics.items()} == {
        "learning_rate": ((), "float32"),
        "grad_norm": ((), "float32"),
        "update_norm": ((), "float32"),
        "param_norm": ((), "float32"),
        "skipped": ((), "int32"),
    }


def test_a_decoder_learns():
    model = decoder(num_layers=2).build()
    cfg = Learner.Config(optimizer=Muon.Config(), schedule=ConstantSchedule.Config(peak=0.03, warmup_steps=5))
    learner = cfg.build(specs=specs_of(model))
    ids = jnp.arange(64).reshape(8, 8) % 7
    batch = {"ids": ids, "weight": (ids != 3).astype(jnp.float32)}

    def loss_fn(params, batch, rng):
        logits, _ = call(model, params, batch["ids"], train=True, rng=rng)
        log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), batch["ids"][:, 1:, None], axis=-1)
        weight = batch["weight"][:, 1:]
        return -jnp.sum(log_probs[..., 0] * weight), jnp.sum(weight), {}

    @jax.jit
    def step(params, state, rng):
        (loss, _, _), grads = value_and_grad(loss_fn, params, batch, rng, num_microbatches=2)
        params, state, _ = learner.update(params, grads, state, loss=loss)
        return params, state, loss

    params = jax.jit(lambda key: init(model, key))(jax.random.key(0))
    state, losses = jax.jit(learner.init)(params), []
    for i in range(40):
        params, state, loss = step(params, state, jax.random.key(i))
        losses.append(float(loss))
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"clip_norm": 0.0}, "learner (Learner): clip_norm is 0.0, expected a positive number, or None."),
        (
            {"trainable": ("up.weights",)},
            "learner (Learner): trainable: 'up.weights' fits no parameter. Nearest are:\n"
            "    up.weight\n    head.weight\n    layer.experts.weight\n"
            "  A pattern is compared with the whole path; * stands for any characters.",
        ),
    ],
)
def test_a_wrong_config_is_refused_when_built(change, message, specs):
    with pytest.raises(ConfigError) as e:
        CFG.set(**change).build(specs=specs, path="learner")
    assert str(e.value) == message


def test_what_is_missing_is_reported_together(specs):
    with pytest.raises(ConfigError) as e:
        Learner.Config(schedule=WSDSchedule.Config()).build(specs=specs)
    assert str(e.value) == (
        "Learner.Config: 2 required fields are not set:\n"
        "  schedule.decay_steps: int\n"
        "  schedule.peak: float\n"
        "  Set them, as in cfg.set_in('schedule.decay_steps', ...)."
    )


def test_parameters_of_another_model_are_refused(specs, arrays):
    params = arrays(0)
    params["extra"] = {"weight": np.ones((2, 2))}
    params["up"]["weight"] = np.ones((4, 7))
    del params["head"]
    with pytest.raises(ConfigError) as e:
        CFG.build(specs=specs).init(params)
    assert str(e.value) == (
        "(root) (Learner): the parameters differ from the specs it was built with:\n"
        "  head.weight: missing, specs: (4, 5)\n"
        "  up.weight: (4, 7), specs: (4, 6)\n"
        "  extra.weight: (2, 2), specs: missing"
    )


def test_what_is_not_trained_stays_without_state_decay_or_a_part_in_the_norm(specs, arrays):
    learner = CFG.set(trainable=("layer.attention.*", "up.weight"), schedule=ConstantSchedule.Config(peak=0.1)).build(
        specs=specs
    )
    params, grads = (jax.tree.map(np.float32, arrays(seed)) for seed in (0, 1))
    state = learner.init(params)
    new, _, metrics = learner.update(params, grads, state)
    trained = {"layer.attention.query.weight", "layer.attention.query.bias", "up.weight"}
    before, after, slopes = by_path(params), by_path(new), by_path(grads)
    assert {path for path in before if np.any(before[path] != after[path])} == trained
    norm = np.sqrt(sum(np.sum(np.square(slopes[path], dtype=np.float64)) for path in trained))
    np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-6)
    assert len(jax.tree.leaves(state.optimizer)) == 2 * len(trained) + 1, "two moments each, and a count"


def test_a_pattern_of_what_is_trained_must_fit_something(specs):
    with pytest.raises(ConfigError, match=r"trainable: '\*\.lora_\*' fits no parameter"):
        CFG.set(trainable=("*.lora_*",)).build(specs=specs)
    with pytest.raises(ConfigError, match=r"trainable is .*expected at least one path or pattern"):
        CFG.set(trainable=()).build(specs=specs)
