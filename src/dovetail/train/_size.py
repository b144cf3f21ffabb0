# SPDX-License-Identifier: Apache-2.0
"""What a run costs, known from its config alone."""

from typing import Any, NamedTuple

import jax

from dovetail.aot import count_training_flops
from dovetail.config import replace_all
from dovetail.module import abstract, specs
from dovetail.nn import Dispatch, Dropless
from dovetail.optim import Learner

from ._step import abstract_batch, loss_function


class Size(NamedTuple):
    """The size of a run."""

    parameters: int
    flops_per_token: float  # Of training, by the rule of `count_training_flops`: attention as far as the mask lets it.
    full_flops_per_token: float  # The same with all scores of attention, as others count.


def size_of(cfg: Any) -> Size:
    """Returns the size of the run that the config of a trainer describes; nothing is made or compiled."""
    # Every token goes to all experts that are chosen for it, and none is a row more.
    model_cfg = replace_all(Dispatch.Config, lambda _: Dropless.Config(), missing="ok")(cfg.model)
    model = model_cfg.build(path="model")
    params, learner = abstract(model), cfg.learner.build(path="learner", specs=specs(model), steps=cfg.steps)
    assert isinstance(learner, Learner)
    shape = (cfg.input.batch_size, cfg.input.seq_len)
    loss = loss_function(model, dtype=None)
    key = jax.eval_shape(lambda: jax.random.key(0))
    work = count_training_flops(loss, params, learner.trained, abstract_batch(*shape), key)
    tokens = shape[0] * shape[1]
    return Size(sum(leaf.size for leaf in jax.tree.leaves(params)), work.flops / tokens, work.full / tokens)
