# SPDX-License-Identifier: Apache-2.0
"""Command R, of Cohere."""

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, GatedFeedForward, LayerNorm, Repeat, RoPE

from ..hf import GATED, HeadDim, Layers, Present, Published, Rope, Value, tied
from ._common import ATTENTION, ATTENTION_BIASES, ENDS, GATED_FFN, QK_EPS, SIZES


def cohere(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    theta: float,
    logit_scale: float,
    qk_norm: bool = False,
) -> CausalLM.Config:
    """Command R: one LayerNorm without bias for attention and the feed-forward beside it, tied embedding.

    Reference: Cohere, Command R, 2024 (cohere.com/blog/command-r), and its code in transformers.

    Args:
        qk_norm: queries and keys are normed, by a scale of its own for each head.
    """
    norm = LayerNorm.Config(bias=False)
    attention = Attention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        query_norm=norm if qk_norm else None,
        key_norm=norm if qk_norm else None,
        norm_over="each_head" if qk_norm else "head",
        rotary=RoPE.Config(theta=theta, interleaved=True),
    )
    block = Block.Config(
        norm=norm,
        mixer_norm=None,
        mixer=attention,
        ffn_norm=None,
        ffn=GatedFeedForward.Config(hidden_dim=hidden_dim),
        order="parallel",
    )
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        stack=Repeat.Config(layer=block, num_layers=num_layers),
        norm=norm,
        head=None,
        logit_scale=logit_scale,
    )


COHERE = Published(
    architecture="CohereForCausalLM",
    model_type="cohere",
    template="command-r-tiny",
    fields=(
        Layers(),
        *SIZES,
        HeadDim(),
        Value(
            "use_qk_norm",
            "layer.mixer.query_norm",
            "layer.mixer.key_norm",
            default=False,
            codec=Present(LayerNorm.Config(bias=False)),
        ),
        Value("layer_norm_eps", "norm.eps", "layer.norm.eps", *QK_EPS, default=1e-5),
        Value("logit_scale", "logit_scale", default=0.0625),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Value("attention_bias", *ATTENTION_BIASES, default=False),
        Rope(theta=500_000.0, interleaved=True),
        tied(default=True),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *GATED_FFN,
        "model.layers.{l}.input_layernorm.weight: d = layer.norm.scale: d",
        "model.layers.{l}.self_attn.q_norm.weight: h k = "
        "layer.mixer.query_norm.scale: (h k) ~ layer.mixer.query.weight: d h k",
        "model.layers.{l}.self_attn.k_norm.weight: g k = "
        "layer.mixer.key_norm.scale: (g k) ~ layer.mixer.key.weight: d g k",
    ),
    ignored={
        "pretraining_tp": "how products are split in training",
    },
)
