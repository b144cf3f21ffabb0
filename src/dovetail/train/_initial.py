# SPDX-License-Identifier: Apache-2.0
"""The state before the first step: from nothing, or from the weights of other runs.

Parameters go by their paths in the model here, as in `stack.layer.mixer.query.weight`.
"""

import functools
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.checkpoint import Checkpointer, LeafInfo, checkpoints_of, is_url, load_config
from dovetail.checkpoint.hf import PublishedWeights
from dovetail.config import REQUIRED, ConfigBase, ConfigError
from dovetail.module import init, init_run_state, merged, specs
from dovetail.optim import by_path

from ._program import Program
from ._record import checkpoints_in
from ._step import TrainState, init_state

if TYPE_CHECKING:
    from ._trainer import Trainer

_STEP = re.compile(r"step_(\d+)")
_QUOTED = re.compile(r"\['([^']*)'\]")
_SHOWN = 20  # Parameters in a message.
_PUBLISHED = "hf:"
_ALLOW = "To take what fits, and start the rest from scratch: init_from.strict=False"
_NOTHING = "Nothing of it does: it is another model. Set model... as that run did; `dovetail show RUN` prints it."
Files = Mapping[str, bytes]


class InitFrom(ConfigBase):
    """Where the first weights of a run, or of a part of it, are from.

    Neither optimizer state nor the position in the data comes along.
    """

    # The directory of a run, or of one of its steps: runs/base/checkpoints/step_600. Or, `hf:DIRECTORY`, one in the
    # format of Hugging Face.
    path: str = REQUIRED
    weights: tuple[str, ...] = ()  # For `hf:`, the table of its family: which tensor holds which parameters.
    part: str = "model"  # What of it, by path: `model.policy`.
    to: str = "model"  # The part of this run that gets it: `model.reference`.
    strict: bool = True  # Whether all must fit. If not, what does not fit starts from scratch, or is left out.


class _Weights(NamedTuple):
    """What a run takes from elsewhere."""

    read: Callable[[Mapping[str, Any]], Mapping[str, Any]]  # From places there, and what to ask for, to arrays.
    wanted: Mapping[str, tuple[str, Any]]  # By parameter: its place there, and what to ask for.
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

    def begin(same: Mapping[str, Any], others: Mapping[str, Any], key: Any) -> TrainState:
        found = {**same, **others}

        def filled(fresh: Any) -> Any:  # What has been found of it is not computed.
            leaves = [found.get(path, leaf).astype(leaf.dtype) for path, leaf in by_path(fresh).items()]
            return jax.tree.unflatten(jax.tree.structure(fresh), leaves)

        run_state = filled(init_run_state(program.model))
        return init_state(filled(init(program.model, key)), program.learner, run_state, program.spikes)

    state = _begun(program, begin, _read(taken), by_path(_variables(program)), key, shardings)
    return jax.block_until_ready(state), "\n".join(f"Weights are from {weights.about}" for weights in taken)


def _begun(
    program: Program, begin: Any, found: Mapping[str, Any], wanted: Mapping[str, Any], key: Any, places: Any
) -> Any:
    """Calls `begin` with what was found, in whose memory the result is where both have the same dtype."""
    same = {path: value for path, value in found.items() if value.dtype == wanted[path].dtype}
    others = {path: value for path, value in found.items() if path not in same}
    return program.devices.jit(begin, out_shardings=places, donate_argnums=0)(same, others, key)


def constants_of(program: Program) -> list[str]:
    """Returns the parameters that modules have declared as frozen."""
    return [path for path, spec in by_path(specs(program.model)).items() if spec.frozen]


def initial_values(program: Program, cfg: "Trainer.Config", paths: Collection[str]) -> dict[str, Any]:
    """Returns the values that parameters and run state had before the first step, from where they were taken then."""
    abstract = {path: leaf for path, leaf in by_path(_variables(program)).items() if path in paths}

    def begin(same: Mapping[str, Any], others: Mapping[str, Any], key: Any) -> dict[str, Any]:
        found, fresh = {**same, **others}, by_path(merged(init(program.model, key), init_run_state(program.model)))
        return {path: found.get(path, fresh[path]).astype(leaf.dtype) for path, leaf in abstract.items()}

    taken = _weights(cfg, _variables(program), None)
    needed = [w._replace(wanted={path: w.wanted[path] for path in paths if path in w.wanted}) for w in taken]
    places = {path: leaf.sharding for path, leaf in abstract.items()} if program.shardings is not None else None
    return _begun(program, begin, _read(needed), abstract, jax.random.key(cfg.seed), places)


def check_init_from(program: Program, cfg: "Trainer.Config", files: Files | None, *, starts: bool) -> None:
    """Raises if a run cannot start from what it is to start from; once it has started, only if that is the run itself.

    No arrays are read, and nothing is written.
    """
    for source in sources_of(cfg):
        if is_published(source.path):
            continue
        theirs, mine = _checkpoints(source.path)[0], checkpoints_in(cfg)
        if theirs == mine or os.path.realpath(theirs) == os.path.realpath(mine):
            raise ConfigError(
                f"init_from: {source.path!r} is this run itself. Give the new one a directory: directory=runs/NAME"
            )
    if starts:
        _weights(cfg, _variables(program), files)


def _variables(program: Program) -> Any:
    """Returns shapes, dtypes and places of parameters and state of the run, in one tree."""
    state = program.abstract_state()
    return merged(state.params, state.run_state)


def _checkpoints(path: str) -> tuple[str, int | None]:
    """Returns where the checkpoints are that a path or a URL leads to, and the step if it names one."""
    parent, _, name = path.rstrip("/").rpartition("/")
    if match := _STEP.fullmatch(name):
        return parent if is_url(parent) else str(Path(path).expanduser().parent), int(match[1])
    return checkpoints_of(path if is_url(path) else str(Path(path).expanduser())), None


def _weights(cfg: "Trainer.Config", params: Any, files: Files | None) -> list[_Weights]:
    """Returns what a run with such parameters takes from others; raises if that is not allowed."""
    found, taken = list[_Weights](), dict[str, InitFrom]()
    for source in sources_of(cfg):
        is_run = not is_published(source.path)
        found.append(_taken(source, params, files) if is_run else _published_weights(source, params, cfg))
        if twice := [path for path in found[-1].wanted if path in taken]:
            both = f"{taken[twice[0]].path!r} and {source.path!r}"
            raise ConfigError(f"init_from: {twice[0]!r} is taken from both {both}. Use `to` to tell them apart.")
        taken |= dict.fromkeys(found[-1].wanted, source)
    return found


def _taken(cfg: InitFrom, params: Any, files: Files | None) -> _Weights:
    """Returns what comes from one source. Without `files`, those of the source are not compared."""
    directory, step = _checkpoints(cfg.path)
    if not is_url(directory) and not Path(directory).is_dir():
        raise ConfigError(f"init_from: {cfg.path!r} is not the directory of a run or a step: no {directory!r}.")
    with Checkpointer.Config(directory=directory).build() as checkpointer:
        step = checkpointer.latest() if step is None else step  # The same in all processes.
        stored = load_config(directory, step)
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
    read = functools.partial(_read_run, directory, stored.step)
    return _Weights(read, wanted, f"{where}, but:{shown}" if misfits else f"{where}.")


def _read_run(directory: str, step: int, parts: Mapping[str, Any]) -> Mapping[str, Any]:
    with Checkpointer.Config(directory=directory).build() as checkpointer:
        return checkpointer.restore_parts(parts, step).state


def is_published(path: str) -> bool:
    """Whether weights are those of a directory in the format of Hugging Face."""
    return path.startswith(_PUBLISHED)


def _published_weights(source: InitFrom, params: Any, cfg: "Trainer.Config") -> _Weights:
    """Returns what comes from a directory in the format of Hugging Face."""
    here = _within(by_path(params), source.to, "to")
    opened = functools.partial(published_weights, source, cfg, shapes_of(here))
    with opened() as weights:
        there = weights.leaves()

    def read(parts: Mapping[str, Any]) -> Mapping[str, Any]:
        with opened() as weights:
            return weights.read(parts)

    prefix = _prefix(source.to)
    fresh = [f"{path!r} is not there." for path in here if path not in there]
    shown = "".join(f"\n  {line}" for line in _shortened(fresh))
    wanted = {f"{prefix}{path}": (path, leaf) for path, leaf in here.items() if path in there}
    return _Weights(read, wanted, f"{source.path}, but:{shown}" if fresh else f"{source.path}.")


def published_weights(
    source: InitFrom, cfg: "Trainer.Config", shapes: Mapping[str, tuple[int, ...]]
) -> PublishedWeights:
    """Opens a directory in the format of Hugging Face, for parameters of these shapes."""
    if not source.weights:
        raise ConfigError(
            f"init_from: {source.path!r} is in the format of Hugging Face, but there is no table of its weights.\n"
            f"  Start from its recipe, which has it: dovetail train {source.path} ..."
        )
    stack = cfg.get_in(f"{source.to}.stack")
    directory = source.path.removeprefix(_PUBLISHED)
    return PublishedWeights(directory, source.weights, stack, shapes, partial=not source.strict)


def shapes_of(leaves: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each."""
    return {path: tuple(leaf.shape) for path, leaf in leaves.items()}


def _read(taken: Sequence[_Weights]) -> dict[str, Any]:
    """Returns the parameters that a run takes from elsewhere, on its own mesh."""
    found: dict[str, Any] = {}
    for weights in taken:
        parts = dict(weights.wanted.values())
        if parts:
            arrays = weights.read(parts)
            found |= {path: arrays[place] for path, (place, _) in weights.wanted.items()}
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
    return None if stored.shape != tuple(leaf.shape) else as_stored(leaf, stored)


def as_stored(leaf: Any, stored: LeafInfo | None) -> Any:
    """Returns what to ask for to get a floating-point array in the dtype that it is stored in."""
    if stored is None or not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(stored.dtype), sharding=leaf.sharding)


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"... and {len(lines) - _SHOWN} more"]
