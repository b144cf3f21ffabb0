# SPDX-License-Identifier: Apache-2.0
"""The dtypes in which state is kept, and that computation is in float32 all the same."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from dovetail.optim import SGD, Adafactor, AdamW, Lion, Muon
from dovetail.optim._precision import kept_as, widen

F32, BF16 = jnp.dtype("float32"), jnp.dtype("bfloat16")


def dtypes_of(state):
    """Returns `{field of the optax state: dtypes of its floating-point arrays}`."""
    found: dict[str, set[np.dtype]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        names = [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)]
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            found.setdefault(names[-1], set()).add(leaf.dtype)
    return found


@pytest.mark.parametrize(
    "cfg, want",
    [
        (AdamW.Config(), {"mu": F32, "nu": F32}),
        (AdamW.Config(mu_dtype="bfloat16"), {"mu": BF16, "nu": F32}),
        (AdamW.Config(mu_dtype=jnp.bfloat16, nu_dtype=BF16), {"mu": BF16, "nu": BF16}),
        (Lion.Config(mu_dtype=jnp.bfloat16), {"mu": BF16}),
        (SGD.Config(momentum=0.9, mu_dtype=jnp.bfloat16), {"trace": BF16}),
        (SGD.Config(), {}),
        (
            Adafactor.Config(momentum=0.9, mu_dtype=jnp.bfloat16, min_dim_size_to_factor=2),
            {"ema": BF16, "v": F32, "v_row": F32, "v_col": F32},
        ),
        (
            Muon.Config(mu_dtype=jnp.bfloat16, rest=AdamW.Config(mu_dtype=jnp.bfloat16)),
            {"mu": BF16, "nu": F32, "ns_coeffs": F32},
        ),
    ],
)
@pytest.mark.parametrize("param_dtype", [F32, BF16])
def test_state_is_kept_in_the_dtypes_asked_for(cfg, want, param_dtype, specs):
    make = cfg.build().transformation(specs)
    params = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, param_dtype), specs)
    state = jax.eval_shape(make.init, params)
    directions, after = jax.eval_shape(make.update, params, state, params)
    assert dtypes_of(state) == {name: {dtype} for name, dtype in want.items()}
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.weak_type), state
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(directions)} == {F32}


def test_adam_with_bfloat16_moments_rounds_them_once_in_each_step():
    def rounded(x):
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)

    grads = np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)
    make = kept_as(optax.scale_by_adam(0.9, 0.95, 1e-8), mu=jnp.bfloat16, nu=jnp.bfloat16)
    state: Any = make.init(jnp.zeros(50))
    update: Any = jax.jit(make.update)
    m = v = np.zeros(50, np.float32)
    for t, g in enumerate(grads, 1):
        direction, state = update(jnp.asarray(g), state)
        m = np.float32(0.9) * m + np.float32(0.1) * g
        v = np.float32(0.95) * v + np.float32(0.05) * g**2
        want = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
        np.testing.assert_allclose(direction, want, rtol=0.01)  # One unit of bfloat16: how a tie is rounded.
        m, v = rounded(m), rounded(v)
    assert np.mean(np.asarray(state.mu, np.float32) == m) > 0.9


def test_widen_leaves_integers_and_float64_alone():
    with jax.enable_x64(True):
        tree = widen({"a": jnp.zeros(1, jnp.bfloat16), "b": jnp.zeros(1, jnp.float64), "c": jnp.zeros(1, jnp.int32)})
    assert jax.tree.map(lambda x: x.dtype.name, tree) == {"a": "float32", "b": "float64", "c": "int32"}


@pytest.mark.parametrize("decay, dtype", [(0.996, jnp.bfloat16), (0.9995, jnp.float16), (0.99999, jnp.float32)])
def test_a_decay_that_is_accepted_does_decay(decay, dtype):
    Lion.Config(b2=decay, mu_dtype=dtype).build()
    x = jnp.linspace(1.0, 2.0, 1000, dtype=dtype)
    after = (x.astype(jnp.float32) * decay).astype(dtype)
    assert jnp.all(after < x)
