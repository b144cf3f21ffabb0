# SPDX-License-Identifier: Apache-2.0
"""`Int8Linear` is `DenseLinear` but for the rounding of its product."""

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import config_for, replace_all
from dovetail.module import call, constant, specs
from dovetail.nn import DenseLinear, Int8Linear
from dovetail.optim import ConstantSchedule, Learner
from dovetail.train import init_state, train_step
from support.compare import assert_same
from support.models import lm, random_params
from support.numeric import assert_close, normal

SHAPES = {"in_shape": (2, 8), "out_shape": (3, 4), "in_axes": ("a", "b"), "out_axes": ("c", "d")}
DENSE = DenseLinear.Config(bias=True, init=config_for(constant, value=2.0), **SHAPES)
to_int8 = replace_all(DenseLinear.Config, Int8Linear.Config())


def test_it_takes_over_bias_initial_value_and_parameters():
    quantised = to_int8(DENSE)
    assert (quantised.bias, quantised.init) == (True, DENSE.init)
    dense, new = specs(DENSE.build()), specs(quantised.build())
    assert {name: spec.axes for name, spec in new.items()} == {name: spec.axes for name, spec in dense.items()}


def test_values_are_within_a_percent_of_the_dense_ones_and_gradients_and_matrix_are_theirs():
    # 16 terms, each factor off by at most 1/254 of the largest in its row or column.
    cfg = DENSE.set(bias=False)
    dense, quantised = cfg.build(), to_int8(cfg).build()
    params, x, slope = random_params(dense), normal(1, (5, 2, 8)), normal(2, (5, 3, 4))
    want, exact = jax.vjp(lambda params, x: call(dense, params, x)[0], params, x)
    got, straight = jax.vjp(lambda params, x: call(quantised, params, x)[0], params, x)
    assert_close(got, want, 1e-2)
    assert_same(straight(slope), exact(slope))
    np.testing.assert_array_equal(call(quantised, params, method="matrix")[0], params["weight"])


def test_a_model_learns_as_in_float32():
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 11, (4, 9)))
    batch = {
        "tokens": ids[:, :-1],
        "targets": ids[:, 1:],
        "weights": jnp.ones((4, 8)),
        "segments": jnp.ones((4, 8), jnp.int32),
    }
    batch["positions"] = jnp.broadcast_to(jnp.arange(8), (4, 8))

    def losses(cfg):
        model = cfg.build()
        learner = Learner.Config(schedule=ConstantSchedule.Config(peak=1e-2)).build(specs=specs(model))
        step = jax.jit(train_step(model, learner, seed=0, num_microbatches=1, dtype=None))
        state, found = init_state(random_params(model), learner), []
        for _ in range(20):
            state, metrics = step(state, batch)
            found.append(float(metrics["token_loss"]))
        return np.array(found)

    exact, rounded = losses(lm()), losses(to_int8(lm()))
    assert exact[-1] < exact[0] - 0.5
    np.testing.assert_allclose(rounded, exact, atol=0.05)
