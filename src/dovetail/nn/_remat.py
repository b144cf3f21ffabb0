# SPDX-License-Identifier: Apache-2.0
"""Which activations of each block are kept for the backward pass, by the name of a policy."""

from collections.abc import Mapping
from typing import Literal, TypeVar

from dovetail.config import ConfigBase, replace_all
from dovetail.module import Remat

from ._block import Block

_C = TypeVar("_C", bound=ConfigBase)
RematPolicy = Literal["save_all", "full", "save_dots", "save_qkvo", "offload_qkvo"]

# From the most memory to the least. All mixers call what they mix "qkv", and what comes out "attended".
POLICIES: Mapping[str, Remat | None] = {
    "save_all": None,  # Keep everything.
    "save_dots": Remat(save_dots=True),  # Keep the results of matrix products with weights, and of fused attention.
    "save_qkvo": Remat(save=("qkv", "attended")),  # Keep what goes into attention and what comes out.
    "offload_qkvo": Remat(offload=("qkv", "attended")),  # The same, in the memory of the host.
    "full": Remat(),  # Keep the input of each block.
}


def with_remat(cfg: _C, policy: RematPolicy | None) -> _C:
    """Returns the config of a model with the policy for each block; None: as the model has it."""
    if policy is None:
        return cfg
    return replace_all(Block.Config, lambda block: block.set(remat=POLICIES[policy]))(cfg)
