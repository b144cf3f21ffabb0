# SPDX-License-Identifier: Apache-2.0
"""Weight decay, and which parameters it applies to: matrices, unless a group says otherwise."""

import math
from typing import Any

import jax

from dovetail.config import Component

from ._checks import expect
from ._groups import is_matrix


class WeightDecay(Component):
    """Decoupled weight decay: each update also subtracts `learning rate * rate * parameter`.

    Parameters that their specs call matrices decay, norms, biases and embeddings do not; groups of the learner have
    rates of their own.
    """

    class Config(Component.Config):
        rate: float = 0.1

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        expect(self, "rate", 0 <= cfg.rate < math.inf, "at least 0")

    def rates(self, specs: Any) -> Any:
        """Returns the decay rate of each parameter, as a tree like `specs`."""
        return jax.tree.map(lambda spec: self.cfg.rate if is_matrix(spec) else 0.0, specs)
