# SPDX-License-Identifier: Apache-2.0
"""Adafactor against its definition in NumPy, both in float64, layer by layer; and against optax's own alias."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail.config import ConfigError
from dovetail.module import ParamSpec, constant
from dovetail.optim import Adafactor


def adafactor_reference(grads, param, *, factored, momentum=None):
    """Yields directions for one layer. Shazeer and Stern 2018, algorithms 4 and 5, with momentum after all else."""
    rows = cols = full = trace = 0.0
    for t, g in enumerate(grads, 1):
        decay = 1 - t**-0.8
        squares = g**2 + 1e-30
        if factored:
            small, large = np.argsort(g.shape)[-2:]
            rows = decay * rows + (1 - decay) * squares.mean(axis=large, keepdims=True)
            cols = decay * cols + (1 - decay) * squares.mean(axis=small, keepdims=True)
            second = rows * cols / rows.mean(axis=small, keepdims=True)
        else:
            second = full = decay * full + (1 - decay) * squares
        u = g / np.sqrt(second)
        u = u / max(1.0, np.sqrt(np.mean(u**2)))
        u = u * max(1e-3, np.sqrt(np.mean(param**2)))
        if momentum is not None:
            u = trace = momentum * trace + (1 - momentum) * u
        yield u


def spec(*shape):
    return ParamSpec(shape, (None,) * len(shape), constant(0.0))


# A stack of more layers than a layer has rows: factored as one array, the layers would be mixed.
SPECS = {"deep": spec(3, 4).stacked(7), "pair": spec(4, 5).stacked(2).stacked(3), "one": spec(2, 3, 4), "bias": spec(3)}


def values(seed):
    rng = np.random.default_rng(seed)
    # Layers of very different sizes: statistics over the whole stack would be those of the largest one.
    return {
        name: rng.normal(size=s.shape)
        * 10.0 ** rng.integers(-3, 3, s.shape[: s.stack] + (1,) * (len(s.shape) - s.stack))
        for name, s in SPECS.items()
    }


def layers(x, stack):
    """Returns the layers of a stacked array."""
    return list(x.reshape(-1, *x.shape[stack:]))


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_directions_are_those_of_the_definition_for_each_layer_alone(momentum):
    grads, params = [values(seed) for seed in range(4)], values(99)
    with jax.enable_x64(True):
        cfg = Adafactor.Config(min_dim_size_to_factor=3, momentum=momentum, mu_dtype=jnp.float64)
        make = cfg.build().transformation(SPECS)
        state, update = jax.jit(make.init)(jax.tree.map(jnp.asarray, params)), jax.jit(make.update)
        got = []
        for g in grads:
            directions, state = update(jax.tree.map(jnp.asarray, g), state, jax.tree.map(jnp.asarray, params))
            got.append(jax.tree.map(np.asarray, directions))
    for name, s in SPECS.items():
        for i, param in enumerate(layers(params[name], s.stack)):
            each = [layers(g[name], s.stack)[i] for g in grads]
            want = adafactor_reference(each, param, factored=name != "bias", momentum=momentum)
            for t, right in enumerate(want):
                np.testing.assert_allclose(layers(got[t][name], s.stack)[i], right, rtol=1e-6)  # optax: t**-0.8 in f32.


def test_unstacked_parameters_go_as_in_optax():
    specs = {"matrix": spec(5, 4), "bias": spec(3)}
    rng = np.random.default_rng(0)
    grads, params = (jax.tree.map(lambda s: jnp.float32(rng.normal(size=s.shape)), specs) for _ in range(2))
    ours = Adafactor.Config(min_dim_size_to_factor=2).build().transformation(specs)
    theirs = optax.adafactor(0.5, min_dim_size_to_factor=2)
    with jax.numpy_dtype_promotion("standard"):
        mine, right = (
            jax.jit(lambda g, p, m=make: m.update(g, m.init(p), p)[0])(grads, params) for make in (ours, theirs)
        )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(-0.5 * a, b, rtol=1e-6), mine, right)


def test_state_of_a_large_matrix_is_its_rows_and_columns():
    make = Adafactor.Config().build().transformation({"w": spec(300, 200).stacked(2)})
    state = jax.eval_shape(make.init, {"w": jax.ShapeDtypeStruct((2, 300, 200), jnp.float32)})
    assert sorted(leaf.size for leaf in jax.tree.leaves(state)) == [2, 2, 2 * 200, 2 * 300]  # And counts.


@pytest.mark.parametrize(
    "cfg, message",
    [
        (
            Adafactor.Config(decay_exponent=0.0),
            "(root) (Adafactor): decay_exponent is 0.0, expected more than 0 and at most 1.",
        ),
        (
            Adafactor.Config(min_dim_size_to_factor=0),
            "(root) (Adafactor): min_dim_size_to_factor is 0, expected at least 1.",
        ),
        (Adafactor.Config(clip_rms=0.0), "(root) (Adafactor): clip_rms is 0.0, expected a positive number, or None."),
        (Adafactor.Config(eps=0.0), "(root) (Adafactor): eps is 0.0, expected a positive number."),
        (
            Adafactor.Config(momentum=1.0),
            "(root) (Adafactor): momentum is 1.0, expected at least 0 and less than 1.",
        ),
    ],
)
def test_out_of_range_is_refused_when_built(cfg, message):
    with pytest.raises(ConfigError) as e:
        cfg.build()
    assert str(e.value) == message
