# SPDX-License-Identifier: Apache-2.0
"""The rules for each family of hardware. None of them knows a model."""

from dovetail.config import find
from dovetail.hardware import Hardware, MeshRule, hardware, rule_for
from dovetail.nn import POLICIES
from dovetail.ops import (
    BlockedGroupedMatmul,
    BlockwiseAttention,
    CudnnAttention,
    MegabloxGroupedMatmul,
    NeuronAttention,
    RaggedDot,
    SplashAttention,
    TritonAttention,
    TritonGroupedMatmul,
)
from dovetail.train import Trainer

from ._rules import Fitted

# Of libtpu: schedule so that transfers hide behind computation, and let all-gathers run beside it.
_OVERLAP = {
    "xla_tpu_enable_latency_hiding_scheduler": "true",
    "xla_enable_async_all_gather": "true",
    "xla_enable_async_collective_permute": "true",
    "xla_tpu_enable_async_collective_fusion": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
    "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
    "xla_tpu_spmd_rng_bit_generator_unsafe": "true",  # Random numbers without collectives.
    "xla_tpu_perform_spmd_cse_prevention": "false",  # Saves memory.
}
_TPU = Fitted.Config(
    hardware="tpu-*",
    attention=(SplashAttention.Config(), BlockwiseAttention.Config()),
    grouped_matmul=(MegabloxGroupedMatmul.Config(), RaggedDot.Config()),
    remat=("save_dots", "save_qkvo", "offload_qkvo", "full"),
    compiler_options={"tpu": _OVERLAP},
)
_GPU = Fitted.Config(
    hardware="gpu-*",
    attention=(TritonAttention.Config(), CudnnAttention.Config(), BlockwiseAttention.Config()),
    grouped_matmul=(TritonGroupedMatmul.Config(), BlockedGroupedMatmul.Config()),
    expert=8,
    pipeline=16,
)
_TRAINIUM = Fitted.Config(
    hardware="trn*",
    attention=(NeuronAttention.Config(), BlockwiseAttention.Config()),
    grouped_matmul=(RaggedDot.Config(),),
    pipeline=16,
)
_CPU = Fitted.Config(
    hardware="cpu-*",
    attention=(BlockwiseAttention.Config(),),
    grouped_matmul=(BlockedGroupedMatmul.Config(),),
    compute_dtype="float32",
    remat=("save_all",),
)
MESH_RULES: tuple[MeshRule.Config, ...] = (_TPU, _GPU, _TRAINIUM, _CPU)


def policies_for(cfg: Trainer.Config, hardware: Hardware) -> list[str]:
    """Returns what a run there may keep for the backward pass: all that stays on the chip, and what its rule names."""
    rule = rule_for((*cfg.mesh_rules, *MESH_RULES), hardware)
    named = {name for _, found in find(rule, Fitted.Config) for name in found.remat}
    return [name for name in POLICIES if "offload" not in name or name in named]


def on_hardware(cfg: Trainer.Config, name: str) -> Trainer.Config:
    """Returns the config of a trainer for some hardware: its own mesh rules first, then those for every recipe."""
    found = hardware(name)
    return rule_for((*cfg.mesh_rules, *MESH_RULES), found).build().apply(cfg, found)
