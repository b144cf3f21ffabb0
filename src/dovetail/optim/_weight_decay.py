# SPDX-License-Identifier: Apache-2.0
"""Weight decay, and which parameters it applies to: matrices, unless the config says otherwise."""

import math
from typing import Any

import jax

from dovetail.config import Component, ConfigError

from ._checks import expect, where
from ._groups import by_path, is_matrix, matching


class WeightDecay(Component):
    """Decoupled weight decay: each update also subtracts `learning rate * rate * parameter`.

    Parameters that their specs call matrices decay, norms, biases and embeddings do not. `overrides` sets the rate for
    whole paths or patterns: `{"*.router.weight": 0.0, "embedding.table": 0.1}`.
    """

    class Config(Component.Config):
        rate: float = 0.1
        overrides: dict[str, float] = {}

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        expect(self, "rate", 0 <= cfg.rate < math.inf, "at least 0")
        ok = all(0 <= rate < math.inf for rate in cfg.overrides.values())
        expect(self, "overrides", ok, "rates of at least 0")

    def rates(self, specs: Any) -> Any:
        """Returns the decay rate of each parameter, as a tree like `specs`."""
        chosen: dict[str, tuple[str, float]] = {}
        paths = list(by_path(specs))
        for pattern, rate in self.cfg.overrides.items():
            for path in matching(pattern, paths, f"{where(self)}: overrides"):
                other, before = chosen.setdefault(path, (pattern, rate))
                if before != rate:
                    raise ConfigError(
                        f"{where(self)}: overrides {other!r} ({before}) and {pattern!r} ({rate}) both fit {path}.\n"
                        "  Make one of them narrower."
                    )
        default = {path: self.cfg.rate if is_matrix(spec) else 0.0 for path, spec in by_path(specs).items()}
        rates = [chosen[path][1] if path in chosen else rate for path, rate in default.items()]
        return jax.tree.unflatten(jax.tree.structure(specs), rates)
