# SPDX-License-Identifier: Apache-2.0
"""Groups of parameters: rates that scale decay too, by path, by spec and by layer, and projections after an update."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, config_for, from_json, override, to_json
from dovetail.optim import (
    EMA,
    SGD,
    Adafactor,
    AdamW,
    ConstantSchedule,
    Group,
    Learner,
    Muon,
    Skip,
    WeightDecay,
    is_matrix,
    unit_norm,
)
from dovetail.optim._groups import by_path

RATE, DECAY = 0.1, 0.2
BASE = Learner.Config(
    schedule=ConstantSchedule.Config(peak=RATE),
    weight_decay=WeightDecay.Config(rate=DECAY),
    ema=EMA.Config(decay=0.5),
    skip=Skip.Config(),
)
LAYER_RATES = (1.0, 0.5, 0.0)
GROUPS = (
    Group(paths=("embedding.*",), rate=0.0, decay=0.5),
    Group(paths=("layer.*",), select=is_matrix, layer_rates=LAYER_RATES),
    Group(select=is_matrix, rate=2.0, decay=0.0),
)
UNIT = config_for(unit_norm)


def updated(cfg, specs, arrays, grads=None):
    """Returns parameters and state after one update from the same start, by path."""
    learner = cfg.build(specs=specs)
    params = jax.tree.map(jnp.float32, arrays(0))

    @jax.jit
    def run(params, grads):
        return learner.update(params, grads, learner.init(params), loss=jnp.float32(1.0))[:2]

    new, state = run(params, jax.tree.map(jnp.float32, arrays(1) if grads is None else grads))
    return by_path(jax.device_get(params)), by_path(jax.device_get(new)), jax.device_get(state)


@pytest.mark.parametrize(
    "optimizer",
    [AdamW.Config(), Adafactor.Config(min_dim_size_to_factor=2, momentum=0.9), Muon.Config(rest_ratio=0.5)],
    ids=["adamw", "adafactor", "muon"],
)
def test_rates_by_path_spec_and_layer_scale_direction_and_decay(optimizer, specs, arrays):
    before, plain, _ = updated(BASE.set(optimizer=optimizer, weight_decay=None), specs, arrays)
    _, grouped, state = updated(BASE.set(optimizer=optimizer, groups=GROUPS), specs, arrays)
    by_layer = np.array(LAYER_RATES)
    wanted = {  # Rate and decay.
        "embedding.table": (0.0, 0.5),
        "head.weight": (2.0, 0.0),
        "up.weight": (2.0, 0.0),
        "layer.attention.query.weight": (by_layer.reshape(3, 1, 1, 1), DECAY),
        "layer.experts.weight": (by_layer.reshape(3, 1, 1, 1), DECAY),
        "layer.attention.query.bias": (1.0, 0.0),
        "layer.norm.scale": (1.0, 0.0),
    }
    assert grouped.keys() == wanted.keys()
    for path, (rate, decay) in wanted.items():
        step = before[path] - plain[path] + RATE * decay * before[path]
        np.testing.assert_allclose(grouped[path], before[path] - rate * step, rtol=1e-5, atol=1e-6, err_msg=path)
    np.testing.assert_array_equal(grouped["embedding.table"], before["embedding.table"])
    np.testing.assert_array_equal(grouped["layer.experts.weight"][2], before["layer.experts.weight"][2])
    ema = by_path(state.ema)["head.weight"]
    np.testing.assert_allclose(ema, (before["head.weight"] + grouped["head.weight"]) / 2, rtol=1e-6)


def test_what_an_optimizer_does_not_move_does_not_decay(specs, arrays):
    before, after, _ = updated(BASE.set(optimizer=Muon.Config(rest_ratio=0.0)), specs, arrays)
    np.testing.assert_array_equal(after["head.weight"], before["head.weight"])
    assert (after["up.weight"] != before["up.weight"]).any()


PROJECTED = (Group(paths=("layer.*", "up.*"), select=is_matrix, project=UNIT),)


def test_a_projection_follows_each_update_of_each_layer_and_the_average_has_its_result(specs, arrays):
    cfg = BASE.set(optimizer=SGD.Config(), groups=PROJECTED, clip_norm=None)
    before, after, state = updated(cfg, specs, arrays)
    for path, dim in {"layer.attention.query.weight": 1, "layer.experts.weight": 3, "up.weight": 0}.items():
        moved = (1 - RATE * DECAY) * before[path] - RATE * by_path(arrays(1))[path]
        want = moved / np.linalg.norm(moved, axis=dim, keepdims=True)
        np.testing.assert_allclose(after[path], want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(by_path(state.ema)[path], (before[path] + after[path]) / 2, rtol=1e-5, atol=1e-6)
    assert not np.allclose(np.linalg.norm(after["head.weight"], axis=0), 1.0)


def test_a_skipped_step_is_not_projected(specs, arrays):
    cfg = BASE.set(optimizer=SGD.Config(), groups=PROJECTED)
    before, after, _ = updated(cfg, specs, arrays, grads=jax.tree.map(lambda x: x * np.nan, arrays(1)))
    jax.tree.map(np.testing.assert_array_equal, after, before)


def test_rates_are_those_of_all_layers_of_nested_stacks_in_the_order_they_run(specs, arrays):
    spec = specs["layer"]["norm"]["scale"].stacked(2)
    cfg = BASE.set(groups=(Group(layer_rates=(1, 2, 3, 4, 5, 6)),), optimizer=SGD.Config(), clip_norm=None)
    values = [jnp.zeros(spec.shape), jnp.ones(spec.shape)]
    learner = cfg.build(specs={"scale": spec})
    params = {"scale": values[0]}
    new, _, _ = learner.update(params, {"scale": values[1]}, learner.init(params))
    np.testing.assert_allclose(-new["scale"][..., 0] / RATE, np.arange(1, 7).reshape(2, 3), rtol=1e-6)


def test_the_learner_says_which_group_each_parameter_is_in(specs):
    frozen = {**specs, "still": dataclasses.replace(specs["up"]["weight"], frozen=True)}
    groups = (*GROUPS[:2], Group(paths=("head.*",), rate=2.0, project=config_for(unit_norm, axis="vocab")))
    assert str(BASE.set(groups=groups).build(specs=frozen)) == (
        "parameter                     group      rate              decay  project\n"
        "embedding.table               groups[0]  0                 0.5\n"
        "head.weight                   groups[2]  2                 0.2    yes\n"
        "layer.attention.query.bias    -          1                 0\n"
        "layer.attention.query.weight  groups[1]  0 to 1, by layer  0.2\n"
        "layer.experts.weight          groups[1]  0 to 1, by layer  0.2\n"
        "layer.norm.scale              -          1                 0\n"
        "still                         frozen\n"
        "up.weight                     -          1                 0.2"
    )


def test_groups_survive_json_and_are_set_by_path():
    cfg = BASE.set(groups=(*GROUPS, *PROJECTED))
    assert from_json(to_json(cfg)) == cfg
    assert override(cfg, ["groups[0].rate=0.3"]).groups[0].rate == 0.3


def halved(value, spec):
    return value[..., : value.shape[-1] // 2]


def halving():
    return halved


@pytest.mark.parametrize(
    "groups, message",
    [
        (
            (Group(paths=("up.weights",)),),
            "learner.groups[0]: paths: 'up.weights' fits no parameter. Nearest are:\n"
            "    up.weight\n    head.weight\n    layer.experts.weight\n"
            "  A pattern is compared with the whole path; * stands for any characters.",
        ),
        (
            (Group(), Group(paths=("up.*",))),
            "learner.groups[1]: no parameter is in this group: all that it fits are in groups before it. "
            "Reorder the groups, or leave it out.",
        ),
        (
            (Group(paths=("*.scale",), select=is_matrix),),
            "learner.groups[0]: no parameter is in this group: `select` takes none of those that paths fit. "
            "Reorder the groups, or leave it out.",
        ),
        ((Group(paths=()),), "learner.groups[0]: paths is (), expected at least one path or pattern."),
        ((Group(rate=-1.0),), "learner.groups[0]: rate is -1.0, expected numbers of at least 0."),
        ((Group(decay=math.nan),), "learner.groups[0]: decay is nan, expected numbers of at least 0."),
        (
            (Group(paths=("*.scale",), layer_rates=(1.0, 2.0)),),
            "learner.groups[0]: layer_rates has 2 numbers, but layer.norm.scale has 3 layers.\n"
            "  Give one for each layer, and groups of their own to parameters that are not of that stack.",
        ),
        (
            (Group(paths=("up.*",), layer_rates=(1.0, 2.0)),),
            "learner.groups[0]: layer_rates has 2 numbers, but up.weight is not of a stack.\n"
            "  Give one for each layer, and groups of their own to parameters that are not of that stack.",
        ),
        (
            (Group(paths=("*.bias",), project=UNIT),),
            "learner.groups[0]: project cannot change layer.attention.query.bias: unit_norm: 'embed' is 0 of the axes "
            "('heads', None), expected once.\n  Choose another axis, or parameters that have it.",
        ),
        (
            (Group(paths=("up.*",), project=config_for(halving)),),
            "learner.groups[0]: project makes float32[4, 3] of up.weight, which is float32[4, 6]. "
            "It has to keep shape and dtype.",
        ),
    ],
)
def test_a_wrong_group_is_refused_when_the_learner_is_built(groups, message, specs):
    with pytest.raises(ConfigError) as e:
        BASE.set(groups=groups).build(specs=specs, path="learner")
    assert str(e.value) == message
