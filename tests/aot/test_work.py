# SPDX-License-Identifier: Apache-2.0
"""The operations of compiled programs, against the count of the program they were made from, and against arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.aot import Hlo, copied_bytes, count_compiled_flops, count_flops, count_kernel_flops


def _compiled(function, *args):
    return Hlo(jax.jit(function).lower(*args).compile().as_text() or "")


def _layers(x, weights):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0].sum()


def test_a_compiled_program_does_the_products_that_were_asked_for():
    args = jnp.ones((6, 8)), jnp.ones((5, 8, 8))
    step = jax.grad(_layers, argnums=1)
    assert count_compiled_flops(_compiled(step, *args)) == count_flops(step, *args) == 3 * 5 * 2 * 6 * 8 * 8


def test_what_remat_computes_again_is_counted():
    args = jnp.ones((6, 8)), jnp.ones((5, 8, 8))

    def layers(x, weights):
        layer = jax.checkpoint(lambda x, w: jnp.sin(jnp.tanh(x @ w) @ w), prevent_cse=False)
        return jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0].sum()

    # Two products forward, both of them again, and four backward.
    assert count_compiled_flops(_compiled(jax.grad(layers, argnums=1), *args)) == 8 * 5 * 2 * 6 * 8 * 8


# A product of matrices for each of 3 x 4 rows, as the compiler for TPUs writes it: the rows are places of a window.
@pytest.mark.parametrize(
    "line,flops",
    [
        (
            "%c = f32[3,4,5,6]{3,2,1,0} convolution(%a, %b), window={size=3x4 stride=2x3 lhs_dilate=3x4}, "
            "dim_labels=01bf_01io->01bf",
            2 * 3 * 4 * 5 * 6 * 7,
        ),
        ("%c = f32[3,5,6]{2,1,0} convolution(%d, %e), window={size=1}, dim_labels=0bf_io0->0bf", 2 * 3 * 5 * 6 * 7),
        (
            "%c = f32[3,5,4,6]{3,2,1,0} convolution(%f, %g), window={size=1x4 pad=0_0x3_3 rhs_reversal=0x1}, "
            "dim_labels=0bf1_1oi0->0b1f",
            2 * 3 * 5 * 4 * 6 * 7,
        ),
        (
            "%c = (f32[3,6]{1,0}, s8[99]{0}) custom-call(%h, %i), custom_call_target="
            '"__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
            '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}',
            2 * 3 * 6 * 7,
        ),
    ],
    ids=["batched", "plain", "heads", "cublas"],
)
def test_products_that_are_written_otherwise_count_the_same(line, flops):
    shapes = {
        "a": "3,4,5,7",
        "b": "3,4,7,6",
        "d": "3,5,7",
        "e": "7,6,1",
        "f": "3,5,7,1",
        "g": "4,6,7,1",
        "h": "3,7",
        "i": "7,6",
    }
    lines = [f"  %{name} = f32[{dims}] parameter(0)" for name, dims in shapes.items()]
    text = "\n".join(["ENTRY %main () -> f32[] {", *lines, f"  ROOT {line}", "}"])
    assert count_compiled_flops(Hlo(text)) == flops


def test_a_real_convolution_counts_the_products_without_padding():
    data, kernel = np.ones((1, 2, 6), np.float32), np.ones((3, 2, 3), np.float32)

    def padded(data, kernel):
        return jax.lax.conv_general_dilated(data, kernel, (1,), [(1, 1)])

    # 6 places, of which the first and the last see 2 of 3 taps.
    assert count_compiled_flops(_compiled(padded, data, kernel)) == 2 * 3 * 2 * (4 * 3 + 2 * 2)


def test_only_copies_between_layouts_count_as_copied():
    text = """\
ENTRY %main (a: f32[8,16]) -> f32[16,8] {
  %a = f32[8,16]{1,0} parameter(0)
  %fast = f32[8,16]{1,0:T(8,128)S(1)} copy(%a)
  %b = f32[8,16]{0,1} copy(%a)
  ROOT %c = f32[16,8]{1,0} transpose(%b), dimensions={1,0}
}
"""
    assert copied_bytes(Hlo(text)) == 2 * 8 * 16 * 4


def test_kernels_count_by_their_grid_and_not_if_nobody_uses_them():
    from jax.experimental import pallas as pl

    def product(x):
        def kernel(x, y):
            y[...] = x[...] @ x[...]

        shape = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32)
        block = pl.BlockSpec((None, 8, 8), lambda i: (i, 0, 0))
        return pl.pallas_call(kernel, shape, grid=(4,), in_specs=[block], out_specs=block)(x)

    x = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32)

    def loop(x, used):
        def body(carry, _):
            y = product(carry)
            return (y if used else carry), None

        return jax.lax.scan(body, x, length=3)[0]

    once = 4 * 2 * 8 * 8 * 8
    for used, times in ((True, 3), (False, 0)):
        jaxpr = jax.make_jaxpr(lambda x, used=used: loop(x, used))(x).jaxpr
        assert count_kernel_flops(jaxpr) == times * once


def test_attention_of_gpus_counts_all_its_products():
    from jax.experimental.pallas.ops.gpu import attention

    q = jax.ShapeDtypeStruct((2, 128, 4, 64), jnp.float32)

    def loss(q):
        return jnp.sum(attention.mha(q, q, q, None, interpret=True))

    product = 2 * 2 * 4 * 128 * 128 * 64
    assert count_kernel_flops(jax.make_jaxpr(loss)(q).jaxpr) == 2 * product
    assert count_kernel_flops(jax.make_jaxpr(jax.grad(loss))(q).jaxpr) == 9 * product
