# SPDX-License-Identifier: Apache-2.0
"""What a run has trained, as it comes out of its directory: all that is needed to use it, and nothing to train it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.checkpoint import Checkpointer, Recovered, Restored, Tiers, flatten
from dovetail.config import ConfigError
from dovetail.module import Objective, merged, run_specs, specs
from dovetail.optim import by_path
from dovetail.progress import phase

from ._initial import (
    as_stored,
    constants_of,
    initial_values,
    is_published,
    parameters_at,
    published_weights,
    shapes_of,
    sources_of,
)
from ._program import Program
from ._record import checkpoints_in
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
    directory = checkpoints_in(cfg)
    with phase("restoring the checkpoint"), Checkpointer.Config(directory=directory).build() as checkpointer:
        newest = checkpointer.latest() if step is None else step
        stored = {} if newest is None else checkpointer.leaves(newest)
        wanted = {place: as_stored(state[place], stored.get(place)) for place in ("step", *places.values())}
        restored = checkpointer.restore_parts(wanted, step)
    found = {path: restored.state[place].astype(state[place].dtype) for path, place in places.items()}
    found |= initial_values(program, cfg, missing) if missing else {}
    params, tree = _filled(program, found), run_specs(program.model)
    run_state = jax.tree.unflatten(jax.tree.structure(tree), [found[path] for path in by_path(tree) if path in kept])
    return Trained(program, merged(params, run_state), int(restored.state["step"]))


def load_initial(cfg: "Trainer.Config") -> Trained:
    """Returns the model that a run would start from: with the weights of `init_from`, before the first step."""
    program = Program(cfg, trains=False)
    state = program.abstract_state()
    tree = merged(state.params, state.run_state)
    with phase("reading the weights"):
        found = initial_values(program, cfg, by_path(tree))
    return Trained(program, jax.tree.unflatten(jax.tree.structure(tree), [found[path] for path in by_path(tree)]), 0)


class Saved(NamedTuple):
    """What `save_initial` has written."""

    parameters: int
    dtypes: str


def save_initial(cfg: "Trainer.Config", files: Mapping[str, bytes]) -> Saved:
    """Saves the weights that a run would start from as its step 0, in the dtypes of their files, and nothing else.

    The run then has all that it needs in its own directory. It is without an optimizer, which starts with training.

    Args:
        files: those of its input.
    """
    program, sources = Program(cfg, trains=False), sources_of(cfg)
    if len(sources) != 1 or not is_published(sources[0].path):
        raise ConfigError(
            "init_from: weights are saved from one published model. Leave init_from as its recipe has it."
        )
    source = sources[0].set(strict=True)  # There is no rest that could start from scratch.
    state = program.abstract_state()
    wanted = by_path(merged(state.params, state.run_state))
    with phase("reading the weights"), published_weights(source, cfg, shapes_of(wanted)) as weights:
        stored = weights.leaves()
        found = weights.read({path: as_stored(leaf, stored[path]) for path, leaf in wanted.items()})

    def tree(like: Any) -> Any:
        return jax.tree.unflatten(jax.tree.structure(like), [found[path] for path in by_path(like)])

    step = jnp.zeros((), jnp.int32, device=program.devices.everywhere)
    kept = {"step": step, "params": tree(state.params), "run_state": tree(state.run_state)}
    directory = checkpoints_in(cfg)
    with phase("saving"), Checkpointer.Config(directory=directory).build() as checkpointer:
        checkpointer.save(0, kept, config=cfg.set(init_from=None), files=files)
    dtypes = ", ".join(sorted({leaf.dtype for leaf in stored.values()}))
    return Saved(sum(math.prod(leaf.shape) for leaf in wanted.values()), dtypes)


def has_only_weights(checkpointer: Checkpointer, step: int) -> bool:
    """Whether a step is what `save_initial` has made: there is nothing to go on from but weights."""
    return not any(path.startswith("learner") for path in checkpointer.leaves(step))


def to_save(program: Program, state: TrainState) -> TrainState:
    """Returns what of a state goes into a checkpoint: all but parameters that never change, unless those should."""
    return state if program.cfg.save_frozen else _with_params(state, _without_constants(program, state.params))


def restore_state(program: Program, checkpointer: Checkpointer, step: int | None = None) -> tuple[Restored, TrainState]:
    """Restores the newest checkpoint of a run (or `step`); what is not in it is taken from where the run took it."""
    restored = checkpointer.restore(to_save(program, program.abstract_state()), step)
    return restored, _completed(program, restored.state)


def recover_state(program: Program, tiers: Tiers) -> Recovered | None:
    """Returns the newest good state of a run, wherever it is; what is not kept is taken from where the run took it."""
    recovered = tiers.recover(to_save(program, program.abstract_state()))
    if recovered is None:
        return None
    return dataclasses.replace(recovered, state=_completed(program, recovered.state))


def _completed(program: Program, state: TrainState) -> TrainState:
    missing = () if program.cfg.save_frozen else constants_of(program)
    if not missing:
        return state
    tree = specs(program.model)
    parts = jax.tree.structure(tree).flatten_up_to(state.params)
    found = dict(zip(by_path(tree), parts, strict=True)) | initial_values(program, program.cfg, missing)
    return _with_params(state, _filled(program, found))


def _without_constants(program: Program, params: Any) -> Any:
    return jax.tree.map(lambda spec, x: None if spec.frozen else x, specs(program.model), params)


def _with_params(state: TrainState, params: Any) -> TrainState:
    return dataclasses.replace(state, params=params)


def _filled(program: Program, found: Mapping[str, Any]) -> Any:
    """Returns parameters by path in the tree of the model."""
    tree = specs(program.model)
    return jax.tree.unflatten(jax.tree.structure(tree), [found[path] for path in by_path(tree)])
