# SPDX-License-Identifier: Apache-2.0
"""Muon against its definition in NumPy, both in float64: each matrix of a stack, and each expert, on its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import ParamSpec, constant
from dovetail.optim import Adafactor, AdamW, Muon
from dovetail.optim._groups import by_path

STEPS, BETA = 4, 0.95


def newton_schulz(x):
    """Five steps of X <- aX + b(XX')X + c(XX')^2 X, from X / |X|. Jordan 2024."""
    x = x / (np.linalg.norm(x) + 1e-8)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def muon_reference(grads, nesterov=True):
    """Yields orthogonalised momentum for one matrix."""
    m = 0.0
    for t, g in enumerate(grads, 1):
        m = BETA * m + (1 - BETA) * g
        hat = m / (1 - BETA**t)
        if nesterov:  # As optax corrects the bias of both; to Newton-Schulz only their ratio matters.
            hat = BETA * m / (1 - BETA ** (t + 1)) + (1 - BETA) * g / (1 - BETA**t)
        yield newton_schulz(hat)


# path: (shape of one matrix, as which its layers and experts are looped over)
MATRICES = {
    "layer.attention.query.weight": (4, 6),  # [3 layers, 4, 2 heads, 3]
    "layer.experts.weight": (6, 4),  # [3 layers, 2 experts, 6, 4]
    "up.weight": (4, 6),
}


def run(cfg, specs, arrays):
    """Returns the directions of all steps, in float64."""
    with jax.enable_x64(True):
        make = cfg.build().transformation(specs)
        params = jax.tree.map(jnp.asarray, arrays(99))
        state, update, got = jax.jit(make.init)(params), jax.jit(make.update), []
        for seed in range(STEPS):
            directions, state = update(jax.tree.map(jnp.asarray, arrays(seed)), state, params)
            got.append(by_path(jax.tree.map(np.asarray, directions)))
    return got


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("rms", [0.2, None])
def test_each_matrix_is_orthogonalised_on_its_own(nesterov, rms, specs, arrays):
    got = run(Muon.Config(nesterov=nesterov, rms=rms, mu_dtype=jnp.float64), specs, arrays)
    for path, shape in MATRICES.items():
        rows, cols = shape
        scale = max(1, cols / rows) ** 0.5 if rms is None else rms * max(rows, cols) ** 0.5
        grads = np.stack([by_path(arrays(seed))[path].reshape(-1, *shape) for seed in range(STEPS)])
        for i in range(grads.shape[1]):
            for t, want in enumerate(muon_reference(grads[:, i], nesterov)):
                np.testing.assert_allclose(got[t][path].reshape(-1, *shape)[i], scale * want, rtol=1e-11, atol=1e-12)


def test_the_rest_goes_to_adamw_at_its_own_rate(specs, arrays):
    cfg = Muon.Config(rest=AdamW.Config(b2=0.9), rest_ratio=0.5)
    got, rates = run(cfg, specs, arrays), by_path(cfg.build().rates(specs))
    adam = run(AdamW.Config(b2=0.9), specs, arrays)
    rest = set(got[0]) - set(MATRICES)
    assert rest == {"embedding.table", "head.weight", "layer.attention.query.bias", "layer.norm.scale"}
    for t in range(STEPS):
        for path in rest:
            np.testing.assert_allclose(got[t][path], adam[t][path], rtol=1e-14)
    assert rates == dict.fromkeys(MATRICES, 1.0) | dict.fromkeys(rest, 0.5)


def test_the_rest_may_go_to_any_optimizer(specs, arrays):
    rest = Adafactor.Config(min_dim_size_to_factor=2)
    got, alone = run(Muon.Config(rest=rest), specs, arrays), run(rest, specs, arrays)
    np.testing.assert_array_equal(got[-1]["layer.norm.scale"], alone[-1]["layer.norm.scale"])


def test_singular_values_come_near_to_one():
    spec = ParamSpec((2, 16, 32), ("layers", None, None), constant(0.0), in_dims=(-2,), out_dims=(-1,), stack=1)
    make = Muon.Config(rms=None).build().transformation({"w": spec})
    grads = {"w": jax.random.normal(jax.random.key(0), spec.shape)}
    directions = jax.jit(lambda g: make.update(g, make.init(g), g)[0])(grads)
    sizes = np.linalg.svd(np.asarray(directions["w"], np.float64) / 2**0.5, compute_uv=False)
    assert sizes.shape == (2, 16)
    assert 0.6 < sizes.min() < sizes.max() < 1.3


def test_a_gradient_of_zero_gives_no_direction():
    spec = ParamSpec((4, 3), (None, None), constant(0.0), in_dims=(-2,), out_dims=(-1,))
    make = Muon.Config().build().transformation({"w": spec})
    got = jax.jit(lambda g: make.update(g, make.init(g), g)[0])({"w": jnp.zeros((4, 3))})
    np.testing.assert_array_equal(got["w"], np.zeros((4, 3)))


def test_no_matrix_at_all_is_an_error(specs):
    with pytest.raises(ConfigError) as e:
        Muon.Config().build(path="learner.optimizer").transformation(
            {"head": specs["head"], "norm": specs["embedding"]}
        )
    assert str(e.value) == (
        "learner.optimizer (Muon): none of the 2 parameters is a matrix between hidden activations.\n"
        "  Use another optimizer, or declare in_dims and out_dims of the parameters."
    )


@pytest.mark.parametrize(
    "cfg, message",
    [
        (Muon.Config(momentum=1.0), "(root) (Muon): momentum is 1.0, expected at least 0 and less than 1."),
        (Muon.Config(num_iterations=0), "(root) (Muon): num_iterations is 0, expected at least 1."),
        (Muon.Config(eps=0.0), "(root) (Muon): eps is 0.0, expected a positive number."),
        (Muon.Config(rms=-0.2), "(root) (Muon): rms is -0.2, expected a positive number, or None."),
        (Muon.Config(rest_ratio=-1.0), "(root) (Muon): rest_ratio is -1.0, expected at least 0."),
    ],
)
def test_out_of_range_is_refused_when_built(cfg, message):
    with pytest.raises(ConfigError) as e:
        cfg.build()
    assert str(e.value) == message
