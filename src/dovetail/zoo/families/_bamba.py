# SPDX-License-Identifier: Apache-2.0
"""Bamba."""

from collections.abc import Sequence

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, GatedFeedForward, Mamba2, PartialRotary, RMSNorm, stack_of

from ..hf import GATED, Layers, MixerAt, Published, Rope, TimeStepLimit, Value, tied
from ._common import (
    ENDS,
    FFN_BIASES,
    MAMBA_SIZES,
    NORMS,
    WORDS,
    attention,
    attention_biases,
    convs,
    gated_ffn,
    heads,
    mamba,
    mamba_biases,
)


def bamba(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    attention_at: Sequence[int],
    mamba_head_dim: int = 64,
    num_groups: int = 1,
    state_dim: int = 128,
) -> CausalLM.Config:
    """Bamba: Mamba 2 in most layers, attention with positions in half of each head in a few, a feed-forward in each.

    Reference: IBM, Princeton, CMU and UIUC, Bamba: Inference-Efficient Hybrid Mamba2 Model, 2024
    (huggingface.co/blog/bamba).

    Args:
        attention_at: the layers with attention, from 0.
        num_groups: of heads that share keys and queries in Mamba 2, and are normed together.
    """
    norm = RMSNorm.Config(eps=1e-5)
    mixer = Mamba2.Config(head_dim=mamba_head_dim, num_groups=num_groups, state_dim=state_dim, norm_over="group")
    mamba = Block.Config(
        mixer_norm=norm, mixer=mixer, ffn_norm=norm, ffn=GatedFeedForward.Config(hidden_dim=hidden_dim)
    )
    attention = mamba.set(
        mixer=Attention.Config(num_heads=num_heads, num_kv_heads=num_kv_heads, rotary=PartialRotary.Config())
    )
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        stack=stack_of([attention if i in attention_at else mamba for i in range(num_layers)]),
        norm=norm,
    )


BAMBA = Published(
    architecture="BambaForCausalLM",
    model_type="bamba",
    template="bamba-tiny",
    fields=(
        Layers(),
        MixerAt("attn_layer_indices", Attention, Mamba2),
        *WORDS,
        *heads("layer.mixer:Attention", kv_heads=8),
        Value("intermediate_size", "layer.ffn.hidden_dim"),
        *MAMBA_SIZES,
        Value("mamba_d_conv", *convs("layer.mixer:Mamba2", "width"), default=4),
        Value("mamba_conv_bias", *convs("layer.mixer:Mamba2", "bias"), default=True),
        Value("mamba_proj_bias", *mamba_biases("layer.mixer:Mamba2"), default=False),
        TimeStepLimit("layer.mixer:Mamba2"),
        Value("rms_norm_eps", *NORMS, "layer.mixer:Mamba2.norm.eps", default=1e-5),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Value("attention_bias", *attention_biases("layer.mixer:Attention"), default=False),
        Value("mlp_bias", *FFN_BIASES, default=False),
        Rope("layer.mixer:Attention.rotary", partial=0.5),
        tied(),
    ),
    weights=(
        *ENDS[0:1],
        *ENDS[2:],
        "model.final_layernorm.weight: d = norm.scale: d",
        "model.layers.{l}.input_layernorm.weight: d = layer.mixer_norm.scale: d",
        "model.layers.{l}.pre_ff_layernorm.weight: d = layer.ffn_norm.scale: d",
        *attention("layer.mixer:Attention"),
        *mamba("model.layers.{l}.mamba", "layer.mixer:Mamba2"),
        *gated_ffn("model.layers.{l}.feed_forward"),
    ),
    ignored={
        "mamba_chunk_size": "how it is computed, not what",
        "num_logits_to_keep": "what transformers returns",
        "z_loss_coefficient": "of training alone",
        "attn_rotary_emb": "partial_rotary_factor says it",
    },
    priority=-1,  # Without a state-space layer, a model is rather of another family.
)
