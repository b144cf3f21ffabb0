# SPDX-License-Identifier: Apache-2.0
"""AdamW, Lion and SGD against their definitions in NumPy, both in float64; and any transformation of optax."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail.config import ConfigError, config_for, find, replace_all
from dovetail.optim import SGD, AdamW, ConstantSchedule, FromOptax, Learner, Lion, Optimizer

STEPS = 5
F64: dict[str, Any] = {"mu_dtype": jnp.float64, "nu_dtype": jnp.float64}
MU64: dict[str, Any] = {"mu_dtype": jnp.float64}


def adamw_reference(grads, b1, b2, eps, nesterov=False):
    """Yields directions. Loshchilov and Hutter 2019, algorithm 2; with Nesterov momentum: Dozat 2016."""
    m = v = 0.0
    for t, g in enumerate(grads, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        m_hat = m / (1 - b1**t)
        if nesterov:
            m_hat = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        yield m_hat / (np.sqrt(v / (1 - b2**t)) + eps)


def lion_reference(grads, b1, b2):
    """Yields directions. Chen et al. 2023, algorithm 2."""
    m = 0.0
    for g in grads:
        yield np.sign(b1 * m + (1 - b1) * g)
        m = b2 * m + (1 - b2) * g


def sgd_reference(grads, momentum, nesterov):
    """Yields directions. Sutskever et al. 2013, in the form of PyTorch."""
    trace = 0.0
    for g in grads:
        trace = momentum * trace + g
        yield g + momentum * trace if nesterov else trace


CASES: dict[str, tuple[Optimizer.Config, Any]] = {
    "adamw": (AdamW.Config(**F64), lambda gs: adamw_reference(gs, 0.9, 0.95, 1e-8)),
    "adamw, other rates": (
        AdamW.Config(b1=0.8, b2=0.999, eps=1e-3, **F64),
        lambda gs: adamw_reference(gs, 0.8, 0.999, 1e-3),
    ),
    "adamw, nesterov": (AdamW.Config(nesterov=True, **F64), lambda gs: adamw_reference(gs, 0.9, 0.95, 1e-8, True)),
    "lion": (Lion.Config(**MU64), lambda gs: lion_reference(gs, 0.9, 0.99)),
    "lion, other rates": (Lion.Config(b1=0.5, b2=0.7, **MU64), lambda gs: lion_reference(gs, 0.5, 0.7)),
    "sgd": (SGD.Config(), lambda gs: sgd_reference(gs, 0.0, False)),
    "sgd, momentum": (SGD.Config(momentum=0.9, **MU64), lambda gs: sgd_reference(gs, 0.9, False)),
    "sgd, nesterov": (SGD.Config(momentum=0.9, nesterov=True, **MU64), lambda gs: sgd_reference(gs, 0.9, True)),
}


@pytest.mark.parametrize("name", CASES)
def test_directions_are_those_of_the_definition(name, specs, arrays):
    cfg, reference = CASES[name]
    grads = [arrays(seed) for seed in range(STEPS)]
    with jax.enable_x64(True):
        make = cfg.build().transformation(specs)
        params = jax.tree.map(jnp.asarray, arrays(99))
        state, update = jax.jit(make.init)(params), jax.jit(make.update)
        got = []
        for g in grads:
            directions, state = update(jax.tree.map(jnp.asarray, g), state, params)
            got.append(jax.tree.map(np.asarray, directions))
    for i, gs in enumerate(zip(*map(jax.tree.leaves, grads), strict=True)):
        for step, want in enumerate(reference(gs)):
            direction = jax.tree.leaves(got[step])[i]
            assert direction.dtype == np.float64
            np.testing.assert_allclose(direction, want, rtol=1e-12, atol=1e-12)


def test_any_transformation_of_optax_can_be_the_optimizer(specs, arrays):
    cfg = FromOptax.Config(make=config_for(optax.scale_by_adam, b2=0.95))
    params = jax.tree.map(jnp.float32, arrays(0))
    makes = [c.build().transformation(specs) for c in (cfg, AdamW.Config())]
    results = [jax.jit(lambda p, m=make: m.update(p, m.init(p), p)[0])(params) for make in makes]
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_one_line_replaces_the_optimizer():
    cfg = Learner.Config(schedule=ConstantSchedule.Config(peak=1.0))
    assert replace_all(Optimizer.Config, Lion.Config())(cfg) == cfg.set(optimizer=Lion.Config())
    assert [path for path, _ in find(cfg, Optimizer.Config)] == ["optimizer"]


@pytest.mark.parametrize(
    "cfg, message",
    [
        (AdamW.Config(b1=1.0), "(root) (AdamW): b1 is 1.0, expected at least 0 and less than 1."),
        (AdamW.Config(b2=-0.1), "(root) (AdamW): b2 is -0.1, expected at least 0 and less than 1."),
        (AdamW.Config(b2=math.nan), "(root) (AdamW): b2 is nan, expected at least 0 and less than 1."),
        (AdamW.Config(eps=-1e-8), "(root) (AdamW): eps is -1e-08, expected at least 0."),
        (
            AdamW.Config(mu_dtype="bf16"),
            "(root) (AdamW): mu_dtype is 'bf16', expected a floating-point dtype such as jax.numpy.bfloat16.",
        ),
        (
            AdamW.Config(nu_dtype=jnp.dtype("int8")),
            "(root) (AdamW): nu_dtype is dtype('int8'), expected a floating-point dtype such as jax.numpy.bfloat16.",
        ),
        (
            AdamW.Config(b2=0.999, nu_dtype=jnp.bfloat16),
            "(root) (AdamW): b2 is 0.999, too near to 1 for a mean kept in bfloat16: it would not decay.\n"
            "  Use b2 <= 0.99609375, or nu_dtype=jax.numpy.float32.",
        ),
        (Lion.Config(b1=1.0), "(root) (Lion): b1 is 1.0, expected at least 0 and less than 1."),
        (Lion.Config(b2=2.0), "(root) (Lion): b2 is 2.0, expected at least 0 and less than 1."),
        (SGD.Config(momentum=1.0), "(root) (SGD): momentum is 1.0, expected at least 0 and less than 1."),
        (SGD.Config(nesterov=True), "(root) (SGD): nesterov is True, expected False where momentum is 0."),
        (
            FromOptax.Config(make=config_for(optax.constant_schedule, value=1.0)),
            "(root) (FromOptax): make gives <function",
        ),
    ],
)
def test_out_of_range_is_refused_when_built(cfg, message, specs):
    with pytest.raises(ConfigError) as e:
        cfg.build().transformation(specs)
    assert str(e.value).startswith(message)
    assert str(e.value) == message or str(e.value).endswith("expected an optax.GradientTransformation.")
