# SPDX-License-Identifier: Apache-2.0
"""What is found of a model by tracing it, against sizes by hand."""

import numpy as np

from dovetail.config import replace_all
from dovetail.nn import DenseLinear, Float8Linear
from dovetail.plan import work_of
from dovetail.plan._work import COLUMNS, INNER, WITH_ALL, WITH_FFN
from dovetail.zoo import recipe


def test_products_of_a_dense_model_are_those_of_its_matrices():
    work = work_of(recipe("llama2-7b"))
    each = work.products
    flops = np.sum(2 * each.rows * each.inner * each.columns * each.times)
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11_008) + 4096 * 32_000
    assert flops == 2 * 4096 * matrices
    assert (work.depth, work.sparse, work.width) == (32, 0, 4096 * 4096)
    assert work.parameters.number.sum() == 6_738_415_616


def test_a_product_is_split_by_tensor_where_its_matrix_is():
    each = work_of(recipe("llama2-7b")).products
    down = (each.inner == 11_008) & (each.columns == 4096)
    up = each.columns == 11_008
    assert list(each.split[down]) == [INNER]
    assert list(each.split[up]) == [COLUMNS]
    assert list(each.again[up]) == [WITH_FFN]
    assert WITH_ALL in each.again


def test_experts_are_one_product_of_many_matrices():
    work = work_of(recipe("qwen3-30b-a3b"))
    sparse = work.products.matrices == 128
    assert set(work.products.rows[sparse]) == {8 * 4096}
    assert (work.sparse, work.choices) == (48, 8)
    assert work.sent == 48 * 8 * 4096 * 2048


def test_recurrences_are_told_from_attention():
    kernels = work_of(recipe("granite-4.0-h-small")).kernels
    assert kernels.times[kernels.recurrent > 0].sum() == 36
    assert kernels.times[kernels.recurrent == 0].sum() == 4


def test_products_in_eight_bits_are_known_as_such():
    cfg = replace_all(DenseLinear.Config, Float8Linear.Config(), at="*stack.*")(recipe("llama3-8b"))
    each = work_of(cfg).products
    assert set(each.bits[each.stacked > 0]) == {8}
    assert set(each.bits[each.stacked == 0]) == {16}
