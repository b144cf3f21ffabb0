# SPDX-License-Identifier: Apache-2.0
"""Served models in few bits: which parts of a model are replaced, and where that is refused."""

from collections.abc import Mapping
from typing import Any, Literal

from dovetail.config import ConfigError, Modifier, chain, replace_all
from dovetail.nn import (
    Cache,
    DenseGroupedLinear,
    DenseLinear,
    Int8Cache,
    PackedLinear,
    QuantisedGroupedLinear,
    QuantisedLinear,
)
from dovetail.ops import Support

Weights = Literal["bfloat16", "int8", "int4"]
KV = Literal["int8"]
# Measured: benchmarks/results/quantised.md.
_ON_CPU: Mapping[str, str] = {"int8": "1.2 to 1.6", "int4": "1.6 to 2.0"}


def quantised(weights: Weights | None, kv: KV | None) -> Modifier:
    """Returns what puts the linear maps of the stack, those of experts too, and the caches of a model into few bits.

    Embedding, head and router stay as they are.
    """
    changes: list[Modifier] = []
    if weights in ("int8", "int4"):
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


def check_speed(weights: Weights | None, platform: str, native: Support, model: Any) -> None:
    """Raises where weights in few bits are slower than in float32: on CPUs, without a native kernel for them.

    Args:
        native: whether there are native kernels.
    """
    if weights is None or platform != "cpu":
        return
    changed = {type(change.new) for change in quantised(weights, None).report(model).changes}
    if weights == "int8" and native and changed == {QuantisedLinear.Config}:
        return
    why = f"not native: {native.reason}" if not native else "there is no native kernel for int4"
    if native and weights == "int8":
        why = "there is no native kernel for them where each row has a matrix of its own"
    raise ConfigError(
        f"weights={weights!r} takes {_ON_CPU[weights]} times as long a token as float32 on a CPU (SmolLM2-135M, 8 rows"
        f" and 1), as XLA makes floating-point numbers of them first; {why}.\n"
        '  Leave weights out, or add slower=true to save memory all the same. kv="int8" decodes as fast as float32.'
    )


def in_panels_as_they_are() -> Modifier:
    """Returns what lets native kernels multiply by weights that are 8-bit integers."""

    def packed(old: QuantisedLinear.Config) -> Any:
        return PackedLinear.Config(kept="int8", bias=old.bias) if old.bits == 8 else old

    return replace_all(QuantisedLinear.Config, packed, missing="ok")


def is_rounded(weights: Weights | None, kv: KV | None) -> bool:
    """Whether parameters are rounded when they are loaded."""
    return weights in ("int8", "int4") or kv is not None


def check_kept(weights: Weights | None, native: Support) -> None:
    """Raises where weights cannot be kept as they should be."""
    if weights == "bfloat16" and not native:
        raise ConfigError(
            f"weights='bfloat16' is for native kernels, which keep them so, and compute in float32; {native.reason}.\n"
            "  Leave weights out. To compute in bfloat16, set compute_dtype=bfloat16 of the run."
        )
