# SPDX-License-Identifier: Apache-2.0
"""Granite 3, dense."""

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, DenseLinear, GatedFeedForward, Repeat, RMSNorm, RoPE

from ..hf import GATED, HeadDim, Layers, Published, Rope, Value, tied
from ._common import ATTENTION, ATTENTION_BIASES, ENDS, FFN_BIASES, GATED_FFN, MULTIPLIERS, NORMS, PRE_NORMS, SIZES


def granite(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    attention_scale: float,
    logit_scale: float,
    embedding_scale: float = 12.0,
    residual_scale: float = 0.22,
    theta: float = 10_000.0,
    tied: bool = True,
) -> CausalLM.Config:
    """Granite 3: as Llama, with a factor for each of embedding, scores, what a branch adds, and logits.

    Reference: Granite Team, Granite 3.0 Language Models, 2024 (github.com/ibm-granite/granite-3.0-language-models).
    """
    norm = RMSNorm.Config(eps=1e-5)
    attention = Attention.Config(
        num_heads=num_heads, num_kv_heads=num_kv_heads, scale=attention_scale, rotary=RoPE.Config(theta=theta)
    )
    block = Block.Config(
        mixer_norm=norm,
        mixer=attention,
        ffn_norm=norm,
        ffn=GatedFeedForward.Config(hidden_dim=hidden_dim),
        residual_scale=residual_scale,
    )
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        embedding_scale=embedding_scale,
        stack=Repeat.Config(layer=block, num_layers=num_layers),
        norm=norm,
        head=None if tied else DenseLinear.Config(),
        logit_scale=logit_scale,
    )


GRANITE = Published(
    architecture="GraniteForCausalLM",
    model_type="granite",
    template="granite-tiny",
    fields=(
        Layers(),
        *SIZES,
        HeadDim(),
        *MULTIPLIERS,
        Value("attention_multiplier", "layer.mixer.scale", default=1.0),
        Value("rms_norm_eps", *NORMS, default=1e-6),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Value("attention_bias", *ATTENTION_BIASES, default=False),
        Value("mlp_bias", *FFN_BIASES, default=False),
        Rope(),
        tied(),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *PRE_NORMS,
        *GATED_FFN,
    ),
)
