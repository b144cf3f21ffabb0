# SPDX-License-Identifier: Apache-2.0
"""The flat design: one config has the fields of everything, and one builder asks it what to build."""

import dataclasses
from typing import Any

from dovetail.loc.classical import kinds


@dataclasses.dataclass(frozen=True)
class Config:
    """All there is to say about a model."""

    vocab_size: int
    dim: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    theta: float = 10_000.0
    rope: str = "none"
    ffn: str = "dense"
    # FIELDS


def frequencies(cfg: Config) -> list[float]:
    """Returns those of one head."""
    if cfg.rope == "none":
        return []
    # ROPE
    raise ValueError(cfg.rope)


def feed_forward(cfg: Config) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of one layer."""
    if cfg.ffn == "dense":
        return kinds.dense(cfg.dim, cfg.hidden_dim)
    # MOE
    raise ValueError(cfg.ffn)


def parameters(cfg: Config) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each parameter of a model."""
    layer = {**dict.fromkeys(("query", "key", "value", "out"), (cfg.dim, cfg.dim)), **feed_forward(cfg)}
    layers = {f"layers.{name}": (cfg.num_layers, *shape) for name, shape in layer.items()}
    return {"embedding": (cfg.vocab_size, cfg.dim), **layers}


MODELS: dict[str, Config] = {
    # MODELS
}


def build(model: str, feature: str, kind: str) -> Any:
    """Returns the frequencies and the shapes of a model with a kind of a feature."""
    cfg = dataclasses.replace(MODELS[model], **{feature: kind})
    return frequencies(cfg), parameters(cfg)
