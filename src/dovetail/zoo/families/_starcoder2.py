# SPDX-License-Identifier: Apache-2.0
"""StarCoder2."""

import jax

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, DenseFeedForward, DenseLinear, LayerNorm, Repeat, RoPE

from ..hf import ACTIVATION, HeadDim, Layers, Published, Rope, Value, Window, tied
from ._common import ATTENTION, ATTENTION_BIASES, ENDS, PRE_NORMS, sizes


def starcoder2(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    window: int | None = 4096,
    theta: float,
) -> CausalLM.Config:
    """StarCoder2: LayerNorm, grouped-query attention with a window, a feed-forward without a gate, biases everywhere.

    Reference: Lozhkov et al., StarCoder 2 and The Stack v2: The Next Generation, 2024 (arXiv:2402.19173).
    """
    linear = DenseLinear.Config(bias=True)
    attention = Attention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        window=window,
        query=linear,
        key=linear,
        value=linear,
        out=linear,
        rotary=RoPE.Config(theta=theta),
    )
    block = Block.Config(
        mixer_norm=LayerNorm.Config(),
        mixer=attention,
        ffn_norm=LayerNorm.Config(),
        ffn=DenseFeedForward.Config(hidden_dim=hidden_dim, activation=jax.nn.gelu, up=linear, down=linear),
    )
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        stack=Repeat.Config(layer=block, num_layers=num_layers),
        norm=LayerNorm.Config(),
        head=None,
    )


STARCODER2 = Published(
    architecture="Starcoder2ForCausalLM",
    model_type="starcoder2",
    template="starcoder2-tiny",
    fields=(
        Layers(),
        *sizes(kv_heads=2),
        HeadDim(),
        Value("norm_epsilon", "norm.eps", "layer.mixer_norm.eps", "layer.ffn_norm.eps", default=1e-5),
        Value("hidden_act", "layer.ffn.activation", default="gelu_pytorch_tanh", codec=ACTIVATION),
        Value("use_bias", *ATTENTION_BIASES, "layer.ffn.up.bias", "layer.ffn.down.bias", default=True),
        Window(),
        Rope(),
        tied(default=True),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *PRE_NORMS,
        "model.norm.bias: d = norm.bias: d",
        "model.layers.{l}.input_layernorm.bias: d = layer.mixer_norm.bias: d",
        "model.layers.{l}.post_attention_layernorm.bias: d = layer.ffn_norm.bias: d",
        "model.layers.{l}.mlp.c_fc.weight: f d = layer.ffn.up.weight: d f",
        "model.layers.{l}.mlp.c_fc.bias: f = layer.ffn.up.bias: f",
        "model.layers.{l}.mlp.c_proj.weight: d f = layer.ffn.down.weight: f d",
        "model.layers.{l}.mlp.c_proj.bias: d = layer.ffn.down.bias: d",
    ),
    ignored={
        "mlp_type": "default, as in all of the family",
        "norm_type": "layer_norm, as in all of the family",
    },
)
