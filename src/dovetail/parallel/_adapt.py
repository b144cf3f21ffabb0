# SPDX-License-Identifier: Apache-2.0
"""What a mesh changes in the config of a model: the kernels that must know where their inputs lie."""

from typing import TypeVar

from dovetail.config import ConfigBase, replace_all
from dovetail.ops import AttentionKernel

from ._attention import GatheredAttention
from ._mesh import Mesh
from ._ring import RingAttention

_C = TypeVar("_C", bound=ConfigBase)
_KERNELS = {"gather": GatheredAttention, "ring": RingAttention}


def on_mesh(cfg: _C, mesh: Mesh) -> _C:
    """Returns the config of a model for a mesh: attention runs on each device's rows, heads and tokens.

    The compiler could split some kernels itself, but not those that are one call to it.
    """
    if mesh.num_devices == 1:
        return cfg
    kernel = _KERNELS[mesh.attention]

    def wrapped(old: AttentionKernel.Config) -> AttentionKernel.Config:
        known = isinstance(old, (GatheredAttention.Config, RingAttention.Config))
        return old if known else kernel.Config(inner=old, activations=mesh.rules.activations)

    return replace_all(AttentionKernel.Config, wrapped, missing="ok")(cfg)
