# SPDX-License-Identifier: Apache-2.0
"""Compiling for devices, here or not."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from dovetail.aot import compile_for


@pytest.fixture
def kept(tmp_path):
    """JAX keeps every program that it compiles."""
    wanted = {"jax_compilation_cache_dir": str(tmp_path), "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: getattr(jax.config, name) for name in wanted}
    for values in (wanted, before):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if values is wanted:
            yield tmp_path


def test_a_program_that_jax_has_kept_is_compiled_all_the_same(kept):
    lowered = jax.jit(lambda x: x @ x).lower(jnp.ones((8, 8)))
    lowered.compile()
    assert any(kept.iterdir())
    found = [compile_for(lowered) for _ in range(2)]
    assert all("dot" in each.text and each.memory.arguments == 8 * 8 * 4 for each in found)
