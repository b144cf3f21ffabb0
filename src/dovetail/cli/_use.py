# SPDX-License-Identifier: Apache-2.0
"""A run that is used, not trained: on the mesh that it was trained on, or the largest part of it that is here."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.config import ConfigError
from dovetail.hardware import start_devices
from dovetail.zoo import is_published_name

from ._resolve import Run, is_run, resolve

if TYPE_CHECKING:
    from dovetail.train import Trained, Trainer

_VIRTUAL = 8  # Devices that a CPU may stand for at least; more if it has more cores.


def start_run(directory: str, overrides: Sequence[str], step: int | None, mesh: str | None, on: str | None) -> Run:
    """Returns a trained run, and starts the devices for it.

    If no mesh is asked for, that of the run is used if there are enough devices, and else one that is said.
    """
    if not is_run(directory) and not is_published_name(directory):
        raise ConfigError(f"there is no run in {directory!r}: it has no directory 'checkpoints'.")
    if mesh is not None or on is not None or any(text.startswith("mesh.") for text in overrides):
        return resolve(directory, overrides, mesh, on, step=step, devices=True)
    run = resolve(directory, overrides, step=step)
    from dovetail.parallel import shrink

    start_devices(shrink(run.cfg.mesh, max(_VIRTUAL, os.cpu_count() or 1)), os.environ)
    return run._replace(cfg=_on_what_is_here(run.cfg))


def load_run(run: Run, step: int | None) -> "Trained":
    """Returns the model of a run as it was trained, or that of a published model as it is."""
    from dovetail.train import load_initial, load_trained

    if not is_published_name(run.name):
        return load_trained(run.cfg, step=step)
    if step is not None:
        raise ConfigError(f"{run.name} is a published model, which has no steps. Leave out --step.")
    return load_initial(run.cfg)


def _on_what_is_here(cfg: "Trainer.Config") -> "Trainer.Config":
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
