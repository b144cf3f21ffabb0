# SPDX-License-Identifier: Apache-2.0
"""Values and gradients of a JAX function against a NumPy reference in float64."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Float32 keeps 24 bits: 6e-8 for each rounding. Outputs here are sums of about 100 terms behind a few such sums, and
# the largest of them gives the scale, so 1e-5 leaves a factor of a few. A wrong term is off by far more.
FLOAT32 = 1e-5
# Bfloat16 keeps 8 bits: 2e-3 for each rounding to nearest. Inputs are rounded before the reference sees them.
BFLOAT16 = 2e-3
# Central differences in float64: h**2 of cutting off, 1e-16 / h of rounding, both near 1e-10.
STEP = 1e-5


def float64(tree: Any) -> Any:
    """Returns a tree of arrays as NumPy float64; integers stay as they are."""
    return jax.tree.map(
        lambda x: np.asarray(x).astype(np.float64 if jnp.issubdtype(x.dtype, jnp.floating) else x.dtype), tree
    )


def cast(tree: Any, dtype: Any) -> Any:
    """Returns a tree with its floating-point arrays cast."""
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def normal(seed: int, shape: tuple[int, ...], dtype: Any = jnp.float32, size: float = 1.0) -> Any:
    """Returns normal random numbers; from NumPy, because JAX would compile a program for each shape."""
    return jnp.asarray((size * np.random.default_rng(seed).standard_normal(shape)).astype(dtype))


def random_like(tree: Any, seed: int) -> Any:
    """Returns a tree of normal random numbers of the same shapes, in float64."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.standard_normal(np.shape(x)), tree)


def assert_close(got: Any, want: Any, tolerance: float) -> None:
    """Asserts that no element of a tree is further off than `tolerance` times the largest element of its array."""

    def one(got: Any, want: Any) -> None:
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max(initial=0.0))

    jax.tree.map(one, got, want)


def check(function: Callable[..., Any], reference: Callable[..., Any], *args: Any, tolerance: float = FLOAT32) -> Any:
    """Asserts that `function(*args)` is `reference(*args)`, and its gradient too; returns what it returned.

    The gradient of each array in `args` is held against central differences of the reference along a random direction.
    An error of it, relative to its length, shows in that direction at about its own size.
    """
    exact = float64(args)
    want = reference(*exact)
    cotangent = random_like(want, 1)

    @jax.jit
    def value_and_gradient(args: Any, cotangent: Any) -> Any:
        out, pull = jax.vjp(function, *args)
        return out, pull(jax.tree.map(lambda c, y: c.astype(y.dtype), cotangent, out))

    got, gradients = value_and_gradient(args, jax.tree.map(np.float32, cotangent))
    assert_close(got, want, tolerance)
    cotangent = jax.tree.map(lambda c, y: c.astype(np.float32).astype(y.dtype).astype(np.float64), cotangent, got)

    def scalar(leaves: Any) -> float:
        return sum(map(np.vdot, jax.tree.leaves(cotangent), jax.tree.leaves(reference(*tree.unflatten(leaves)))))

    leaves, tree = jax.tree.flatten(exact)
    for i, (path, gradient) in enumerate(jax.tree.leaves_with_path(gradients)):
        gradient = np.asarray(gradient, np.float64)
        direction = random_like(leaves[i], 2 + i)
        ahead, behind = (scalar([*leaves[:i], leaves[i] + s * direction, *leaves[i + 1 :]]) for s in (STEP, -STEP))
        slope, allowed = (ahead - behind) / (2 * STEP), tolerance * np.linalg.norm(gradient) * np.linalg.norm(direction)
        found = np.vdot(gradient, direction)
        # Behind a gradient that is zero by symmetry (the bias of the keys), there is but the rounding of the others.
        floor = tolerance * np.sqrt(sum(np.sum(np.square(float64(g))) for g in jax.tree.leaves(gradients))) * 1e-2
        assert abs(found - slope) <= allowed + floor, f"{jax.tree_util.keystr(path)}: {found} is not {slope}"
    return got
