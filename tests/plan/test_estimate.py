# SPDX-License-Identifier: Apache-2.0
"""The estimate of memory, against counts that share nothing with it: deeper models, and the compiler."""

import json
import math
import random
from pathlib import Path

import jax
import pytest

from dovetail.hardware import hardware
from dovetail.module import abstract
from dovetail.nn import Attention, Block, GatedFeedForward, Mamba2, Repeat, with_remat
from dovetail.parallel import Mesh
from dovetail.plan import estimate, on_hardware
from dovetail.plan._estimate import activation_bytes, block_bytes, describe, kept_bytes
from dovetail.train import abstract_batch, loss_function
from dovetail.zoo import recipe

DTYPE = "float32"
ROW = recipe("llama3-tiny").input.set(batch_size=1, seq_len=64)
SEED = random.randrange(2**32)


def test_full_remat_keeps_the_input_of_each_block_and_one_block_runs_at_a_time():
    """Bounds by hand for llama2-7b."""
    cfg = recipe("llama2-7b")
    kept = activation_bytes(cfg, cfg.mesh.set(fsdp=1024), 1, "full")
    stream = 4096 * 4096 * 2  # Of one row, in bfloat16.
    dots = stream * (3 + 1) + 2 * 4096 * 11008 * 2 + stream  # q, k, v, out; gate, up; down.
    assert 32 * stream + dots < kept < 32 * stream + 6 * dots
    assert math.isclose(describe(cfg).slots, 2, rel_tol=1e-6)


def drawn(draw: random.Random) -> tuple[Block.Config, ...]:
    """Returns two or three blocks, all different."""
    mixers = [
        Attention.Config(num_heads=2, window=draw.randint(3, 9)),
        Attention.Config(num_heads=4, num_kv_heads=2),
        Mamba2.Config(head_dim=8, state_dim=draw.choice((4, 8)), chunk=64),
    ]
    chosen = draw.sample(mixers, draw.randint(2, 3))
    return tuple(
        Block.Config(mixer=mixer, ffn=GatedFeedForward.Config(hidden_dim=8 * draw.randint(1, 6))) for mixer in chosen
    )


def test_a_block_is_a_part_of_what_a_deeper_model_leaves_behind():
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    pattern, times = drawn(draw), draw.randint(2, 4)

    def model(times: int):
        stack = Repeat.Config(layer=pattern, num_layers=times * len(pattern))
        return recipe("llama3-tiny").model.set(stack=stack)

    def added(times: int) -> int:
        """Bytes that all blocks together keep, beyond their inputs."""
        none, full = (kept_bytes(with_remat(model(times), policy), ROW, DTYPE) for policy in ("save_all", "full"))
        return none - full

    all_kinds = (added(2 * times) - added(times)) / times  # One block of each.
    assert all_kinds / len(pattern) * 0.95 < block_bytes(model(times), ROW, DTYPE) < all_kinds


def test_the_compiler_needs_what_the_estimate_says_for_a_pattern():
    cfg = with_remat(recipe("gemma2-tiny").model.set_in("stack.num_layers", 6), "full")
    model, row = cfg.build(path="model"), ROW.set(seq_len=256)
    loss = loss_function(model, dtype=None)
    gradient = jax.jit(jax.grad(lambda params, batch: loss(params, batch, jax.random.key(0))[0]))
    compiled = gradient.lower(abstract(model), abstract_batch(*row.batch_specs())).compile()
    needed = compiled.memory_analysis()
    assert needed is not None
    estimate = kept_bytes(cfg, row, DTYPE) + block_bytes(cfg, row, DTYPE)
    assert estimate == pytest.approx(needed.temp_size_in_bytes, rel=0.4)


@pytest.mark.parametrize("on, fits", [("gpu-h100-8", False), ("gpu-h100-1024", True), ("cpu-8", True)])
def test_a_model_that_is_too_large_for_some_hardware_is_known_to_be(on, fits):
    cfg = on_hardware(recipe("llama3.1-405b"), on)
    found = estimate(cfg, hardware(on))
    each = 16 * cfg.mesh.data / hardware(on).num_chips  # Parameter, gradient and two of Adam, in float32.
    state = 405_853_388_800 * each / 2**30
    assert found.fits == fits
    assert state <= found.state_gib < 1.005 * state  # Some small ones are on all devices along `tensor`.
    assert found.total_gib == found.state_gib + found.activations_gib
    assert (found.limit_gib is None) == (on == "cpu-8")


RECORDS = Path(__file__).parents[2] / "benchmarks" / "results" / "compile"


@pytest.mark.parametrize("pair", ["llama2-7b@tpu-v5p-512", "llama3-8b@tpu-v5e-16", "qwen3-30b-a3b@gpu-b200-512"])
def test_the_estimate_is_near_what_the_real_compilers_said(pair):
    recorded = json.loads((RECORDS / f"{pair}.json").read_text("utf-8"))
    name, _, on = pair.partition("@")
    mesh = Mesh(**recorded["mesh"])
    cfg = on_hardware(recipe(name), on).set(mesh=mesh, remat=recorded["remat"])
    cfg = cfg.set(num_microbatches=recorded["num_microbatches"])
    assert estimate(cfg, hardware(on)).total_gib == pytest.approx(recorded["hbm_per_chip_gib"], rel=0.15)
