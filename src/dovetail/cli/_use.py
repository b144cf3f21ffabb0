# SPDX-License-Identifier: Apache-2.0
"""A run that is used, not trained: on the mesh that it was trained on, or the largest part of it that is here."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from dovetail.config import override
from dovetail.hardware import hardware

from ._resolve import note, resolve_run

_VIRTUAL = 8  # Devices that a CPU may stand for at least; more if it has more cores.


def start_run(
    directory: str, overrides: Sequence[str], step: int | None, mesh: str | None, on: str | None
) -> tuple[Any, Any]:
    """Returns the config of a run and the files that it carries, and starts the devices for it.

    If no mesh is asked for, that of the run is used if there are enough devices, and else one that is said.
    """
    if on is not None:
        hardware(on)
    cfg, files = resolve_run(directory, overrides, step)  # First: it finds what is wrong before JAX is imported.
    from dovetail.launch import start_devices
    from dovetail.parallel import parse_mesh, shrink

    given = parse_mesh(mesh, cfg.mesh) if mesh is not None else None
    if given is None and on is None and not any(text.startswith("mesh.") for text in overrides):
        start_devices(shrink(cfg.mesh, max(_VIRTUAL, os.cpu_count() or 1)), os.environ)
        return _on_what_is_here(cfg), files
    start_devices(given or (cfg.mesh if on is None else hardware(on)), os.environ)
    if on is not None:
        from dovetail.plan import on_hardware

        cfg = override(on_hardware(cfg, on), overrides, note=note)
    return cfg if given is None else cfg.set(mesh=given), files


def _on_what_is_here(cfg: Any) -> Any:
    """Returns the config with a mesh that this machine has the devices for."""
    import jax

    from dovetail.parallel import shrink

    mesh = shrink(cfg.mesh, jax.device_count())
    if mesh != cfg.mesh:
        print(
            f"The run was on mesh {cfg.mesh.text()}, {cfg.mesh.num_devices} devices. This machine has "
            f"{jax.device_count()} ({jax.default_backend()}), so this is on {mesh.text()}. --mesh chooses another.",
            file=sys.stderr,
        )
    return cfg.set(mesh=mesh)
