# SPDX-License-Identifier: Apache-2.0
"""GPT-2."""

import jax

from dovetail.config import config_for
from dovetail.models import CausalLM
from dovetail.module import normal
from dovetail.nn import (
    Attention,
    Block,
    DenseFeedForward,
    DenseLinear,
    LayerNorm,
    LearnedPosition,
    NoRotary,
    Repeat,
)

from ..hf import ACTIVATION, Fixed, Layers, LayerScale, Published, Value, tied, times


def gpt2(
    *, vocab_size: int = 50_257, max_length: int = 1024, dim: int, num_layers: int, num_heads: int, dropout: float = 0.1
) -> CausalLM.Config:
    """GPT-2: LayerNorm, learned positions, biases everywhere, tied embedding.

    Reference: Radford et al., Language Models are Unsupervised Multitask Learners, 2019, and its code.
    """
    linear = DenseLinear.Config(bias=True, init=config_for(normal, stddev=0.02))
    # Of layers that add to the residual: smaller the more of them there are.
    added = linear.set(init=config_for(normal, stddev=0.02 / (2 * num_layers) ** 0.5))
    attention = Attention.Config(
        num_heads=num_heads, query=linear, key=linear, value=linear, out=added, rotary=NoRotary.Config()
    )
    block = Block.Config(
        mixer_norm=LayerNorm.Config(),
        mixer=attention,
        ffn_norm=LayerNorm.Config(),
        ffn=DenseFeedForward.Config(hidden_dim=4 * dim, activation=jax.nn.gelu, up=linear, down=added),
    ).set_in("dropout.rate", dropout)
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        position=LearnedPosition.Config(max_length=max_length),
        stack=Repeat.Config(layer=block, num_layers=num_layers),
        norm=LayerNorm.Config(),
        head=None,
    ).set_in("dropout.rate", dropout)


GPT2 = Published(
    architecture="GPT2LMHeadModel",
    model_type="gpt2",
    template="gpt2-tiny",
    fields=(
        Layers("n_layer"),
        Value("vocab_size", "vocab_size"),
        Value("n_embd", "dim"),
        Value("n_head", "layer.mixer.num_heads", "layer.mixer.num_kv_heads"),
        Value("n_positions", "position.max_length", default=1024),
        Value("n_inner", "layer.ffn.hidden_dim", default=times("n_embd", 4), null=times("n_embd", 4)),
        Value("activation_function", "layer.ffn.activation", default="gelu_new", codec=ACTIVATION),
        Value("layer_norm_epsilon", "norm.eps", "layer.mixer_norm.eps", "layer.ffn_norm.eps", default=1e-5),
        LayerScale(),
        Fixed("add_cross_attention", False),
        tied(default=True),
    ),
    weights=(
        "transformer.wte.weight: v d = embedding.table: v d",
        "transformer.wpe.weight: t d = position.table: t d",
        "transformer.h.{l}.ln_1.weight: d = layer.mixer_norm.scale: d",
        "transformer.h.{l}.ln_1.bias: d = layer.mixer_norm.bias: d",
        "transformer.h.{l}.attn.c_attn.weight: d (h k + h k + h k) = "
        "layer.mixer.query.weight: d h k, layer.mixer.key.weight: d h k, layer.mixer.value.weight: d h k",
        "transformer.h.{l}.attn.c_attn.bias: (h k + h k + h k) = "
        "layer.mixer.query.bias: h k, layer.mixer.key.bias: h k, layer.mixer.value.bias: h k",
        "transformer.h.{l}.attn.c_proj.weight: (h k) d = layer.mixer.out.weight: h k d",
        "transformer.h.{l}.attn.c_proj.bias: d = layer.mixer.out.bias: d",
        "transformer.h.{l}.ln_2.weight: d = layer.ffn_norm.scale: d",
        "transformer.h.{l}.ln_2.bias: d = layer.ffn_norm.bias: d",
        "transformer.h.{l}.mlp.c_fc.weight: d f = layer.ffn.up.weight: d f",
        "transformer.h.{l}.mlp.c_fc.bias: f = layer.ffn.up.bias: f",
        "transformer.h.{l}.mlp.c_proj.weight: f d = layer.ffn.down.weight: f d",
        "transformer.h.{l}.mlp.c_proj.bias: d = layer.ffn.down.bias: d",
        "transformer.ln_f.weight: d = norm.scale: d",
        "transformer.ln_f.bias: d = norm.bias: d",
        "lm_head.weight: v d = head.weight: d v",
        "lm_head.weight == transformer.wte.weight",
        "*h.*.attn.bias -- the causal mask",
        "*h.*.attn.masked_bias -- a constant",
    ),
    ignored={
        "n_ctx": "the same as n_positions",
        "reorder_and_upcast_attn": "in what precision, not what",
        "summary_activation": "of classifiers",
        "summary_first_dropout": "of classifiers",
        "summary_proj_to_labels": "of classifiers",
        "summary_type": "of classifiers",
        "summary_use_proj": "of classifiers",
        "gradient_checkpointing": "of training alone",
    },
)
