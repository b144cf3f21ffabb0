# SPDX-License-Identifier: Apache-2.0
"""Policies of remat, by name: the same numbers, less memory the less is kept, for every kind of layer."""

import jax
import numpy as np
import pytest

from dovetail.config import find
from dovetail.module import abstract
from dovetail.nn import POLICIES, Block, with_remat
from dovetail.train import gradients_of
from dovetail.zoo import model
from sharding_cases import KINDS, PLAIN, batch_of
from support.models import random_params


def program(kind, policy):
    built = with_remat(KINDS[kind](), policy).build(path="model")
    return built, gradients_of(built, num_microbatches=1, dtype=None)


@pytest.mark.parametrize("kind", ["dense", pytest.param("hybrid", marks=pytest.mark.slow)])
def test_the_less_is_kept_the_less_memory_is_used(kind):
    """Temporary memory, by the compiler. On a CPU, what is offloaded stays in the same memory."""
    used = {}
    for policy in POLICIES:
        built, step = program(kind, policy)
        batch = {key: jax.ShapeDtypeStruct((8, 128), value.dtype) for key, value in batch_of(260, PLAIN).items()}
        compiled = jax.jit(step).lower(abstract(built), batch, None).compile()
        memory = compiled.memory_analysis()
        assert memory is not None
        used[policy] = memory.temp_size_in_bytes
    assert list(used) == ["save_all", "save_dots", "save_qkvo", "offload_qkvo", "full"]
    assert used["save_all"] > used["save_dots"] > used["save_qkvo"] == used["offload_qkvo"] > used["full"]


def test_offloaded_activations_go_to_the_memory_of_the_host():
    built, step = program("dense", "offload_qkvo")
    batch = {key: jax.ShapeDtypeStruct((8, 128), value.dtype) for key, value in batch_of(260, PLAIN).items()}
    text = str(jax.make_jaxpr(step)(abstract(built), batch, None))
    assert "<host>[8,128,8,4] = device_put" in text  # Queries, and what comes out of attention.


def test_what_is_kept_changes_no_number():
    batch, found = batch_of(260, PLAIN), {}
    params = random_params(KINDS["dense"]().build())
    for policy in POLICIES:
        _, step = program("dense", policy)
        found[policy] = jax.device_get(jax.jit(step)(params, batch, None))
    for policy in POLICIES:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found[policy], found["save_all"]
        )


def test_no_policy_leaves_each_block_as_it_is():
    cfg = with_remat(model("gpt2-tiny"), "full")
    assert with_remat(cfg, None) is cfg
    assert all(block.remat is None for _, block in find(with_remat(cfg, "save_all"), Block.Config))
