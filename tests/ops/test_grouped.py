# SPDX-License-Identifier: Apache-2.0
"""What every grouped product promises. A new kernel joins by one line in `KERNELS`."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dovetail.ops
from dovetail.aot import count_flops
from dovetail.config import ConfigError, from_json, to_json
from dovetail.ops import (
    BlockedGroupedMatmul,
    Choice,
    GroupedMatmul,
    MegabloxGroupedMatmul,
    PreferredGroupedMatmul,
    RaggedDot,
    ReferenceGroupedMatmul,
    TritonGroupedMatmul,
    kernel_choices,
    row_groups,
)
from dovetail.parallel import Mesh
from support.compare import assert_same
from support.numeric import BFLOAT16, cast, check, normal

KERNELS = [
    ReferenceGroupedMatmul.Config(),
    RaggedDot.Config(),
    BlockedGroupedMatmul.Config(block=1),
    BlockedGroupedMatmul.Config(block=3),
    BlockedGroupedMatmul.Config(),
    PreferredGroupedMatmul.Config(kernels=(MegabloxGroupedMatmul.Config(), BlockedGroupedMatmul.Config(block=3))),
    MegabloxGroupedMatmul.Config(interpret=True),
    TritonGroupedMatmul.Config(interpret=True, tile=64, depth=64),
]
each_kernel = pytest.mark.parametrize("cfg", KERNELS, ids=str)
SIZES = [(3, 0, 5, 2), (0, 0, 10, 0), (2, 3, 0, 1), (0, 0, 0, 0)]  # Of 10 rows: some groups are empty, some rows left.


def definition(x, weight, sizes):
    y, start = np.zeros((len(x), weight.shape[2])), 0
    for group, size in enumerate(sizes):
        for row in range(start, start + size):
            y[row] = x[row] @ weight[group]
        start += size
    return y


def test_every_kernel_has_joined():
    there = {c for _, c in inspect.getmembers(dovetail.ops, inspect.isclass) if issubclass(c, GroupedMatmul)}
    assert {type(cfg.build()) for cfg in KERNELS} == {c for c in there if not inspect.isabstract(c)}


@each_kernel
def test_a_product_and_its_gradients_are_the_definition(cfg):
    x, weight = normal(0, (10, 4)), normal(1, (4, 4, 3))

    def all_sizes(function):
        return lambda x, weight: [function(x, weight, sizes) for sizes in SIZES]

    kernel = cfg.build()
    check(all_sizes(lambda x, w, sizes: kernel(x, w, jnp.array(sizes))), all_sizes(definition), x, weight)


@each_kernel
def test_a_product_in_bfloat16_is_rounded_once(cfg):
    x, weight = cast((normal(0, (10, 4)), normal(1, (4, 4, 3))), jnp.bfloat16)
    got = check(
        lambda x, w: cfg.build()(x, w, jnp.array(SIZES[0])),
        lambda x, w: definition(x, w, SIZES[0]),
        x,
        weight,
        tolerance=2 * BFLOAT16,
    )
    assert got.dtype == jnp.bfloat16


@each_kernel
def test_a_product_needs_no_jit_and_no_rows(cfg):
    args = normal(0, (10, 4)), normal(1, (4, 4, 3)), jnp.array(SIZES[0])
    assert_same(cfg.build()(*args), jax.jit(cfg.build())(*args))
    assert cfg.build()(args[0][:0], args[1], jnp.zeros(4, jnp.int32)).shape == (0, 3)


@each_kernel
def test_a_kernel_config_survives_json(cfg):
    assert from_json(to_json(cfg)) == cfg


def flops(cfg, *, grad):
    kernel, sizes = cfg.build(), jnp.array([100, 200, 0, 0])
    x, weight = jnp.zeros((300, 4)), jnp.zeros((4, 4, 8))

    def loss(x, weight):
        return jnp.sum(kernel(x, weight, sizes))

    return count_flops(jax.grad(loss, (0, 1)) if grad else loss, x, weight) / (2 * 4 * 8)


def test_kernels_count_the_rows_and_blocks_at_most_one_more_for_each_group():
    assert flops(RaggedDot.Config(), grad=False) == 300
    assert flops(BlockedGroupedMatmul.Config(block=1), grad=False) == 300
    assert flops(BlockedGroupedMatmul.Config(block=32), grad=False) == (300 + 4 * 31) // 32 * 32
    for kernel in (MegabloxGroupedMatmul, TritonGroupedMatmul):
        assert flops(kernel.Config(interpret=True), grad=False) == 300
    for cfg in (RaggedDot.Config(), BlockedGroupedMatmul.Config(block=32), TritonGroupedMatmul.Config(interpret=True)):
        assert flops(cfg, grad=True) == 3 * flops(cfg, grad=False), "forward, and twice that backward"


def test_row_groups_name_the_group_of_each_row():
    np.testing.assert_array_equal(row_groups(jnp.array([0, 2, 0, 1]), 5), [1, 1, 3, 4, 4])


def test_a_block_without_rows_is_refused():
    with pytest.raises(ConfigError, match=r"BlockedGroupedMatmul: block is 0, expected at least 1\."):
        BlockedGroupedMatmul.Config(block=0).build()


ARGS = normal(0, (10, 4)), normal(1, (4, 4, 3)), jnp.array(SIZES[0])


def test_the_first_kernel_that_can_computes_and_the_choice_is_known():
    there = BlockedGroupedMatmul.Config(block=3)
    cfg = PreferredGroupedMatmul.Config(kernels=(MegabloxGroupedMatmul.Config(), TritonGroupedMatmul.Config(), there))
    with kernel_choices() as choices:
        got = cfg.build(path="experts.up.kernel")(*ARGS)
    assert_same(got, there.build()(*ARGS))
    refused = (
        ("MegabloxGroupedMatmul", "it runs on tpu, this is cpu"),
        ("TritonGroupedMatmul", "it runs on cuda, this is cpu"),
    )
    assert choices == [Choice("experts.up.kernel", "BlockedGroupedMatmul", refused)]


@pytest.mark.parametrize("kernel", [MegabloxGroupedMatmul, TritonGroupedMatmul])
def test_a_kernel_is_not_left_to_the_compiler_of_a_mesh(kernel):
    with jax.set_mesh(Mesh(tensor=2).on()):
        support = kernel.Config(interpret=True).build().supports(*ARGS)
    assert support.reason == "the compiler cannot split it along the mesh axis tensor"


def test_kernels_none_of_which_can_are_refused_with_their_reasons():
    cfg = PreferredGroupedMatmul.Config(kernels=(MegabloxGroupedMatmul.Config(), TritonGroupedMatmul.Config()))
    with pytest.raises(
        ConfigError, match=r"(?s)^up\.kernel: none .*Megablox.*: it runs on tpu, .*Triton.*: it runs on"
    ):
        cfg.build(path="up.kernel")(*ARGS)


@pytest.mark.parametrize(
    "cfg, dtype, reason",
    [
        (MegabloxGroupedMatmul.Config(), jnp.float32, "it runs on tpu, this is cpu"),
        (TritonGroupedMatmul.Config(), jnp.float32, "it runs on cuda, this is cpu"),
        (
            MegabloxGroupedMatmul.Config(interpret=True),
            jnp.float16,
            "it multiplies bfloat16 and float32, this is float16",
        ),
        (
            MegabloxGroupedMatmul.Config(interpret=True, memory=1000),
            jnp.float32,
            "a step of 4 inputs and 3 outputs needs more than its memory, 1000 bytes",
        ),
    ],
)
def test_a_kernel_alone_says_why_it_cannot(cfg, dtype, reason):
    with pytest.raises(ConfigError) as caught:
        cfg.build(path="up.kernel")(*cast(ARGS, dtype))
    several = "Choose another kernel, or several: PreferredGroupedMatmul takes the first that can."
    assert str(caught.value) == f"up.kernel: {reason}.\n  {several}"


@pytest.mark.parametrize(
    "cfg, found",
    [
        (MegabloxGroupedMatmul.Config(tile=100), "tile is 100, expected a positive multiple of 16."),
        (TritonGroupedMatmul.Config(tile=96), "tile is 96, expected a power of two of at least 64."),
        (TritonGroupedMatmul.Config(depth=32), "depth is 32, expected a power of two of at least 64."),
    ],
)
def test_tiles_that_do_not_fit_the_hardware_are_refused(cfg, found):
    with pytest.raises(ConfigError) as caught:
        cfg.build(path="up.kernel")
    assert str(caught.value) == f"up.kernel: {found}"


# Several tiles in every direction, none of which ends where a group, the rows or the columns end.
@pytest.mark.parametrize(
    "cfg, shape",
    [
        (MegabloxGroupedMatmul.Config(interpret=True, tile=16, memory=350_000), (100, 256, 384)),
        (TritonGroupedMatmul.Config(interpret=True, tile=64, depth=128), (150, 72, 70)),
    ],
    ids=str,
)
def test_tiles_end_where_groups_do_not(cfg, shape):
    rows, inputs, outputs = shape
    sizes = (33, 0, 0, 17, 16, 1, 0, rows - 80)
    x, weight = normal(0, (rows, inputs)), normal(1, (8, inputs, outputs))
    check(lambda x, w: cfg.build()(x, w, jnp.array(sizes)), lambda x, w: definition(x, w, sizes), x, weight)
