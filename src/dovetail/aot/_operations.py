# SPDX-License-Identifier: Apache-2.0
"""What the forward pass of a program does, operation by operation, read from its jaxpr: nothing is compiled.

Products of matrices and kernels are listed with their sizes. The rest is memory traffic, by a simple model of fusion:
what lies between two of them is one pass over memory, which reads what they made and writes what they take. A
program that is traced `by_definition` says of each kernel what it takes, not how it is computed.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from dovetail.ops import by_definition

from ._flops import equation_flops, inner_programs

_SUMS = ("add", "add_any")
_SUMMED = 3  # Values that a sum is left to be of, before it is stored.
_MOVES = ("gather", "scatter", "scatter-add", "sort", "dynamic_slice", "dynamic_update_slice")


class Product(NamedTuple):
    """A product of rows with a matrix, or of two activations."""

    scope: str  # Where it is, as modules are called: `model/stack/layer/ffn/up`.
    rows: int  # Of all matrices together.
    inner: int  # The dimension that is summed over.
    columns: int
    matrices: int  # Experts, heads: 1 for most.
    times: int  # How often the program runs it.

    @property
    def flops(self) -> int:
        """Operations, of all runs."""
        return 2 * self.rows * self.inner * self.columns * self.times


class Kernel(NamedTuple):
    """An operation that says what it takes: attention, a recurrence."""

    scope: str
    flops: int  # Of one run, as far as a mask lets it.
    head_dim: int
    context_bytes: int  # Of all operands but the first: of attention, keys and values.
    times: int
    recurrent: bool = False  # Whether it carries a state along, so that its work grows as the length does.


class Operations(NamedTuple):
    """What a program does; bytes are those that pass between memory and the chip."""

    products: list[Product]
    kernels: list[Kernel]
    traffic: dict[str, int]  # Bytes of what is neither, by scope.
    moved: dict[str, int]  # Bytes of rows that are looked up, sorted or scattered, by scope.


class _Value(NamedTuple):
    """A value on its way: what memory would be read for it, by the number of each source, and its own number if any."""

    sources: dict[int, int]
    stored: bool


_NOTHING = _Value({}, True)


def operations(function: Callable[..., Any], params: Any, *args: Any) -> Operations:
    """Returns what `function(params, *args)` does. Parameters count where they are multiplied, not as traffic.

    >>> x, w = jnp.ones((4, 2)), jnp.ones((2, 8))
    >>> found = operations(lambda w, x: jax.nn.relu(x @ w) @ w.T, w, x)
    >>> [(each.rows, each.inner, each.columns) for each in found.products], sum(found.traffic.values())
    ([(4, 2, 8), (4, 8, 2)], 256)
    """
    with by_definition():
        program = jax.make_jaxpr(function)(params, *args)
    walker = _Walker()
    given = [_NOTHING] * len(jax.tree.leaves(params))
    inputs = [walker.new(var.aval) for var in program.jaxpr.invars[len(given) :]]
    walker.walk(program.jaxpr, [*given, *inputs], "", 1)
    return walker.found


class _Walker:
    def __init__(self) -> None:
        self.found = Operations([], [], {}, {})
        self.count = 0

    def new(self, aval: Any) -> _Value:
        """Returns a value that lies in memory."""
        self.count += 1
        return _Value({self.count: _bytes(aval)}, True)

    def walk(self, jaxpr: Any, values: Sequence[_Value], scope: str, times: int) -> list[_Value]:
        """Adds what a program does, and returns its results."""
        known = dict(zip(jaxpr.invars, values, strict=True))
        for eqn in jaxpr.eqns:
            inputs = [_NOTHING if isinstance(var, Literal) else known.get(var, _NOTHING) for var in eqn.invars]
            place = "/".join(part for part in (scope, str(eqn.source_info.name_stack)) if part)
            results = self._equation(eqn, inputs, place, times)
            for var, value in zip(eqn.invars, inputs, strict=True):
                if eqn.primitive.name in _STORING and not isinstance(var, Literal) and not value.stored:
                    known[var] = self.new(var.aval)  # It was stored for this; who needs it next reads it.
            known |= dict(zip(eqn.outvars, results, strict=True))
        return [_NOTHING if isinstance(var, Literal) else known.get(var, _NOTHING) for var in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: list[_Value], scope: str, times: int) -> list[_Value]:
        name = eqn.primitive.name
        if name in _STORING:
            for var, value in zip(eqn.invars, inputs, strict=True):
                self._store(value, var.aval, scope, times)
            self._operation(eqn, scope, times)
            return [self.new(var.aval) for var in eqn.outvars]
        if name == "scan":
            return self._scan(eqn, inputs, scope, times)
        inner = list(inner_programs(eqn.params))
        if len(inner) == 1 and len(inner[0].invars) == len(inputs):
            return self.walk(inner[0], inputs, scope, times)
        if inner:
            for each in inner if name != "cond" else inner[-1:]:
                self.walk(each, [self.new(var.aval) for var in each.invars], scope, times)
            return [self.new(var.aval) for var in eqn.outvars]
        sources: dict[int, int] = {}
        for value in inputs:
            sources |= value.sources
        if name in _SUMS and len(sources) > _SUMMED:  # Else a stream through many layers would be summed up in each.
            self._store(_Value(sources, False), eqn.outvars[0].aval, scope, times)
            return [self.new(eqn.outvars[0].aval)]
        return [_Value(sources, not sources)] * len(eqn.outvars)

    def _scan(self, eqn: Any, inputs: list[_Value], scope: str, times: int) -> list[_Value]:
        body, consts = eqn.params["jaxpr"].jaxpr, eqn.params["num_consts"]
        carries, times = eqn.params["num_carry"], times * eqn.params["length"]
        # What goes from one run to the next lies in memory; of what a run takes a part of, only activations do.
        values = [
            self.new(var.aval) if consts <= i < consts + carries or value.sources else _NOTHING
            for i, (var, value) in enumerate(zip(body.invars, inputs, strict=True))
        ]
        results = self.walk(body, values, scope, times)
        for var, value in zip(body.outvars, results, strict=True):
            self._store(value, var.aval, scope, times)
        return [self.new(var.aval) for var in eqn.outvars]

    def _store(self, value: _Value, aval: Any, scope: str, times: int) -> None:
        """Counts a pass over memory that makes a value, if it is not there already."""
        if not value.stored:
            size = times * (sum(value.sources.values()) + _bytes(aval))
            self.found.traffic[scope] = self.found.traffic.get(scope, 0) + size

    def _operation(self, eqn: Any, scope: str, times: int) -> None:
        name, avals = eqn.primitive.name, [var.aval for var in eqn.invars]
        if name in _MOVES:
            size = 2 * times * sum(_bytes(var.aval) for var in eqn.outvars)
            self.found.moved[scope] = self.found.moved.get(scope, 0) + size
        elif name == "dot_general":
            (contracted, _), (batch, _) = eqn.params["dimension_numbers"]
            inner, matrices = (math.prod(avals[0].shape[dim] for dim in dims) for dims in (contracted, batch))
            rows = math.prod(avals[0].shape) // inner
            columns = math.prod(avals[1].shape) // (inner * matrices)
            self.found.products.append(Product(scope, rows, inner, columns, matrices, times))
        elif name == "work" and len(avals) >= 2 and avals[1].ndim == 3 and avals[0].ndim == 2:
            matrices, inner, columns = avals[1].shape  # Experts: each row goes to one of the matrices.
            rows = eqn.params["work"].flops // (2 * inner * columns)
            self.found.products.append(Product(scope, rows, inner, columns, matrices, times))
        else:
            flops = eqn.params["work"].flops if name == "work" else equation_flops(eqn)
            context = sum(map(_bytes, avals[1:]))
            recurrent = name == "work" and len(eqn.outvars) > 1  # Its second result is the state.
            self.found.kernels.append(Kernel(scope, flops, avals[0].shape[-1], context, times, recurrent))


_STORING = ("dot_general", "conv_general_dilated", "ragged_dot_general", "work", "pallas_call", *_MOVES)


def _bytes(aval: Any) -> int:
    dtype = getattr(aval, "dtype", None)
    return math.prod(aval.shape) * dtype.itemsize if dtype is not None and jnp.issubdtype(dtype, jnp.number) else 0
