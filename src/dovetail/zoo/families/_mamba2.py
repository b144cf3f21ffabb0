# SPDX-License-Identifier: Apache-2.0
"""Mamba 2."""

from dovetail.config import config_for
from dovetail.models import CausalLM
from dovetail.module import variance_scaling
from dovetail.nn import Block, DenseLinear, Mamba2, Repeat, RMSNorm

from ..hf import ACTIVATION, Expand, Fixed, Layers, Published, TimeStepLimit, Value, tied
from ._common import convs, mamba, mamba_biases


def mamba2(*, vocab_size: int, dim: int, num_layers: int, head_dim: int = 64, state_dim: int = 128) -> CausalLM.Config:
    """Mamba 2: state-space layers alone, without attention or feed-forward; tied embedding.

    Reference: Dao and Gu, Transformers are SSMs, 2024 (arXiv:2405.21060), and its code.
    """
    norm = RMSNorm.Config(eps=1e-5)
    # As PyTorch fills a linear map; what adds to the residual is smaller, the more layers there are.
    linear = DenseLinear.Config(init=config_for(variance_scaling, 1 / 3, "fan_in", "uniform"))
    added = DenseLinear.Config(init=config_for(variance_scaling, 1 / (3 * num_layers), "fan_in", "uniform"))
    mixer = Mamba2.Config(
        head_dim=head_dim,
        state_dim=state_dim,
        norm_over="group",
        gate=linear,
        value=linear,
        key=linear,
        query=linear,
        delta=linear,
        out=added,
    )
    block = Block.Config(mixer_norm=norm, mixer=mixer, ffn=None, ffn_norm=None)
    stack = Repeat.Config(layer=block, num_layers=num_layers)
    return CausalLM.Config(vocab_size=vocab_size, dim=dim, stack=stack, norm=norm, head=None)


MAMBA2 = Published(
    architecture="Mamba2ForCausalLM",
    model_type="mamba2",
    template="mamba2-tiny",
    fields=(
        Layers(),
        Value("vocab_size", "vocab_size"),
        Value("hidden_size", "dim"),
        Value("num_heads", "layer.mixer.num_heads", default=128),
        Value("head_dim", "layer.mixer.head_dim", default=64),
        Value("state_size", "layer.mixer.state_dim", default=128),
        Expand("expand"),
        Value("n_groups", "layer.mixer.num_groups", default=8),
        Value("conv_kernel", *convs("layer.mixer", "width"), default=4),
        Value("use_conv_bias", *convs("layer.mixer", "bias"), default=True),
        Value("use_bias", *mamba_biases("layer.mixer"), default=False),
        Value("layer_norm_epsilon", "norm.eps", "layer.mixer_norm.eps", "layer.mixer.norm.eps", default=1e-5),
        Value("hidden_act", *convs("layer.mixer", "activation"), default="silu", codec=ACTIVATION),
        TimeStepLimit(),
        Fixed("rms_norm", True),
        tied(),
    ),
    weights=(
        "backbone.embeddings.weight: v d = embedding.table: v d",
        "backbone.layers.{l}.norm.weight: d = layer.mixer_norm.scale: d",
        *mamba("backbone.layers.{l}.mixer", "layer.mixer"),
        "backbone.norm_f.weight: d = norm.scale: d",
        "lm_head.weight: v d = head.weight: d v",
        "lm_head.weight == backbone.embeddings.weight",
    ),
    ignored={
        "chunk_size": "how it is computed, not what",
        "residual_in_fp32": "in what precision, not what",
        "rescale_prenorm_residual": "of training from scratch",
        "time_step_floor": "of training from scratch",
        "time_step_max": "of training from scratch",
        "time_step_min": "of training from scratch",
        "time_step_rank": "not used by the model",
        "norm_before_gate": "not used by the model",
    },
)
