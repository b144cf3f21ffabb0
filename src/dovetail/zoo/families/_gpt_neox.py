# SPDX-License-Identifier: Apache-2.0
"""GPT-NeoX and Pythia."""

from typing import Literal

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, DenseFeedForward, DenseLinear, LayerNorm, PartialRotary, Repeat
from dovetail.ops import erf_gelu

from ..hf import ACTIVATION, Layers, Names, Published, Rope, Value, tied
from ._common import ATTENTION_BIASES, WORDS


def gpt_neox(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    hidden_dim: int,
    rotated: float = 0.25,
    order: Literal["sequence", "parallel"] = "parallel",
) -> CausalLM.Config:
    """GPT-NeoX: LayerNorm, attention beside a feed-forward, positions in a part of each head, biases everywhere.

    References: Black et al., GPT-NeoX-20B: An Open-Source Autoregressive Language Model, 2022 (arXiv:2204.06745);
    Biderman et al., Pythia: A Suite for Analyzing Large Language Models, 2023 (arXiv:2304.01373).

    Args:
        rotated: the share of a head that positions turn.
        order: attention and feed-forward read the same stream, or one after the other.
    """
    linear = DenseLinear.Config(bias=True)
    attention = Attention.Config(
        num_heads=num_heads,
        query=linear,
        key=linear,
        value=linear,
        out=linear,
        rotary=PartialRotary.Config(fraction=rotated),
    )
    block = Block.Config(
        mixer_norm=LayerNorm.Config(),
        mixer=attention,
        ffn_norm=LayerNorm.Config(),
        ffn=DenseFeedForward.Config(hidden_dim=hidden_dim, activation=erf_gelu, up=linear, down=linear),
        order=order,
    )
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        stack=Repeat.Config(layer=block, num_layers=num_layers),
        norm=LayerNorm.Config(),
    )


GPT_NEOX = Published(
    architecture="GPTNeoXForCausalLM",
    model_type="gpt_neox",
    template="gpt-neox-tiny",
    fields=(
        Layers(),
        *WORDS,
        Value("num_attention_heads", "layer.mixer.num_heads", "layer.mixer.num_kv_heads"),
        Value("intermediate_size", "layer.ffn.hidden_dim"),
        Value("layer_norm_eps", "norm.eps", "layer.mixer_norm.eps", "layer.ffn_norm.eps", default=1e-5),
        Value("hidden_act", "layer.ffn.activation", default="gelu", codec=ACTIVATION),
        Value("attention_bias", *ATTENTION_BIASES, default=True),
        Value("use_parallel_residual", "layer.order", default=True, codec=Names({True: "parallel", False: "sequence"})),
        Rope(partial=0.25, theta_names="rope_theta|rotary_emb_base", partial_names="partial_rotary_factor|rotary_pct"),
        tied(),
    ),
    weights=(
        "gpt_neox.embed_in.weight: v d = embedding.table: v d",
        "gpt_neox.layers.{l}.input_layernorm.weight: d = layer.mixer_norm.scale: d",
        "gpt_neox.layers.{l}.input_layernorm.bias: d = layer.mixer_norm.bias: d",
        "gpt_neox.layers.{l}.post_attention_layernorm.weight: d = layer.ffn_norm.scale: d",
        "gpt_neox.layers.{l}.post_attention_layernorm.bias: d = layer.ffn_norm.bias: d",
        "gpt_neox.layers.{l}.attention.query_key_value.weight: (h (k + k + k)) d = "
        "layer.mixer.query.weight: d h k, layer.mixer.key.weight: d h k, layer.mixer.value.weight: d h k",
        "gpt_neox.layers.{l}.attention.query_key_value.bias: (h (k + k + k)) = "
        "layer.mixer.query.bias: h k, layer.mixer.key.bias: h k, layer.mixer.value.bias: h k",
        "gpt_neox.layers.{l}.attention.dense.weight: d (h k) = layer.mixer.out.weight: h k d",
        "gpt_neox.layers.{l}.attention.dense.bias: d = layer.mixer.out.bias: d",
        "gpt_neox.layers.{l}.mlp.dense_h_to_4h.weight: f d = layer.ffn.up.weight: d f",
        "gpt_neox.layers.{l}.mlp.dense_h_to_4h.bias: f = layer.ffn.up.bias: f",
        "gpt_neox.layers.{l}.mlp.dense_4h_to_h.weight: d f = layer.ffn.down.weight: f d",
        "gpt_neox.layers.{l}.mlp.dense_4h_to_h.bias: d = layer.ffn.down.bias: d",
        "gpt_neox.final_layer_norm.weight: d = norm.scale: d",
        "gpt_neox.final_layer_norm.bias: d = norm.bias: d",
        "embed_out.weight: v d = head.weight: d v",
        "embed_out.weight == gpt_neox.embed_in.weight",
        "*.attention.bias -- the causal mask",
        "*.attention.masked_bias -- a constant",
        "*.rotary_emb.inv_freq -- follows from the config",
    ),
    ignored={
        "is_decoder": "as all of the family are",
        "gradient_checkpointing": "of training alone",
    },
)
