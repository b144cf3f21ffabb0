# SPDX-License-Identifier: Apache-2.0
"""The design of subclasses: a model is a class, and a model with another part is a subclass of it."""

from typing import Any

from dovetail.loc.classical import kinds


class Transformer:
    """What all models share."""

    vocab_size: int
    dim: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    theta = 10_000.0

    def frequencies(self) -> list[float]:
        """Returns those of one head."""
        return []

    def feed_forward(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of one layer."""
        return kinds.dense(self.dim, self.hidden_dim)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each parameter."""
        layer = {**dict.fromkeys(("query", "key", "value", "out"), (self.dim, self.dim)), **self.feed_forward()}
        layers = {f"layers.{name}": (self.num_layers, *shape) for name, shape in layer.items()}
        return {"embedding": (self.vocab_size, self.dim), **layers}


# MODELS

# SUBCLASSES


def build(model: str, feature: str, kind: str) -> Any:
    """Returns the frequencies and the shapes of a model with a kind of a feature."""
    found = globals()[f"{model}_{kind}"]()
    return found.frequencies(), found.parameters()
