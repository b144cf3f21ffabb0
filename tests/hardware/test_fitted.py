# SPDX-License-Identifier: Apache-2.0
"""The constants of predictions: every chip has each of them, of its narrowest group."""

import pytest

from dovetail.hardware import CHIPS, FITTED, fitted

NAMES = sorted({name for name, _ in FITTED} - {"interval"})


@pytest.mark.parametrize("name", NAMES)
def test_every_chip_has_a_value_of_every_constant(name):
    for chip in CHIPS.values():
        assert fitted(name, chip).value >= 0


def test_the_narrowest_group_counts():
    groups = {name: fitted("reached", CHIPS[name]).group for name in ("gpu-h200", "gpu-gb300", "tpu-v5p", "gpu-mi300x")}
    assert groups == {"gpu-h200": "hopper", "gpu-gb300": "blackwell", "tpu-v5p": "tpu-v5p", "gpu-mi300x": "gpu"}


def test_what_was_fitted_stayed_where_its_prior_lets_it():
    for each in FITTED.values():
        if each.spread:
            assert each.prior * (1 - 3 * each.spread) < each.value < each.prior * (1 + 3 * each.spread), each
        elif each.name != "interval":
            assert each.value == each.prior, each
