# SPDX-License-Identifier: Apache-2.0
"""The pool of models: what is in it, in which order, and how many parameters each must have."""

from functools import partial

import pytest

from dovetail.loc._models import Base, pool
from dovetail.loc._works import built
from dovetail.zoo import RECIPES, model

BASES = [Base(name, entry.family, partial(model, name)) for name, entry in RECIPES.items()]


def test_the_pool_has_a_thousand_models_no_two_alike():
    found = list(pool(BASES, seed=0))
    assert len(found) == len(set(map(str, found))) == 16 * len(BASES) > 1000
    one = [each.config() for each in found if each.base.name in ("llama3-tiny", "gemma2-tiny")]
    assert len(set(one)) == len(one) == 32


def test_the_seed_gives_the_order_and_families_take_turns():
    families = {base.family for base in BASES}
    first = [each.base.family for each in pool(BASES, seed=0)][: len(families)]
    assert sorted(first) == sorted(families)
    assert list(pool(BASES, seed=1)) == list(pool(BASES, seed=1))
    assert list(pool(BASES, seed=1)) != list(pool(BASES, seed=2))


@pytest.mark.parametrize("name", ["gpt2-tiny", "deepseek-v3-tiny", "gemma3-tiny"])
def test_each_has_as_many_parameters_as_it_must(name):
    base = next(base for base in BASES if base.name == name)
    for each in pool([base], seed=0):
        assert built(each.config()).size == each.parameters(built(base.config()).specs)
