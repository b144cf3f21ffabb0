# SPDX-License-Identifier: Apache-2.0
"""What a run has trained, as it comes out of its directory: all that is needed to use it, and nothing to train it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from dovetail.checkpoint import Checkpointer, Restored, flatten
from dovetail.module import Objective, merged, run_specs, specs
from dovetail.optim import by_path
from dovetail.progress import phase

from ._initial import constants_of, initial_values, parameters_at
from ._program import Program
from ._step import TrainState

if TYPE_CHECKING:
    from ._trainer import Trainer


class Trained(NamedTuple):
    """A model, its parameters (their moving average, where the learner keeps one) with its run state, its steps.

    It computes as the run did: on its mesh, in its dtype, with its kernels.
    """

    program: Program
    params: Any
    step: int

    @property
    def model(self) -> Objective:
        """The model, as it is on the mesh of the run."""
        return self.program.model


def load_trained(cfg: "Trainer.Config", *, step: int | None = None) -> Trained:
    """Returns the model of the run that the config of a trainer describes; neither its data nor its optimizer is read.

    It lies on the mesh of that config, which need not be the one that the run was saved from.

    Args:
        step: of the checkpoint; the newest by default.
    """
    program = Program(cfg, trains=False)
    state, constants = flatten(program.abstract_state()), constants_of(program)
    places = parameters_at(state, "params")
    places |= parameters_at(state, "learner.ema") if cfg.learner.ema is not None else {}
    places |= (kept := parameters_at(state, "run_state"))
    missing = () if cfg.save_frozen else constants
    places = {path: place for path, place in places.items() if path not in missing}
    directory = str(Path(cfg.directory) / "checkpoints")
    with phase("restoring the checkpoint"), Checkpointer.Config(directory=directory).build() as checkpointer:
        restored = checkpointer.restore_parts({place: state[place] for place in ("step", *places.values())}, step)
    found = {path: restored.state[place] for path, place in places.items()}
    found |= initial_values(program, cfg, missing) if missing else {}
    params, tree = _filled(program, found), run_specs(program.model)
    run_state = jax.tree.unflatten(jax.tree.structure(tree), [found[path] for path in by_path(tree) if path in kept])
    return Trained(program, merged(params, run_state), int(restored.state["step"]))


def to_save(program: Program, state: TrainState) -> TrainState:
    """Returns what of a state goes into a checkpoint: all but parameters that never change, unless those should."""
    return state if program.cfg.save_frozen else _with_params(state, _without_constants(program, state.params))


def restore_state(program: Program, checkpointer: Checkpointer) -> tuple[Restored, TrainState]:
    """Restores the newest checkpoint of a run; what is not in it is taken from where the run took it."""
    restored = checkpointer.restore(to_save(program, program.abstract_state()))
    missing = () if program.cfg.save_frozen else constants_of(program)
    if not missing:
        return restored, restored.state
    tree = specs(program.model)
    parts = jax.tree.structure(tree).flatten_up_to(restored.state.params)
    found = dict(zip(by_path(tree), parts, strict=True)) | initial_values(program, program.cfg, missing)
    return restored, _with_params(restored.state, _filled(program, found))


def _without_constants(program: Program, params: Any) -> Any:
    return jax.tree.map(lambda spec, x: None if spec.frozen else x, specs(program.model), params)


def _with_params(state: TrainState, params: Any) -> TrainState:
    return dataclasses.replace(state, params=params)


def _filled(program: Program, found: Mapping[str, Any]) -> Any:
    """Returns parameters by path in the tree of the model."""
    tree = specs(program.model)
    return jax.tree.unflatten(jax.tree.structure(tree), [found[path] for path in by_path(tree)])
