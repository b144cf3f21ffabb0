# SPDX-License-Identifier: Apache-2.0
"""What a run costs, known from its config alone."""

from typing import Any, NamedTuple

import jax

from dovetail.aot import count_flops
from dovetail.module import abstract

from ._step import abstract_batch, eval_step


class Size(NamedTuple):
    """The size of a run."""

    parameters: int
    flops_per_token: float  # Of training: three times the forward pass, by the rule of `count_flops`.


def size_of(cfg: Any) -> Size:
    """Returns the size of the run that the config of a trainer describes; nothing is made or compiled."""
    model = cfg.model.build(path="model")
    params = abstract(model)
    shape = (cfg.input.batch_size, cfg.input.seq_len)
    forward = count_flops(eval_step(model, dtype=None), params, abstract_batch(*shape))
    return Size(sum(leaf.size for leaf in jax.tree.leaves(params)), 3 * forward / (shape[0] * shape[1]))
