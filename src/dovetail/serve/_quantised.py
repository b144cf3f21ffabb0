# SPDX-License-Identifier: Apache-2.0
"""Served models in few bits: which parts of a model are replaced, and where that is refused."""

from collections.abc import Mapping
from typing import Any, Literal

from dovetail.config import ConfigError, Modifier, chain, replace_all
from dovetail.nn import Cache, DenseGroupedLinear, DenseLinear, Int8Cache, QuantisedGroupedLinear, QuantisedLinear

Weights = Literal["int8", "int4"]
KV = Literal["int8"]
# Measured: benchmarks/results/quantised.md.
_ON_CPU: Mapping[Weights, str] = {"int8": "1.2 to 1.6", "int4": "1.6 to 2.0"}


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
    """Raises where weights in few bits are slower than in float32."""
    if weights is None or platform != "cpu":
        return
    raise ConfigError(
        f"weights={weights!r} takes {_ON_CPU[weights]} times as long a token as float32 on a CPU (SmolLM2-135M, 8 rows"
        " and 1): its compiler has no product of float32 with integers, and makes floating-point numbers first.\n"
        '  Leave weights out, or add slower=true to save memory all the same. kv="int8" decodes as fast as float32.'
    )
