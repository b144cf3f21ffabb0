# SPDX-License-Identifier: Apache-2.0
"""What a run costs: the count against formulas written by hand, and what must not change it.

Shapes are abstract: models of any size are counted in a fraction of a second.
"""

import jax
import pytest

from dovetail.config import modify, override, replace_all, visit
from dovetail.models import MultiTokenPrediction
from dovetail.module import init, run_specs, specs
from dovetail.nn import Attention, Capacity, DenseLinear, LoRALinear, MoEFeedForward
from dovetail.ops import (
    AttentionKernel,
    BlockedGroupedMatmul,
    GroupedMatmul,
    QueryBlockAttention,
    RaggedDot,
    ReferenceAttention,
    SplashAttention,
)
from dovetail.plan import on_hardware
from dovetail.train import init_state, parts_of, size_of
from dovetail.zoo import RECIPES, recipe


def causal(length: int, window: int | None = None) -> float:
    """Returns the mean number of keys that a query sees, by going through them."""
    return sum(min(query + 1, window or length) for query in range(length)) / length


def test_llama2_7b_is_six_a_parameter_and_three_times_causal_attention():
    cfg = recipe("llama2-7b")
    size, tokens = size_of(cfg), 4096 * 1024
    layer = 4 * 4096**2 + 3 * 4096 * 11008
    products = 6 * (32 * layer + 4096 * 32000)
    assert size.flops_per_unit == products + 3 * 32 * 4 * 4096 * causal(4096)
    assert size.full_flops_per_unit == products + 3 * 32 * 4 * 4096 * 4096
    assert size.flops_per_unit * tokens == pytest.approx(1.798e17, rel=5e-4)
    assert size.full_flops_per_unit * tokens == pytest.approx(1.933e17, rel=5e-4)


def test_a_mixture_of_experts_counts_those_that_a_token_meets():
    size, length = size_of(recipe("qwen3-30b-a3b")), 4096  # 128 experts, 8 for each token.
    attention = 2048 * 128 * (2 * 32 + 2 * 4)
    layer = attention + 128 * 2048 + 8 * 3 * 2048 * 768
    assert size.flops_per_unit == 6 * (48 * layer + 2048 * 151_936) + 3 * 48 * 4 * 32 * 128 * causal(length)


def test_windows_of_gemma2_count_as_far_as_they_reach():
    size, length = size_of(recipe("gemma2-2b")), 8192  # 26 layers, every second with a window of 4096; tied.
    layer = 2304 * 256 * (2 * 8 + 2 * 4) + 3 * 2304 * 9216
    products = 6 * (26 * layer + 2304 * 256_000)
    each = 3 * 4 * 8 * 256
    assert size.flops_per_unit == products + 13 * each * (causal(length) + causal(length, 4096))
    assert size.full_flops_per_unit == products + 26 * each * length


def test_latent_attention_counts_keys_of_one_size_and_values_of_another():
    size, length = size_of(recipe("deepseek-v3")), 4096
    mixer = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 512 + 7168 * 64 + 512 * 128 * (128 + 128) + 128 * 128 * 7168
    dense, expert = 3 * 7168 * 18432, 3 * 7168 * 2048
    products = 61 * mixer + 3 * dense + 58 * (7168 * 256 + 9 * expert) + 7168 * 129_280
    assert size.flops_per_unit == 6 * products + 3 * 61 * 2 * 128 * (192 + 128) * causal(length)


def test_a_state_space_layer_counts_what_is_written_and_read():
    cfg = recipe("mamba2-130m")
    mixer, dim = cfg.model.stack.layer.mixer, cfg.model.dim
    inner, state = 2 * dim, mixer.state_dim
    layer = dim * (3 * inner + 2 * state + inner // mixer.head_dim)  # Gate, value, out; key, query; step.
    layers, vocab = cfg.model.stack.num_layers, cfg.model.vocab_size
    assert size_of(cfg).flops_per_unit == 6 * (layers * layer + dim * vocab) + 3 * layers * 4 * inner * state


def test_a_further_prediction_counts_its_block_and_the_head_again():
    cfg = recipe("llama3-tiny")
    block = cfg.model.stack.layer
    more = cfg.set_in("model.predictions", (MultiTokenPrediction.Config(block=block),))
    model = cfg.model
    one = cfg.set_in("model.stack.num_layers", 1)
    two = cfg.set_in("model.stack.num_layers", 2)
    layer = size_of(two).flops_per_unit - size_of(one).flops_per_unit
    added = size_of(more).flops_per_unit - size_of(cfg).flops_per_unit
    assert added == pytest.approx(layer + 6 * (2 * model.dim**2 + model.dim * model.vocab_size))


def test_what_is_frozen_needs_no_gradient_of_its_own():
    cfg = recipe("llama3-tiny")
    lora = replace_all(DenseLinear.Config, LoRALinear.Config(rank=2), at="model.stack.*")(cfg)
    frozen = lora.set_in("learner.trainable", ("*.lora_*",))
    whole, length = size_of(cfg), cfg.input.seq_len
    adapters = size_of(lora).flops_per_unit - whole.flops_per_unit  # 6 for each number in them.
    left_out = whole.full_flops_per_unit - whole.flops_per_unit  # Scores of what comes later.
    attention = left_out * causal(length) / (length - causal(length))
    products = whole.flops_per_unit - attention
    assert size_of(frozen).flops_per_unit == pytest.approx(4 / 6 * products + attention + adapters)


KERNELS = {
    "reference": ReferenceAttention.Config(),
    "query blocks": QueryBlockAttention.Config(),
    "splash": SplashAttention.Config(),
}


@pytest.mark.parametrize("name", ["gemma2-tiny", "qwen3-moe-tiny", "deepseek-v3-tiny", "hybrid-tiny"])
def test_nothing_but_the_model_changes_it(name):
    cfg = recipe(name).set_in("input.seq_len", 31)
    want = size_of(cfg)

    def same(other):
        assert size_of(other) == want

    for kernel in KERNELS.values():
        same(replace_all(AttentionKernel.Config, lambda _, new=kernel: new, missing="ok")(cfg))
    for product in (RaggedDot.Config(), BlockedGroupedMatmul.Config(block=7)):
        same(replace_all(GroupedMatmul.Config, lambda _, new=product: new, missing="ok")(cfg))
    dropping = modify(MoEFeedForward.Config, lambda moe: moe.set(dispatch=Capacity.Config(factor=3.0)), missing="ok")
    same(dropping(cfg))
    same(cfg.set(remat="full"))
    same(override(cfg, ["mesh.fsdp=4", "num_microbatches=2", "model.loss_chunk=13"]))
    same(cfg.set(compute_dtype="bfloat16"))
    if name == "qwen3-moe-tiny":
        same(on_hardware(cfg, "tpu-v5p-8"))
    if name == "hybrid-tiny":
        for path, node in _chunked(cfg):
            same(cfg.set_in(path, node.set(chunk=5)))


def _chunked(cfg):
    found = [(path, node) for path, node in visit(cfg) if hasattr(node, "chunk")]
    assert found
    return found


def test_a_smaller_window_is_less_work_and_all_scores_are_not():
    cfg = recipe("llama3-tiny")
    narrow = modify(Attention.Config, lambda attention: attention.set(window=4))(cfg)
    assert size_of(narrow).flops_per_unit < size_of(cfg).flops_per_unit
    assert size_of(narrow).full_flops_per_unit == size_of(cfg).full_flops_per_unit


@pytest.mark.parametrize("name", ["tiny-lm", "deepseek-v3-tiny", "hybrid-tiny"])
def test_the_parts_of_a_run_are_all_of_it(name):
    cfg = recipe(name)
    parts, size = parts_of(cfg), size_of(cfg)
    biases = sum(spec.size for spec in jax.tree.leaves(run_specs(cfg.model.build())))  # Published as parameters.
    assert sum(part.parameters for part in parts.values()) == size.parameters == RECIPES[name].parameters - biases
    state = jax.eval_shape(lambda: init_state(init(cfg.model.build(), jax.random.key(0)), _learner(cfg)))
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.learner))
    assert sum(part.optimizer_bytes for part in parts.values()) == held


def _learner(cfg):
    return cfg.learner.build(specs=specs(cfg.model.build()), steps=cfg.steps)


def test_a_part_takes_six_operations_for_each_parameter_that_a_token_meets():
    parts = parts_of(recipe("tiny-lm"))
    up, norm, mixer = (parts[f"model.stack.layer.{name}"] for name in ("ffn.up", "ffn_norm", "mixer"))
    assert up.flops_per_unit == 6 * up.parameters == 6 * 4 * 128 * 320
    assert (up.parameter_bytes, norm.optimizer_bytes) == (4 * up.parameters, 2 * norm.parameter_bytes)
    assert mixer.parameters == 0  # Its own work are the scores.
    assert 0 < mixer.flops_per_unit < mixer.full_flops_per_unit
