# SPDX-License-Identifier: Apache-2.0
"""Native kernels: made once, kept, never required; products and rows are the definition, to the bit in any batch."""

import concurrent.futures
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.ops import (
    by_native_kernels,
    from_panels,
    gated,
    in_panels,
    is_native,
    native,
    native_argmax,
    native_write,
    packed_product,
    packs,
    rms_norm,
    rotate,
)
from dovetail.ops.kernels._native import SWITCH, compiled
from support.numeric import FLOAT32, assert_close

HERE = pytest.mark.skipif(bool(native().reason), reason=native().reason)
SAID = "from dovetail.ops import native; print(native().reason)"


def said(**environ: str) -> str:
    """Returns why a new process has no kernels."""
    found = subprocess.run(
        [sys.executable, "-c", SAID], capture_output=True, text=True, env={**os.environ, **environ}, check=True
    )
    return found.stdout.strip()


def test_where_there_are_no_kernels_the_reason_is_said(tmp_path):
    failing = tmp_path / "c++"
    failing.write_text("#!/bin/sh\necho 'handlers.cc:1: error: unknown machine' >&2\nexit 1\n")
    failing.chmod(0o755)
    fresh = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert said(**{SWITCH: "off"}) == f"{SWITCH} is off"
    assert said(PATH=str(tmp_path / "empty"), CXX="", **fresh).startswith("there is no C++ compiler")
    assert said(CXX=str(failing), **fresh) == f"{failing} fails: handlers.cc:1: error: unknown machine"
    assert not list((tmp_path / "cache").rglob("*.so"))


@HERE
def test_a_library_is_made_once_for_its_sources_and_machine(tmp_path, monkeypatch):
    made = list[Path]()

    def make(compiler: str, target: Path) -> Path:
        target.write_bytes(b"a library")
        made.append(target)
        return target

    monkeypatch.setattr("dovetail.ops.kernels._native._made", make)
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    first = compiled(environ)
    assert compiled(environ) == first
    assert len(made) == 1
    assert first.read_bytes() == b"a library"
    assert [path.name for path in first.parent.iterdir()] == [first.name], "nothing is left behind"
    monkeypatch.setattr("dovetail.ops.kernels._native._FLAGS", ("-O0",))
    assert compiled(environ) != first


@HERE
@settings(max_examples=10)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 130), st.integers(0, 2**31))
def test_a_product_is_the_definition_and_a_row_has_the_same_bits_in_any_batch(rows, ins, more, seed):
    outs, rng = native().width + more, np.random.default_rng(seed)
    assert packs(ins, outs)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, ins), (ins, outs)))
    panels = in_panels(jnp.asarray(w))
    assert np.array_equal(from_panels(panels, outs), w)
    y = np.asarray(packed_product(jnp.asarray(x), panels, outs))
    assert_close(y, x.astype(np.float64) @ w, FLOAT32)
    row = int(rng.integers(rows))
    alone = packed_product(jnp.asarray(x[row : row + 1]), panels, outs)
    assert np.array_equal(np.asarray(alone)[0], y[row])


@HERE
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8])
def test_weights_in_fewer_bits_are_multiplied_as_if_they_were_float32(dtype):
    rng = np.random.default_rng(0)
    w = jnp.asarray(30 * rng.standard_normal((70, 200)), dtype)
    x, scale = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((90, 70), (200,)))
    few, wide = in_panels(w), in_panels(w.astype(jnp.float32))
    for rows in (1, 5, 19, 90):  # Many rows get a float32 copy of a panel.
        want = packed_product(x[:rows], wide, 200) * scale
        assert np.array_equal(packed_product(x[:rows], few, 200, scale), want)


@HERE
def test_rows_of_zeros_at_the_end_give_zeros_and_change_nothing():
    rng = np.random.default_rng(0)
    panels = in_panels(jnp.asarray(rng.standard_normal((300, 130)), jnp.float32))
    x = rng.standard_normal((20, 300)).astype(np.float32)
    x[[3, 11]], x[12:], x[12, 299] = 0.0, 0.0, 1.0
    y = np.asarray(packed_product(jnp.asarray(x), panels, 130))
    assert_close(y, x.astype(np.float64) @ np.asarray(from_panels(panels, 130), np.float64), FLOAT32)
    assert not y[13:].any()
    assert y[12].any()


@HERE
def test_products_of_many_threads_at_once_do_not_mix():
    rng = np.random.default_rng(0)
    w = in_panels(jnp.asarray(rng.standard_normal((64, 6 * native().panel)), jnp.float32))
    xs = [jnp.asarray(rng.standard_normal((5, 64)), jnp.float32) for _ in range(4)]
    run = jax.jit(lambda x: packed_product(x, w, w.shape[0] * w.shape[2]))
    want = [np.asarray(run(x)) for x in xs]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(50):
            for found, each in zip(pool.map(run, xs), want, strict=True):
                assert np.array_equal(np.asarray(found), each)


def test_small_matrices_are_left_to_the_compiler():
    if native().reason:
        assert packs(8, 1000).reason == native().reason
    else:
        least = native().width
        assert packs(8, least - 1).reason == f"it has {least - 1} columns, expected at least {least}"


@HERE
@settings(max_examples=10)
@given(st.data())
def test_what_is_done_to_rows_is_the_definition_and_depends_on_no_other_row(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    rows, groups, dim = draw(st.integers(1, 70)), draw(st.sampled_from([1, 3])), 2 * draw(st.integers(1, 40))
    x, up = (jnp.asarray(4 * rng.standard_normal((rows, 1, groups, dim)), jnp.float32) for _ in range(2))
    flat, scale = x.reshape(rows, -1), jnp.asarray(rng.standard_normal(groups * dim), jnp.float32)
    where, interleaved = jnp.asarray(rng.integers(0, 5000, (rows, 1)), jnp.int32), draw(st.booleans())
    frequencies = 10_000.0 ** (-np.arange(0, dim, 2) / dim)

    def computed(flat, x, up, where):
        normed = rms_norm(flat, scale, eps=1e-5, offset=1.0, groups=groups)
        return (
            normed,
            rotate(x, where, frequencies, interleaved=interleaved),
            gated()(x, up),
            rms_norm(flat, None, eps=0.1),
        )

    found, want = [], computed(flat, x, up, where)
    for arrays in ((flat, x, up, where), (flat[:1], x[:1], up[:1], where[:1])):
        with by_native_kernels():
            assert is_native(x)
            found.append(jax.jit(computed)(*arrays))
        text = jax.jit(computed).trace(*arrays).jaxpr
        assert "dovetail_" not in str(text), "outside of the context, XLA computes"
    for native_one, alone, xla in zip(*found, want, strict=True):
        np.testing.assert_allclose(native_one, xla, rtol=2e-6, atol=2e-6)
        assert np.array_equal(native_one[:1], alone)


@HERE
@pytest.mark.parametrize("size", [1, 15, 16, 50, 4097])
def test_the_largest_number_is_where_jax_finds_it(size):
    rng = np.random.default_rng(size)
    x = rng.integers(-3, 4, (9, size)).astype(np.float32)
    x[1, size // 2] = np.nan
    x[2], x[3, -1], x[4] = -np.inf, np.inf, 0.0
    assert np.array_equal(native_argmax(jnp.asarray(x)), jnp.argmax(x, axis=-1))


@HERE
def test_rows_are_written_to_their_pages_and_those_beyond_the_last_page_nowhere():
    rng = np.random.default_rng(0)
    old, new = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((5, 4, 2, 3), (2, 3, 2, 3)))
    page, inside = jnp.array([[1, 5, 3], [0, 4, 2**31 - 1]]), jnp.array([[3, 0, 1], [0, 2, 2]])
    kept = np.array(old)
    want = kept.copy()
    for row in range(2):
        for i in range(3):
            if page[row, i] < 5:
                want[page[row, i], inside[row, i]] = new[row, i]
    assert np.array_equal(jax.jit(native_write)(old, new, page, inside), want)
    assert np.array_equal(old, kept), "what is not given away stays"
