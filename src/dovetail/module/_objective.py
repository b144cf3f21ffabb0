# SPDX-License-Identifier: Apache-2.0
"""`Objective`: what is trained, a module with a loss; and `Loss`, what that gives."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
from jax import Array

from ._module import Module


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Loss:
    """Sums over a batch, so that parts of it can be added before dividing: the loss is `sum / weight`.

    The weight says how much the batch counts: tokens that are predicted, pairs, images. A batch of weight 0 counts for
    nothing. Each metric is a sum and the weight that this is to be divided by.
    """

    sum: Array
    weight: Array
    metrics: dict[str, tuple[Array, Array]] = dataclasses.field(default_factory=dict[str, tuple[Array, Array]])


class Objective(Module, abc.ABC):
    """What is trained: anything that has a loss. A trainer assumes nothing else.

    A model that computes its own loss is one. So is a module whose children are models, as for preferences or
    distillation. What else is to be added to the loss leaves by `self.add_loss`.
    """

    # Whether the loss of a batch is the sum of those of its rows. If not, as where each row is compared with all of the
    # others, a batch is never split into microbatches.
    sums_over_rows: ClassVar[bool] = True

    class Config(Module.Config):
        # Fields of a batch whose values must be less than a value of this config, by its path: `vocab_size`.
        values_below: ClassVar[Mapping[str, str]] = {}

    @abc.abstractmethod
    def loss(self, batch: Mapping[str, Array]) -> Loss:
        """Returns the loss of a batch: arrays by name, whose first dimension is the row."""
