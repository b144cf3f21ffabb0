# SPDX-License-Identifier: Apache-2.0
"""What an operation takes by definition, however it is computed.

Kernels skip blocks or compute some in vain, chunks are filled up, a backward pass computes again. None of that is work
of the model. So an operation that can be computed in several ways says what it takes by its definition, and a program
that is traced only to be counted holds that statement in place of the operation. Code that a step hardly ever runs
says so by its scope, which stays in compiled programs.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching


class Work(NamedTuple):
    """Operations of matrix products, of the forward pass."""

    flops: int  # What the result depends on: of attention, the scores that the mask lets through.
    full: int  # With all scores of attention, as others count.


_RARELY = "rarely"


# Not a context variable: JAX must not take a function that it has traced outside for the same one inside.
_counted = jax.make_user_context(False)


def by_definition() -> contextlib.AbstractContextManager[None]:
    """Returns the context in which operations are replaced by statements of what they take. For tracing, not to run."""
    return _counted(True)


def is_counted() -> bool:
    """Whether the program that is being traced will only be counted."""
    return _counted.value


def rarely() -> contextlib.AbstractContextManager[Any]:
    """Returns the scope of code that a step hardly ever runs: reports on a program do not count it."""
    return jax.named_scope(_RARELY)


def is_rare(op_name: str) -> bool:
    """Whether an operation, by the name that JAX gives it in traced and compiled programs, is in such a scope."""
    return _RARELY in op_name


def stated(work: Work, results: Any, *operands: Array) -> Any:
    """Returns stand-ins for the results of an operation: a tree of `jax.ShapeDtypeStruct` becomes one of arrays."""
    leaves, tree = jax.tree.flatten(results)
    shapes = tuple((leaf.shape, jax.numpy.dtype(leaf.dtype)) for leaf in leaves)

    @jax.custom_jvp
    def stand_in(*operands: Array) -> Sequence[Array]:
        return work_p.bind(*operands, work=work, shapes=shapes)

    @stand_in.defjvp
    def _(primals: Any, tangents: Any) -> Any:  # A model that takes gradients itself can be counted, those left out.
        found = stand_in(*primals)
        return found, [jax.numpy.zeros_like(each) for each in found]

    return jax.tree.unflatten(tree, stand_in(*operands))


work_p = Primitive("work")
work_p.multiple_results = True


@work_p.def_abstract_eval
def _(*operands: Any, work: Work, shapes: Any) -> Any:
    return [ShapedArray(shape, dtype) for shape, dtype in shapes]


def _batched(operands: Any, dims: Any, *, work: Work, shapes: Any) -> Any:
    size = next(x.shape[dim] for x, dim in zip(operands, dims, strict=True) if dim is not None)
    each = Work(work.flops * size, work.full * size)
    found = work_p.bind(*operands, work=each, shapes=tuple(((size, *shape), dtype) for shape, dtype in shapes))
    return found, [0] * len(found)


batching.primitive_batchers[work_p] = _batched
