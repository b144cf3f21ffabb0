# SPDX-License-Identifier: Apache-2.0
"""Whether an objective and an input fit each other: fields that are read and given, and values that are in range."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from dovetail.config import ConfigError
from dovetail.data import BatchSpec, Input
from dovetail.module import Objective, abstract, call, init_run_state, merged

from ._batch import abstract_batch

_OURS = ("loss", "total_loss", "weight", "updates")  # Names of metrics that a step reports itself.


class Traced(NamedTuple):
    """What one trace of a loss shows."""

    read: frozenset[str]  # Fields of the batch.
    losses: tuple[str, ...]  # Paths of auxiliary losses.


def trace_loss(model: Objective, spec: BatchSpec, given_by: str, **options: Any) -> Traced:
    """Traces the loss of a batch; raises if it reads a field that is not there, or a field is not read.

    Args:
        given_by: who declares the batch, for errors.
        options: of `call`.
    """
    read: set[str] = set()
    found: list[Any] = []

    def loss(params: Any, batch: Mapping[str, Any], key: Any) -> None:
        both = merged(params, init_run_state(model))
        how = {"method": "loss", "rng": key, "train": True, "step": 0}
        out, collected = call(model, both, _Recorded(batch, read.add), **how, **options)
        found.extend((out, collected))

    objective, names = f"{model!r}", ", ".join(spec.fields)
    try:
        jax.eval_shape(loss, abstract(model), abstract_batch(spec), jax.eval_shape(lambda: jax.random.key(0)))
    except _MissingField as e:
        raise ConfigError(
            f"{objective} reads the field {e.name!r} of a batch, which {given_by} does not give. It gives: {names}.\n"
            "  Change the input, or the loss."
        ) from None
    unread = [name for name in spec.fields if name not in read]
    if unread:
        raise ConfigError(
            f"{given_by} gives the field {unread[0]!r}, which {objective} does not read. It reads: "
            f"{', '.join(sorted(read)) or 'none'}.\n  Change the input, or the loss."
        )
    out, collected = found
    if taken := [name for name in out.metrics if name in _OURS]:
        raise ConfigError(f"{objective}: the metric {taken[0]!r} is one of the trainer's own. Give it another name.")
    return Traced(frozenset(read), tuple(collected.losses))


def check_bounds(cfg: Objective.Config, data: Input, path: str) -> None:
    """Raises if values of a field may be larger than the objective allows."""
    bounds = data.bounds()
    for field, place in cfg.values_below.items():
        limit = cfg.get_in(place)
        if field in bounds and bounds[field] > limit:
            raise ConfigError(
                f"model.{place} is {limit}, but {field!r} of {path} ({type(data).__name__}) has values below "
                f"{bounds[field]}. Set it to at least that."
            )


class _MissingField(KeyError):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@jax.tree_util.register_pytree_node_class
class _Recorded(Mapping[str, Any]):
    """A batch that tells which of its fields are read."""

    def __init__(self, fields: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        self._fields, self._tell = fields, tell

    def __getitem__(self, name: str) -> Any:
        if name not in self._fields:
            raise _MissingField(name)
        self._tell(name)
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        return tuple(self._fields.values()), (tuple(self._fields), self._tell)

    @classmethod
    def tree_unflatten(cls, about: Any, values: tuple[Any, ...]) -> "_Recorded":
        names, tell = about
        return cls(dict(zip(names, values, strict=True)), tell)
