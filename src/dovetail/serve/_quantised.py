# SPDX-License-Identifier: Apache-2.0
"""Served models in few bits: which parts of a model are replaced, and where that is refused."""

from typing import Any, Literal

from dovetail.config import ConfigError, Modifier, chain, replace_all
from dovetail.nn import Cache, DenseGroupedLinear, DenseLinear, Int8Cache, QuantisedGroupedLinear, QuantisedLinear

Weights = Literal["int8", "int4"]
KV = Literal["int8"]


def quantised(weights: Weights | None, kv: KV | None) -> Modifier:
    """Returns what puts the linear maps of the stack, those of experts too, and the caches of a model into few bits.

    Embedding, head and router stay as they are.
    """
    changes: list[Modifier] = []
    if weights is not None:
        few: dict[str, Any] = {"bits": 8 if weights == "int8" else 4}
        at: dict[str, Any] = {"at": "*stack.*", "drop": ("init",)}
        changes.append(replace_all(DenseLinear.Config, QuantisedLinear.Config(**few), **at))
        of_experts = QuantisedGroupedLinear.Config(**few)
        changes.append(replace_all(DenseGroupedLinear.Config, of_experts, missing="ok", **at))
    if kv is not None:
        changes.append(replace_all(Cache.Config, _in_integers))
    return chain(*changes)


def _in_integers(old: Cache.Config) -> Cache.Config:
    return old if isinstance(old, Int8Cache.Config) else Int8Cache.Config(inner=old)


def check_speed(weights: Weights | None, platform: str) -> None:
    """Raises where weights in few bits are slower than as they are."""
    if weights == "int4" and platform == "cpu":
        raise ConfigError("TODO")
