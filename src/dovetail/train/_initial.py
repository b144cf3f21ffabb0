# SPDX-License-Identifier: Apache-2.0
"""The state before the first step: from nothing, or from the weights of other runs.

Parameters go by their paths in the model here, as in `stack.layer.mixer.query.weight`.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.checkpoint import Checkpointer, LeafInfo, load_config
from dovetail.config import REQUIRED, ConfigBase, ConfigError
from dovetail.module import init, init_run_state, merged, specs
from dovetail.optim import by_path

from ._program import Program
from ._step import TrainState, init_state

if TYPE_CHECKING:
    from ._trainer import Trainer

_STEP = re.compile(r"step_(\d+)")
_QUOTED = re.compile(r"\['([^']*)'\]")
_SHOWN = 20  # Parameters in a message.
_ALLOW = "To take what fits, and start the rest from scratch: init_from.strict=False"
_NOTHING = "Nothing of it does: it is another model. Set model... as that run did; `dovetail show RUN` prints it."
Files = Mapping[str, bytes]


class InitFrom(ConfigBase):
    """Where the first weights of a run, or of a part of it, are from.

    Neither optimizer state nor the position in the data comes along.
    """

    path: str = REQUIRED  # The directory of a run, or of one of its steps: runs/base/checkpoints/step_600.
    part: str = "model"  # What of it, by path: `model.policy`.
    to: str = "model"  # The part of this run that gets it: `model.reference`.
    strict: bool = True  # Whether all must fit. If not, what does not fit starts from scratch, or is left out.


class _Weights(NamedTuple):
    """What a run takes from another."""

    checkpoints: Path
    step: int
    wanted: Mapping[str, tuple[str, Any]]  # By parameter: its path in the checkpoint, and what to ask for.
    about: str  # Where they are from, and what does not fit.


def sources_of(cfg: "Trainer.Config") -> tuple[InitFrom, ...]:
    """Returns all that the first weights of a run are from."""
    given = cfg.init_from or ()
    return given if isinstance(given, tuple) else (given,)


def initial_state(program: Program, cfg: "Trainer.Config", files: Files | None) -> tuple[TrainState, str]:
    """Returns the state before the first step of a run, and what there is to say about it.

    `files` are those of its input, if it knows them: with others, the same numbers mean something else.
    """
    key, shardings = jax.random.key(cfg.seed), program.shardings
    if not sources_of(cfg):
        start = program.devices.jit(program.init, out_shardings=shardings)
        return jax.block_until_ready(start(key)), ""
    taken = _weights(cfg, _variables(program), files)

    def begin(found: Mapping[str, Any], key: Any) -> TrainState:
        def filled(fresh: Any) -> Any:  # What has been found of it is not computed.
            leaves = [found.get(path, leaf).astype(leaf.dtype) for path, leaf in by_path(fresh).items()]
            return jax.tree.unflatten(jax.tree.structure(fresh), leaves)

        run_state = filled(init_run_state(program.model))
        return init_state(filled(init(program.model, key)), program.learner, run_state)

    state = program.devices.jit(begin, out_shardings=shardings)(_read(taken), key)
    return jax.block_until_ready(state), "\n".join(f"Weights are from {weights.about}" for weights in taken)


def constants_of(program: Program) -> list[str]:
    """Returns the parameters that modules have declared as frozen."""
    return [path for path, spec in by_path(specs(program.model)).items() if spec.frozen]


def initial_values(program: Program, cfg: "Trainer.Config", paths: Collection[str]) -> dict[str, Any]:
    """Returns the values that some parameters had before the first step, from where they were taken then."""
    abstract = {path: leaf for path, leaf in by_path(program.abstract_state().params).items() if path in paths}

    def begin(found: Mapping[str, Any], key: Any) -> dict[str, Any]:
        fresh = by_path(init(program.model, key))
        return {path: found.get(path, fresh[path]).astype(leaf.dtype) for path, leaf in abstract.items()}

    taken = _weights(cfg, _variables(program), None)
    needed = [w._replace(wanted={path: w.wanted[path] for path in paths if path in w.wanted}) for w in taken]
    places = {path: leaf.sharding for path, leaf in abstract.items()}
    return program.devices.jit(begin, out_shardings=places)(_read(needed), jax.random.key(cfg.seed))


def check_init_from(program: Program, cfg: "Trainer.Config", files: Files | None, *, starts: bool) -> None:
    """Raises if a run cannot start from what it is to start from; once it has started, only if that is the run itself.

    No arrays are read, and nothing is written.
    """
    for source in sources_of(cfg):
        run = _checkpoints(source.path)[0].parent
        if os.path.realpath(run) == os.path.realpath(cfg.directory):
            raise ConfigError(
                f"init_from: {source.path!r} is this run itself. Give the new one a directory: directory=runs/NAME"
            )
    if starts:
        _weights(cfg, _variables(program), files)


def _variables(program: Program) -> Any:
    """Returns shapes, dtypes and places of parameters and state of the run, in one tree."""
    state = program.abstract_state()
    return merged(state.params, state.run_state)


def _checkpoints(path: str) -> tuple[Path, int | None]:
    """Returns the directory of checkpoints that a path leads to, and the step if it names one."""
    place = Path(path).expanduser()
    if match := _STEP.fullmatch(place.name):
        return place.parent, int(match[1])
    return place / "checkpoints", None


def _weights(cfg: "Trainer.Config", params: Any, files: Files | None) -> list[_Weights]:
    """Returns what a run with such parameters takes from others; raises if that is not allowed."""
    found, taken = list[_Weights](), dict[str, InitFrom]()
    for source in sources_of(cfg):
        found.append(_taken(source, params, files))
        if twice := [path for path in found[-1].wanted if path in taken]:
            both = f"{taken[twice[0]].path!r} and {source.path!r}"
            raise ConfigError(f"init_from: {twice[0]!r} is taken from both {both}. Use `to` to tell them apart.")
        taken |= dict.fromkeys(found[-1].wanted, source)
    return found


def _taken(cfg: InitFrom, params: Any, files: Files | None) -> _Weights:
    """Returns what comes from one source. Without `files`, those of the source are not compared."""
    directory, step = _checkpoints(cfg.path)
    if not directory.is_dir():
        raise ConfigError(f"init_from: {cfg.path!r} is not the directory of a run or a step: no {str(directory)!r}.")
    with Checkpointer.Config(directory=str(directory)).build() as checkpointer:
        step = checkpointer.latest() if step is None else step  # The same in all processes.
        stored = load_config(str(directory), step)
        leaves = checkpointer.leaves(stored.step)
    there, here = _within(_published(leaves), cfg.part, "part"), _within(by_path(params), cfg.to, "to")
    misfits = _misfits({path: leaves[place] for path, place in there.items()}, here)
    if files is not None and dict(stored.files) != dict(files):
        names = ", ".join(sorted({*stored.files, *files}))
        misfits.append(f"The files of its input are others ({names}): the same numbers may mean something else.")
    where, shown = f"{cfg.path}, step {stored.step}", "".join(f"\n  {line}" for line in _shortened(misfits))
    where += "" if cfg.to == "model" else f", for {cfg.to}"
    asked = {path: _like(leaf, leaves[there[path]]) for path, leaf in here.items() if path in there}
    wanted = {path: (there[path], leaf) for path, leaf in asked.items() if leaf is not None}
    if misfits and (cfg.strict or not wanted):
        advice = _ALLOW if wanted else _NOTHING
        raise ConfigError(f"init_from: {where} does not fit this run:{shown}\n  {advice}")
    prefix = _prefix(cfg.to)
    wanted = {f"{prefix}{path}": each for path, each in wanted.items()}
    return _Weights(directory, stored.step, wanted, f"{where}, but:{shown}" if misfits else f"{where}.")


def _read(taken: Sequence[_Weights]) -> dict[str, Any]:
    """Returns the parameters that a run takes from others, on its own mesh."""
    found: dict[str, Any] = {}
    for weights in taken:
        parts = dict(weights.wanted.values())
        if parts:
            with Checkpointer.Config(directory=str(weights.checkpoints)).build() as checkpointer:
                restored = checkpointer.restore_parts(parts, weights.step).state
            found |= {path: restored[place] for path, (place, _) in weights.wanted.items()}
    return found


def _misfits(there: Mapping[str, LeafInfo], here: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each parameter that is missing, left over or of another shape."""
    found = [f"{path!r} is not there." for path in here if path not in there]
    found += [f"{path!r} is there, and not in this model." for path in there if path not in here]
    pairs = ((path, there[path].shape, tuple(leaf.shape)) for path, leaf in here.items() if path in there)
    return found + [f"{path!r} is {old} there, {new} in this model." for path, old, new in pairs if old != new]


def _published(leaves: Mapping[str, LeafInfo]) -> dict[str, str]:
    """Returns where in a checkpoint the parameters are that a run publishes: their average, where there is one."""
    found: dict[str, str] = {}
    for under in ("params", "learner.ema", "run_state"):
        found |= parameters_at(leaves, under)
    if not found:
        raise ConfigError("init_from: that checkpoint has no parameters.")
    return found


def parameters_at(leaves: Mapping[str, Any], under: str) -> dict[str, str]:
    """Returns where in a state the parameters are that are under a path of it."""
    inside = {path.removeprefix(under): path for path in leaves if path.startswith(under)}
    # A name with an index, `predictions[0]`, is quoted in the path of a leaf.
    return {_QUOTED.sub(r".\1", path)[1:]: place for path, place in inside.items() if path[:1] in (".", "[")}


def _within(values: Mapping[str, Any], part: str, field: str) -> dict[str, Any]:
    """Returns the parameters of a part of a model, by their paths in it."""
    prefix = _prefix(part)
    found = {path.removeprefix(prefix): value for path, value in values.items() if path.startswith(prefix)}
    if not found:
        tops = ", ".join(sorted({f"model.{path.partition('.')[0]}" for path in values}))
        raise ConfigError(f"init_from.{field}: there are no parameters at {part!r}. There are: {tops}.")
    return found


def _prefix(part: str) -> str:
    """Returns how paths of parameters begin that are in a part, `model` being all of them."""
    return "" if part == "model" else f"{part.removeprefix('model.')}."


def _like(leaf: Any, stored: LeafInfo) -> Any:
    """Returns what to ask for to get a stored parameter to where `leaf` lies; None if it does not fit."""
    if stored.shape != tuple(leaf.shape):
        return None
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(stored.dtype), sharding=leaf.sharding)


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"... and {len(lines) - _SHOWN} more"]
