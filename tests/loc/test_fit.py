# SPDX-License-Identifier: Apache-2.0
"""The fit: known exponents are found, and a constant is a constant."""

import pytest

from dovetail.loc._fit import growth


def test_a_constant_has_exponents_zero_and_intervals_without_width():
    found = growth(range(20), range(10), lambda models, variants: 7, draws=5)
    assert found.factor == (7, 7, 7)
    assert found.models == found.variants == (0, 0, 0)


@pytest.mark.parametrize("a, b", [(1, 0), (0, 1), (1, 1), (2, 1)])
def test_exponents_are_those_of_the_rule(a, b):
    found = growth(range(32), range(8), lambda models, variants: 3 * len(models) ** a * len(variants) ** b, draws=3)
    assert found.factor.value == pytest.approx(3)
    assert (found.models.value, found.variants.value) == (pytest.approx(a), pytest.approx(b))
    assert (32, 8, 3 * 32**a * 8**b) in found.points


def test_lines_that_depend_on_the_choice_give_intervals_with_width():
    def lines(models, variants):
        return sum(10 if model % 5 == 0 else 1 for model in models)

    found = growth(range(32), range(4), lines, draws=50)
    assert found.models.low < found.models.value < found.models.high
    assert found.models.low > 0.5
    assert found.variants == (0, 0, 0)
