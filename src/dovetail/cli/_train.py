# SPDX-License-Identifier: Apache-2.0
"""`dovetail train RECIPE`: resolve, run."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.hardware import FULL_PROCESSES
from dovetail.launch import RESUMABLE

from ._resolve import Run, is_run, resolve
from ._start import add_start, start_and_overrides
from ._text import check_data

if TYPE_CHECKING:
    from dovetail.train import Trainer


def add_train(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_start(parser)
    parser.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> int:
    start, overrides = start_and_overrides(args)
    check_data(start.data)
    run = resolve(args.recipe, overrides, args.mesh, args.on, change=start.change, devices=True)
    cfg = _from_its_weights(run, overrides) if start.is_other and start.init_from is None else run.cfg
    trainer: Trainer = _on_those_left(cfg).build(files=run.files)
    trainer.run(allow_change=start.allow_change, data_change=start.data_change)
    return RESUMABLE if trainer.interrupted else 0


def _from_its_weights(run: Run, overrides: Sequence[str]) -> "Trainer.Config":
    """Returns the config of a run on another text: it starts from the weights of the run that is named, if one is."""
    from dovetail.train import InitFrom

    chosen = any(text.startswith("init_from") for text in overrides)
    if chosen or not is_run(run.name) or Path(run.cfg.directory).resolve() == Path(run.name).resolve():
        return run.cfg
    return run.cfg.set(init_from=InitFrom(path=run.name))


def _on_those_left(cfg: "Trainer.Config") -> "Trainer.Config":
    """Returns the config on a smaller mesh if some of the processes that a supervisor had planned are missing."""
    import jax

    from dovetail.parallel import shrink

    if int(os.environ.get(FULL_PROCESSES, "0")) <= jax.process_count():
        return cfg
    mesh = shrink(cfg.mesh, jax.device_count())
    if jax.process_index() == 0:
        print(f"Going on with {jax.process_count()} processes, on mesh {mesh.text()}, until others are back.")
    return cfg.set(mesh=mesh)
