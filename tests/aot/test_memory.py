# SPDX-License-Identifier: Apache-2.0
"""Memory at its highest, read from dumps: of programs whose memory is known."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail.aot import compile_for

MIB = 2**20


@pytest.fixture(autouse=True)
def _optimised():
    """With optimisations: without them, programs need other memory than users see."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


def _layer(x, w):
    with jax.named_scope("layer"):
        return jnp.tanh(x @ w)


def _loss(weights, x):
    with jax.named_scope("model"):
        return jax.lax.scan(lambda x, w: (_layer(x, w), None), x, weights)[0].sum()


def _lowered():
    weights, x = jax.ShapeDtypeStruct((16, 256, 256), jnp.float32), jax.ShapeDtypeStruct((1024, 256), jnp.float32)

    def step(weights, x):
        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(_loss)(weights, x))

    return jax.jit(step, donate_argnums=0).lower(weights, x)


def test_the_parts_of_memory_are_those_of_the_program():
    found = compile_for(_lowered()).memory
    assert found.arguments == (16 * 256 * 256 + 1024 * 256) * 4
    assert found.outputs == 0  # The new weights take the place of the old ones.
    # 16 activations of 1 MiB are kept, and the gradients take 4 MiB.
    kept = sum(buffer.bytes for buffer in found.live if any("jvp(model)" in name for name in buffer.op_names))
    assert 16 * MIB <= kept <= found.temporaries
    assert found.total == found.arguments + found.temporaries


def test_what_is_live_at_once_fits_into_the_temporaries_and_explains_most_of_them():
    found = compile_for(_lowered()).memory
    live = sum(buffer.bytes for buffer in found.live)
    assert 0.95 * found.temporaries <= live <= found.temporaries


def test_it_agrees_with_what_jax_reports():
    lowered = _lowered()
    stats: Any = lowered.compile().memory_analysis()
    found = compile_for(lowered).memory
    assert found.arguments == stats.argument_size_in_bytes
    assert found.temporaries == pytest.approx(stats.temp_size_in_bytes, rel=0.01)
