# SPDX-License-Identifier: Apache-2.0
"""What layers publish for later ones: values by name, which travel through loops as the activations do."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# The annotations of JAX are incomplete.

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Protocol, Self

import jax
import jax.numpy as jnp
from jax import Array

Keep = Literal["first", "last"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Published:
    """A value that some layer has published, or, in a loop, will publish."""

    value: Any  # A tree of arrays `[B, ...]`.
    present: Array  # `[B]`, 1.0 if it has been published so far: in a loop, that is known only when it runs.
    keep: Keep = dataclasses.field(metadata={"static": True}, default="last")

    def otherwise(self, default: Any) -> Any:
        """Returns the value, or `default` as long as there is none."""
        return _chosen(self.present, self.value, default)

    def then(self, later: "Published") -> "Published":
        """Returns what is there after another publication of the same name."""
        first, second = (self, later) if later.keep == "first" else (later, self)
        value = _chosen(first.present, first.value, second.value)
        return Published(value, jnp.maximum(self.present, later.present), later.keep)


def published(value: Any, keep: Keep) -> Published:
    """Returns a value as published now; raises `ValueError` unless it is made of arrays of one batch."""
    leaves = jax.tree.leaves(value)
    if not leaves or not all(jnp.ndim(leaf) for leaf in leaves):
        raise ValueError("expected arrays [B, ...]")
    rows = max(leaf.shape[0] for leaf in leaves)

    def widened(leaf: Array) -> Array:
        return jnp.broadcast_to(leaf, (rows, *leaf.shape[1:]))

    return Published(jax.tree.map(widened, value), jnp.ones((rows,), jnp.float32), keep)


def after(old: Mapping[str, Published], new: Mapping[str, Published]) -> dict[str, Published]:
    """Returns all that is there after some more publications."""
    return {**old, **{name: old[name].then(each) if name in old else each for name, each in new.items()}}


class Context(Protocol):
    """What layers of a loop are told besides their input; `dovetail.nn.Context` is the one of its layers."""

    @property
    def shared(self) -> Mapping[str, Published]:
        """What layers before have published."""
        ...

    def sharing(self, shared: Mapping[str, Published]) -> Self:
        """Returns the same with other publications."""
        ...


def _chosen(flags: Array, a: Any, b: Any) -> Any:
    def one(a: Array, b: Array) -> Array:
        return jnp.where(flags.reshape(-1, *[1] * (jnp.ndim(a) - 1)) > 0, a, b)

    return jax.tree.map(one, a, b)
