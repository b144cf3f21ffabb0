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


class _Compiled:
    def as_text(self):
        raise jax.errors.JaxRuntimeError("RET_CHECK failure")


class _Lowered:
    """A program whose compiler makes it, but cannot write it down."""

    def compile(self, compiler_options):
        jax.jit(lambda x: x + 1).lower(jnp.ones(3)).compile(compiler_options=compiler_options)
        return _Compiled()


def test_what_a_compiler_cannot_write_with_its_costs_is_read_from_its_dump():
    found = compile_for(_Lowered())
    assert "ENTRY" in found.text
    assert not found.refused
