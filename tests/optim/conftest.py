# SPDX-License-Identifier: Apache-2.0
"""A small set of parameters of every kind a decoder has."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from dovetail.module import ParamSpec, constant

LAYERS = 3


def _spec(
    *sizes: int, axes: tuple[str | None, ...], ins: tuple[int, ...] = (), outs: tuple[int, ...] = ()
) -> ParamSpec:
    return ParamSpec(shape=sizes, axes=axes, init=constant(0.0), in_dims=ins, out_dims=outs)


@pytest.fixture(scope="session")
def specs() -> dict[str, Any]:
    """Specs of an embedding, three stacked layers (attention, experts, norms, biases) and an output layer."""
    heads = _spec(4, 2, 3, axes=("embed", "heads", None), ins=(-3,), outs=(-2, -1))
    layer = {
        "attention": {"query": {"weight": heads, "bias": _spec(2, 3, axes=("heads", None))}},
        "experts": {"weight": _spec(2, 6, 4, axes=("expert", "mlp", "embed"), ins=(-2,), outs=(-1,))},
        "norm": {"scale": _spec(4, axes=("embed",))},
    }
    return {
        "embedding": {"table": _spec(5, 4, axes=("vocab", "embed"))},
        "layer": jax.tree.map(lambda spec: spec.stacked(LAYERS), layer),
        "up": {"weight": _spec(4, 6, axes=("embed", "mlp"), ins=(-2,), outs=(-1,))},
        "head": {"weight": _spec(4, 5, axes=("embed", "vocab"), ins=(-2,), outs=(-1,))},
    }


@pytest.fixture(scope="session")
def arrays(specs: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    """A function that gives each parameter random values, in float64 and without JAX."""

    def make(seed: int) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        return jax.tree.map(lambda spec: rng.normal(size=spec.shape), specs)

    return make
