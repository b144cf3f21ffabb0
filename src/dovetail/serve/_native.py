# SPDX-License-Identifier: Apache-2.0
"""A served model whose products are computed by native kernels, where these are for its device."""

import collections
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax.numpy as jnp

from dovetail.config import Modifier, chain, replace_all
from dovetail.nn import DenseLinear, Embedding, PackedEmbedding, PackedLinear
from dovetail.ops import Choice, Support, kernel_choices, native_support
from dovetail.train import Program, Trainer

from ._device import KernelUse

_MODEL = "model."


def packs_weights(program: Program) -> Support:
    """Says whether the weights of a program are put into panels for native kernels."""
    devices = program.devices
    if devices.platform != "cpu":
        return Support(f"they are for CPUs, this is {devices.platform}")
    if devices.mesh is not None:
        return Support("they are for one device")
    if program.dtype not in (None, jnp.float32):
        return Support(f"they compute in float32, this is {jnp.dtype(program.dtype).name}")
    return native_support()


def _packed(kept: Literal["float32", "bfloat16"], others: Modifier) -> Modifier:
    """Returns what puts the weights of a model into panels."""
    return chain(
        replace_all(DenseLinear.Config, PackedLinear.Config(kept=kept), missing="ok"),
        others,
        replace_all(Embedding.Config, PackedEmbedding.Config(kept=kept), missing="ok"),
    )


def packed_program(
    cfg: Trainer.Config,
    kept: Literal["float32", "bfloat16"],
    others: Modifier,
    trace: Callable[[Program], Any],
) -> Program:
    """Returns the program of a run with weights in panels, wherever that is how they are used.

    Args:
        kept: how weights are kept.
        others: puts those that are kept in other ways into panels.
        trace: traces all that is ever computed. What is looked up alone, or asked for as a matrix, stays as it is.
    """
    packed = _packed(kept, others).report(cfg.model)
    program = Program(cfg.set(model=packed.config), trains=False)
    with kernel_choices() as choices:
        trace(program)
    multiplied = {choice.path for choice in choices if choice.kernel == "PackedProduct"}
    multiplied -= {choice.path for choice in choices if choice.is_fallback}
    model = program.cfg.model
    for change in packed.changes:
        if _MODEL + change.path not in multiplied:
            model = model.set_in(change.path, change.old)
    if model != program.cfg.model:
        program = Program(cfg.set(model=model), trains=False)
    program.fallbacks = [choice for choice in choices if choice.is_fallback and choice.kernel == "XLA"]
    return program


def kernel_uses(choices: Sequence[Choice]) -> tuple[KernelUse, ...]:
    """Returns how many parts of a model each kernel computes, and instead of which."""
    found = collections.Counter((choice.kernel, choice.refused) for choice in choices)
    return tuple(KernelUse(kernel, count, refused) for (kernel, refused), count in found.items())
