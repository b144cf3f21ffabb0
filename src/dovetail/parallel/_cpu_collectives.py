# SPDX-License-Identifier: Apache-2.0
"""How JAX's collectives, inside `jax.shard_map`, become programs for CPUs, where two things would go wrong (jax 0.10).

Channels: the devices of a CPU meet at a collective by the number of its channel, and JAX gives one number to all of a
program. XLA starts collectives in the order of the program, but where one is inside a loop and another beside it, they
may be under way at once, and share a meeting place: at best the process aborts ("Id can't be larger than the number of
participating threads"), at worst devices take one for the other, and results are wrong. Here, each collective gets a
number of its own. A function that JAX makes once and calls in two places has the same ones in both: in our programs,
these are loops that wait for each other.

Sums: where only some mesh axes are manual, JAX lays out the scalars that a sum adds. XLA takes that for a part of the
operation, and aborts when it widens a sum of bfloat16 ("Invalid binary instruction opcode copy"). Here, it is left out.

Other hardware keeps what JAX makes.
"""
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# JAX's own annotations are incomplete, and it has no public way to ask for a rule.

import functools
from collections.abc import Callable
from typing import Any

from jax._src.lax import parallel  # Not all of its primitives are public.
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

_COLLECTIVES: tuple[Any, ...] = (
    parallel.all_gather_invariant_p,
    parallel.all_gather_p,
    parallel.all_to_all_p,
    parallel.pmax_p,
    parallel.pmin_p,
    parallel.ppermute_p,
    parallel.psum_invariant_p,
    parallel.psum_p,
    parallel.reduce_scatter_p,
)
_HANDLE = "channel_handle"
_AFTER = ("stablehlo.reshape", "stablehlo.transpose")  # What JAX makes of the result of a collective.


@functools.cache  # Once for a process.
def mend_cpu_collectives() -> None:
    """Settles how collectives are lowered for CPUs, from now on."""
    for collective in _COLLECTIVES:
        rule = _for_cpus(mlir._lowerings[collective].rule)
        # Not cached: else equal ones would share what was made of the first.
        mlir.register_lowering(collective, rule, platform="cpu", cacheable=False)


def _for_cpus(rule: Callable[..., Any]) -> Callable[..., Any]:
    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        out = rule(ctx, *args, **params)
        for value in out:
            operation = value.owner
            while not isinstance(operation, ir.Block) and operation.name in _AFTER:
                operation = operation.operands[0].owner
            if not isinstance(operation, ir.Block) and _HANDLE in operation.attributes:
                number = ctx.module_context.new_channel()
                operation.attributes[_HANDLE] = stablehlo.ChannelHandle.get(number, mlir.DEVICE_TO_DEVICE_TYPE)
                _leave_scalars_alone(operation)
        return out

    return lower


def _leave_scalars_alone(collective: Any) -> None:
    for region in collective.regions:
        for operation in list(region.blocks[0].operations):
            if operation.name == "sdy.sharding_constraint":
                operation.result.replace_all_uses_with(operation.operands[0])
                operation.operation.erase()
