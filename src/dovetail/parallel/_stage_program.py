# SPDX-License-Identifier: Apache-2.0
"""Takes a loss apart around its loop over layers, for a pipeline schedule that runs the parts in an order of its own.

The loss is traced for one microbatch. Its equations fall into those before the loop (the embedding), the body of the
loop (a stage), and those after it (the head, and the loss proper).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from dovetail.config import ConfigError

from ._layout import MeshLayout
from ._pipeline import STAGE, marked_loops

# From parameters, a microbatch and its number to the sum of its losses, and what else to report of it.
Loss = Callable[[Any, Any, Array], tuple[Array, Any]]


class Part:
    """A function made of some equations of a program, without those on which its results do not depend.

    `needs` are the numbers of the parameters (leaves, of a floating-point type) that it depends on.
    """

    def __init__(
        self, program: "StageProgram", equations: Sequence[Any], outs: Sequence[Any], given: Sequence[Any] = ()
    ):
        jaxpr = program.jaxpr.replace(
            constvars=[],
            invars=[*program.jaxpr.constvars, *program.jaxpr.invars, *given],
            outvars=list(outs),
            eqns=list(equations),
            debug_info=program.jaxpr.debug_info.with_unknown_names(),
        )
        jaxpr, self._used = dce_jaxpr(jaxpr, [True] * len(outs))
        self._run: Any = jaxpr_as_fun(ClosedJaxpr(jaxpr, []))
        self._constants, self._params = program.constants, program.params
        used = self._used[len(self._constants) :]
        self.needs = [i for i, param in enumerate(self._params) if used[i] and is_float(param)]
        self.varies = any(used[len(self._params) : len(program.jaxpr.invars)])  # With the microbatch.

    def __call__(self, params: Sequence[Array], inputs: Sequence[Array], given: Sequence[Array] = ()) -> list[Array]:
        """Returns its results, from the parameters in `needs`, the microbatch, and the variables `given`."""
        own = dict(zip(self.needs, params, strict=True))
        every = (own.get(i, param) for i, param in enumerate(self._params))
        values = [*self._constants, *every, *inputs, *given]
        return self._run(*(value for value, used in zip(values, self._used, strict=True) if used))


class StageProgram:
    """The parts of a loss. Trees are flat lists of leaves here; the number of the microbatch is its last leaf.

    `before` gives `x` for the first stage, `pieces` the parameters of all stages, and `after` the results of the loss,
    from what the last stage and, `[stages, ...]`, all of them leave.
    """

    def __init__(self, loss: Loss, params: Any, microbatch: Any, index: Any):
        with marked_loops() as loops:
            traced, out = jax.make_jaxpr(loss, return_shape=True)(params, microbatch, index)
        self.jaxpr = jaxpr = traced.jaxpr
        self.constants, self.params = traced.consts, jax.tree.leaves(params)
        found = [i for i, eqn in enumerate(jaxpr.eqns) if _is_loop(eqn)]
        _expect_one([path for path, _ in loops], len(found))
        self.layout: MeshLayout = loops[0][1]
        self.out_tree = jax.tree.structure(out)
        (at,) = found
        loop = jaxpr.eqns[at]
        num_constants, num_carried = loop.params["num_consts"], loop.params["num_carry"]
        first = num_constants + num_carried
        self.before = Part(self, jaxpr.eqns[:at], loop.invars[num_constants:first])
        self.pieces = Part(self, jaxpr.eqns[:at], loop.invars[first:])
        assert not self.pieces.varies, "a loop over layers is a loop over parameters"
        self.after = Part(self, [*jaxpr.eqns[:at], *jaxpr.eqns[at + 1 :]], jaxpr.outvars, loop.outvars)
        self._body, self._num_carried = jaxpr_as_fun(loop.params["jaxpr"]), num_carried
        self._shared = Part(self, jaxpr.eqns[:at], loop.invars[:num_constants])
        self.stage_needs = self._shared.needs

    def stage(
        self, params: Sequence[Array], inputs: Sequence[Array], piece: Sequence[Array], x: Sequence[Array]
    ) -> tuple[list[Array], list[Array]]:
        """Returns what a stage makes of `x`, and what its layers report; it computes what all stages share itself."""
        out = self._body(*self._shared(params, inputs), *x, *piece)
        return out[: self._num_carried], out[self._num_carried :]


def is_float(x: Any) -> bool:
    """Whether an array can have a gradient."""
    return jnp.issubdtype(x.dtype, jnp.floating)


def _is_loop(eqn: Any) -> bool:
    return eqn.primitive.name == "scan" and any(e.params.get("name") == STAGE for e in eqn.params["jaxpr"].eqns)


def _expect_one(paths: list[str], found: int) -> None:
    if len(paths) == 1 and found == 1:
        return
    if len(paths) == 1:
        what = f"the one at {paths[0]!r} is inside another transformation, such as the remat of a module around it"
    else:
        what = f"found {len(paths)}: {', '.join(map(repr, paths))}" if paths else "found none"
    raise ConfigError(
        "mesh.schedule is one_forward_one_backward, which takes a model with exactly one loop over layers whose number "
        f"the stages divide; {what}.\n  Use mesh.schedule=forward_first, or another number of stages."
    )
