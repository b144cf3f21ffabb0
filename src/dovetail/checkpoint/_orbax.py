# SPDX-License-Identifier: Apache-2.0
"""Steps of format 1, whose arrays Orbax wrote: they can still be read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax import Array

from ._step import ARRAYS


def load_by_orbax(path: Path, wanted: Mapping[str, Any]) -> dict[str, Array]:
    """Returns leaves in their stored form, laid out as `wanted` says. Each process reads all that it needs."""
    from orbax.checkpoint import v1 as ocp  # Here: it takes a while, and hardly anybody needs it.

    context = ocp.Context()
    context.pytree.loading.partial_load = True
    with context:
        return ocp.load(str(path / ARRAYS), dict(wanted))
