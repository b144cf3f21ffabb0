# SPDX-License-Identifier: Apache-2.0
"""Mamba 2."""

from dovetail.config import config_for
from dovetail.models import CausalLM
from dovetail.module import variance_scaling
from dovetail.nn import Block, DenseLinear, Mamba2, Repeat, RMSNorm


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
