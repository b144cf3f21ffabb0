# SPDX-License-Identifier: Apache-2.0
"""Policies of remat, by name: the same numbers, less memory the less is kept, for every kind of layer."""

import functools

import jax
import numpy as np
import pytest

from dovetail.config import find
from dovetail.module import abstract
from dovetail.nn import POLICIES, Block, with_remat
from dovetail.train import gradients_of
from dovetail.zoo import model
from sharding_cases import KINDS, Variant, batch_of
from support.models import random_params

BATCH = batch_of(260, Variant(tokens=128))


def traced(kind, policy):
    built = with_remat(KINDS[kind](), policy).build(path="model")
    return jax.jit(gradients_of(built, num_microbatches=1, dtype=None)).trace(abstract(built), BATCH, None)


@functools.cache
def program(kind, policy):
    return traced(kind, policy).lower().compile()


@pytest.mark.parametrize("kind", ["dense", pytest.param("hybrid", marks=pytest.mark.slow)])
def test_the_less_is_kept_the_less_memory_is_used(kind):
    """Temporary memory, by the compiler. On a CPU, what is offloaded stays in the same memory."""
    used = {}
    for policy in POLICIES:
        memory = program(kind, policy).memory_analysis()
        assert memory is not None
        used[policy] = memory.temp_size_in_bytes
    assert list(used) == ["save_all", "save_dots", "save_qkvo", "offload_qkvo", "full"]
    assert used["save_all"] > used["save_dots"] > used["save_qkvo"] == used["offload_qkvo"] > used["full"]


def test_offloaded_activations_go_to_the_memory_of_the_host():
    text = str(traced("dense", "offload_qkvo").jaxpr)
    assert "<host>[8,128,8,4] = device_put" in text  # Queries, and what comes out of attention.


def test_what_is_kept_changes_no_number():
    params = random_params(KINDS["dense"]().build())
    found = {policy: jax.device_get(program("dense", policy)(params, BATCH, None)) for policy in POLICIES}
    for policy in POLICIES:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found[policy], found["save_all"]
        )


def test_no_policy_leaves_each_block_as_it_is():
    cfg = with_remat(model("gpt2-tiny"), "full")
    assert with_remat(cfg, None) is cfg
    assert all(block.remat is None for _, block in find(with_remat(cfg, "save_all"), Block.Config))
