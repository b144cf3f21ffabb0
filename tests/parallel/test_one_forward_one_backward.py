# SPDX-License-Identifier: Apache-2.0
"""One forward, one backward: the same as accumulation on one device, in ticks and memory that do not grow."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, modify
from dovetail.module import Module, Remat, call, constant
from dovetail.optim import accumulate, value_and_grad
from dovetail.parallel import Mesh, layout_of, one_forward_one_backward
from support.compare import assert_same
from support.loops import Context, Repeat
from support.models import random_params
from support.pipelines import Layer, stored
from support.programs import temporary_bytes

ROWS, TIME, DIM, WORDS = 16, 3, Layer.DIM, 8


class Model(Module):
    """An embedding, layers, and a head that uses the embedding once more; a scale that all layers share is learned."""

    class Config(Module.Config):
        stack: Repeat.Config = Repeat.Config(layer=Layer.Config(), num_repeats=4)

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("embedding", (WORDS, DIM), axes=("vocab", None))
        self.param("scale", (1, TIME), axes=(None, None), init=constant(1.0))
        self.stack = self.child("stack", cfg.stack)

    def forward(self, ids, shift):
        x = self.stack(self.embedding[ids], Context({"shift": shift, "scale": self.scale, "offset": 0.5}))
        return jax.nn.log_softmax(x @ self.embedding.T)


class Twice(Module):
    """Goes through the same layers twice."""

    class Config(Module.Config):
        stack: Repeat.Config = Repeat.Config(layer=Layer.Config(), num_repeats=4)

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.stack = self.child("stack", cfg.stack)

    def forward(self, ids, shift):
        x = jnp.ones((*ids.shape, DIM))
        for _ in range(2):
            x = self.stack(x, Context({"shift": shift, "scale": jnp.ones((1, TIME)), "offset": 0.5}))
        return x


def loss_fn(model, layout, params, batch, rng):
    logits, collected = call(model, params, batch["ids"], batch["shift"], rng=rng, train=rng is not None, layout=layout)
    losses = -jnp.take_along_axis(logits, batch["targets"][:, :, None], axis=-1)[:, :, 0]
    weight = jnp.sum(batch["weights"])
    extra = sum(jnp.sum(value) for value in collected.losses.values())
    aux = {
        "hits": jnp.sum(jnp.argmax(logits, -1).astype(jnp.int32) == batch["targets"]),
        **collected.summaries,
        **collected.losses,
        **collected.updates,
    }
    return jnp.sum(losses * batch["weights"]) + extra * weight, weight, aux


def batch(rows=ROWS, dtype=np.float32):
    rng = np.random.default_rng(0)
    return {
        "ids": rng.integers(0, WORDS, (rows, TIME)).astype(np.int32),
        "targets": rng.integers(0, WORDS, (rows, TIME)).astype(np.int32),
        "shift": rng.normal(size=(rows, TIME)).astype(dtype),
        "weights": (np.arange(TIME) < rng.integers(0, TIME + 1, (rows, 1))).astype(dtype),
    }


def outcome(cfg, mesh, num_microbatches, rng=None, dtype: Any = np.float32):
    """The results on a mesh, and on one device."""
    model = cfg.build()
    params = jax.tree.map(lambda x: x.astype(dtype), random_params(model))
    layout = layout_of(mesh)
    want = jax.jit(partial(value_and_grad, partial(loss_fn, model, None), num_microbatches=num_microbatches))
    got = partial(value_and_grad, partial(loss_fn, model, layout), num_microbatches=num_microbatches)
    got = jax.jit(partial(got, schedule=one_forward_one_backward))
    with jax.set_mesh(mesh.on()):
        there = got(stored(model, params, layout), batch(dtype=dtype), rng)
    return jax.device_get(there), jax.device_get(want(params, batch(dtype=dtype), rng))


@pytest.fixture
def wide():
    """Float64, in which the order of sums does not show."""
    with jax.enable_x64(True):
        yield


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    "mesh, num_microbatches",
    [(Mesh(pipeline=2, data=2), 4), (Mesh(pipeline=4, data=2), 8), (Mesh(pipeline=4), 2)],
    ids=lambda x: x.text() if isinstance(x, Mesh) else str(x),
)
def test_values_gradients_and_reports_are_those_of_accumulation_on_one_device(mesh, num_microbatches):
    assert_same(*outcome(Model.Config(), mesh, num_microbatches, dtype=np.float64))


@pytest.mark.usefixtures("wide")
def test_random_numbers_are_those_of_accumulation_and_remat_changes_nothing():
    cfg = modify(Layer.Config, lambda layer: layer.set(remat=Remat()))(Model.Config())
    assert_same(*outcome(cfg, Mesh(pipeline=2, data=2), 4, rng=jax.random.key(3), dtype=np.float64))


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("remat", [None, Remat()], ids=["kept", "remat"])
def test_what_layers_publish_goes_with_the_microbatch_from_stage_to_stage_and_back(remat):
    cfg = modify(Layer.Config, lambda layer: layer.set(publishes=True, remat=remat))(Model.Config())
    assert_same(*outcome(cfg, Mesh(pipeline=2, data=2), 4, rng=jax.random.key(3), dtype=np.float64))


def programs(cfg, mesh, num_microbatches, rows, schedule=one_forward_one_backward):
    model = cfg.build()
    params, layout = random_params(model), layout_of(mesh)
    function = partial(value_and_grad, partial(loss_fn, model, layout))
    function = partial(function, num_microbatches=num_microbatches, schedule=schedule)
    return function, params, batch(rows)


def test_the_program_has_a_tick_for_each_microbatch_and_stages_less_one_to_warm_up_and_to_drain():
    mesh = Mesh(pipeline=4)
    with jax.set_mesh(mesh.on()):
        function, *args = programs(Model.Config(), mesh, 6, rows=12)
        outer = [eqn.params["length"] for eqn in jax.make_jaxpr(function)(*args).eqns if eqn.primitive.name == "scan"]
    assert outer == [3, 6, 3]


def test_memory_does_not_grow_with_the_number_of_microbatches():
    def bytes_of(schedule, microbatches):
        mesh = Mesh(pipeline=4, microbatches=microbatches)
        number = microbatches if schedule is one_forward_one_backward else 1
        with jax.set_mesh(mesh.on()):
            return temporary_bytes(*programs(Model.Config(), mesh, number, 64 * microbatches, schedule))

    few, many = (bytes_of(one_forward_one_backward, count) for count in (4, 16))
    forward_first_few, forward_first_many = (bytes_of(accumulate, count) for count in (4, 16))
    words = sum(leaf.nbytes for leaf in batch(64 * 12).values())
    assert many - few < 1.1 * words, "12 microbatches more: no more than their words"
    assert forward_first_many - forward_first_few > 10 * words


def refused(cfg):
    mesh = Mesh(pipeline=4)
    function, *args = programs(cfg, mesh, 4, rows=8)
    with jax.set_mesh(mesh.on()), pytest.raises(ConfigError) as error:
        jax.eval_shape(function, *args)
    return str(error.value)


def test_a_model_without_exactly_one_loop_to_cut_is_refused():
    assert "the stages divide; found none.\n  Use mesh.schedule=forward_first" in refused(
        Model.Config().set_in("stack.num_repeats", 6)
    )
    assert "the one at 'stack' is inside another transformation, such as the remat" in refused(
        Model.Config().set_in("stack.remat", Remat())
    )
    assert "found 2: 'stack', 'stack'" in refused(Twice.Config())
