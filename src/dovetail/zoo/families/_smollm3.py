# SPDX-License-Identifier: Apache-2.0
"""SmolLM3."""

from dovetail.models import CausalLM
from dovetail.nn import Attention, Block, GatedFeedForward, NoRotary, Repeat, RoPE, pattern_of

from ..hf import GATED, HeadDim, Layers, NoRope, Published, Rope, Value, WindowTypes, tied, where_no_rope
from ._common import ATTENTION, ATTENTION_BIASES, ENDS, FFN_BIASES, GATED_FFN, NORMS, PRE_NORMS, sizes


def smollm3(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    theta: float = 5_000_000.0,
    no_rope_every: int = 4,
) -> CausalLM.Config:
    """SmolLM3: as Llama 3, but each `no_rope_every`-th layer is without positions; tied embedding.

    Reference: Bakouch et al., SmolLM3: smol, multilingual, long-context reasoner, 2025
    (huggingface.co/blog/smollm3).
    """
    block = Block.Config(
        mixer=Attention.Config(num_heads=num_heads, num_kv_heads=num_kv_heads),
        ffn=GatedFeedForward.Config(hidden_dim=hidden_dim),
    )
    rotary = (RoPE.Config(theta=theta),) * (no_rope_every - 1) + (NoRotary.Config(),)
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        stack=Repeat.Config(layer=pattern_of(block, {"mixer.rotary": rotary}), num_layers=num_layers),
        head=None,
    )


SMOLLM3 = Published(
    architecture="SmolLM3ForCausalLM",
    model_type="smollm3",
    template="smollm3-tiny",
    fields=(
        Layers(),
        *sizes(kv_heads=4),
        HeadDim(),
        Value("rms_norm_eps", *NORMS, default=1e-6),
        Value("hidden_act", "layer.ffn.activation", default="silu", codec=GATED),
        Value("attention_bias", *ATTENTION_BIASES, default=False),
        Value("mlp_bias", *FFN_BIASES, default=False),
        WindowTypes(where_no_rope, switch=True),
        Rope(theta=2_000_000.0),
        NoRope(),
        tied(default=True),
    ),
    weights=(
        *ENDS,
        *ATTENTION,
        *PRE_NORMS,
        *GATED_FFN,
    ),
    ignored={
        "no_rope_layer_interval": "no_rope_layers says it",
        "pretraining_tp": "how products are split in training",
        "max_window_layers": "layer_types says it",
    },
)
