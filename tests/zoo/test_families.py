# SPDX-License-Identifier: Apache-2.0
"""Families: parameter counts equal to the published ones, and configs that survive JSON."""

import jax
import pytest

from dovetail.config import from_json, to_json
from dovetail.module import specs
from dovetail.zoo.families import gpt2, llama

PUBLISHED = {
    "gpt2": (gpt2(dim=768, num_layers=12, num_heads=12), 124_439_808),
    "gpt2-medium": (gpt2(dim=1024, num_layers=24, num_heads=16), 354_823_168),
    "gpt2-large": (gpt2(dim=1280, num_layers=36, num_heads=20), 774_030_080),
    "gpt2-xl": (gpt2(dim=1600, num_layers=48, num_heads=25), 1_557_611_200),
    "llama2-7b": (
        llama(vocab_size=32_000, dim=4096, num_layers=32, num_heads=32, num_kv_heads=32, hidden_dim=11_008),
        6_738_415_616,
    ),
    "llama3-8b": (
        llama(vocab_size=128_256, dim=4096, num_layers=32, num_heads=32, num_kv_heads=8, hidden_dim=14_336, theta=5e5),
        8_030_261_248,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_number_of_parameters_is_the_published_one(name):
    cfg, want = PUBLISHED[name]
    leaves = jax.tree.leaves(specs(cfg.build()), is_leaf=lambda leaf: hasattr(leaf, "axes"))
    assert sum(leaf.size for leaf in leaves) == want


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_family_is_plain_data(name):
    cfg, _ = PUBLISHED[name]
    assert from_json(to_json(cfg)) == cfg


def test_biases_and_norms_are_not_matrices():
    """Weight decay and Muon pick matrices by their specs."""
    model = gpt2(dim=64, num_layers=2, num_heads=2).build()
    flat = jax.tree_util.tree_leaves_with_path(specs(model), is_leaf=lambda leaf: hasattr(leaf, "axes"))
    matrices = {path[-1].key for path, spec in flat if spec.in_dims and spec.out_dims}
    others = {path[-1].key for path, spec in flat if not (spec.in_dims and spec.out_dims)}
    assert (matrices, others) == ({"weight"}, {"bias", "scale", "table"})
