# SPDX-License-Identifier: Apache-2.0
"""The state before the first step: from nothing, or from the weights of another run."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.checkpoint import Checkpointer, LeafInfo, flatten, load_config
from dovetail.config import REQUIRED, ConfigBase, ConfigError
from dovetail.data import Tokenizer
from dovetail.module import init

from ._program import Program
from ._step import TrainState, init_state

_STEP = re.compile(r"step_(\d+)")
_SHOWN = 20  # Parameters in a message.
_ALLOW = "To take what fits, and start the rest from scratch: init_from.strict=False"
_NOTHING = "Nothing of it does: it is another model. Set model... as that run did; `dovetail show RUN` prints it."


class InitFrom(ConfigBase):
    """Where the first weights of a run are from. Neither optimizer state nor the position in the data comes along."""

    path: str = REQUIRED  # The directory of a run, or of one of its steps: runs/base/checkpoints/step_600.
    strict: bool = True  # Whether all must fit. If not, what does not fit starts from scratch, or is left out.


class _Weights(NamedTuple):
    """What a run takes from another."""

    checkpoints: Path
    step: int
    under: str  # Where in the state of the other run they are.
    wanted: Any  # The parameters, as they are there, where this run has them; None for those that it does not take.
    about: str  # Where they are from, and what does not fit.


def initial_state(program: Program, cfg: Any, tokenizer: Tokenizer) -> tuple[TrainState, str]:
    """Returns the state before the first step of a run, and what there is to say about it."""
    key, shardings = jax.random.key(cfg.seed), program.shardings
    if cfg.init_from is None:
        start = program.devices.jit(program.init, out_shardings=shardings)
        return jax.block_until_ready(start(key)), ""
    weights = _weights(cfg.init_from, program.abstract_state().params, tokenizer)

    def begin(found: Mapping[str, Any], key: Any) -> TrainState:
        fresh = init(program.model, key)  # What has been found of it is not computed.
        leaves = [found.get(path, leaf).astype(leaf.dtype) for path, leaf in flatten(fresh).items()]
        return init_state(jax.tree.unflatten(jax.tree.structure(fresh), leaves), program.learner)

    state = program.devices.jit(begin, out_shardings=shardings)(_read(weights), key)
    return jax.block_until_ready(state), f"Weights are from {weights.about}"


def check_init_from(program: Program, cfg: Any, tokenizer: Tokenizer, *, starts: bool) -> None:
    """Raises if a run cannot start from what it is to start from; once it has started, only if that is the run itself.

    No arrays are read, and nothing is written.
    """
    if cfg.init_from is None:
        return
    run = _checkpoints(cfg.init_from.path)[0].parent
    if os.path.realpath(run) == os.path.realpath(cfg.directory):
        raise ConfigError(
            f"init_from: {cfg.init_from.path!r} is this run itself. Give the new one a directory: directory=runs/NAME"
        )
    if starts:
        _weights(cfg.init_from, program.abstract_state().params, tokenizer)


def _checkpoints(path: str) -> tuple[Path, int | None]:
    """Returns the directory of checkpoints that a path leads to, and the step if it names one."""
    place = Path(path).expanduser()
    if match := _STEP.fullmatch(place.name):
        return place.parent, int(match[1])
    return place / "checkpoints", None


def _weights(cfg: InitFrom, params: Any, tokenizer: Tokenizer) -> _Weights:
    """Returns what a run with such parameters takes from another; raises if that is not allowed."""
    directory, step = _checkpoints(cfg.path)
    if not directory.is_dir():
        raise ConfigError(f"init_from: {cfg.path!r} is not the directory of a run or a step: no {str(directory)!r}.")
    with Checkpointer.Config(directory=str(directory)).build() as checkpointer:
        step = checkpointer.latest() if step is None else step  # The same in all processes.
        stored = load_config(str(directory), step)
        under, there = _published(checkpointer.leaves(stored.step))
    here = flatten(params)
    misfits = _misfits(there, here)
    if dict(stored.files) != tokenizer.files():
        misfits.append("Its tokenizer is another one: the same numbers are other words.")
    where, shown = f"{cfg.path}, step {stored.step}", "".join(f"\n  {line}" for line in _shortened(misfits))
    asked = [_like(leaf, there.get(path)) for path, leaf in here.items()]
    if misfits and (cfg.strict or not any(asked)):
        advice = _ALLOW if any(asked) else _NOTHING
        raise ConfigError(f"init_from: {where} does not fit this run:{shown}\n  {advice}")
    about = f"{where}, but:{shown}" if misfits else f"{where}."
    return _Weights(directory, stored.step, under, jax.tree.unflatten(jax.tree.structure(params), asked), about)


def _read(weights: _Weights) -> dict[str, Any]:
    """Returns the parameters that a run takes from another, by path, on its own mesh."""
    tree = weights.wanted
    for name in reversed(weights.under.split(".")):
        tree = {name: tree}
    with Checkpointer.Config(directory=str(weights.checkpoints)).build() as checkpointer:
        restored = checkpointer.restore(tree, weights.step, partial=True)
    return _inside(flatten(restored.state), weights.under)


def _misfits(there: Mapping[str, LeafInfo], here: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each parameter that is missing, left over or of another shape."""
    found = [f"{path!r} is not there." for path in here if path not in there]
    found += [f"{path!r} is there, and not in this model." for path in there if path not in here]
    pairs = ((path, there[path].shape, tuple(leaf.shape)) for path, leaf in here.items() if path in there)
    return found + [f"{path!r} is {old} there, {new} in this model." for path, old, new in pairs if old != new]


def _published(leaves: Mapping[str, LeafInfo]) -> tuple[str, dict[str, LeafInfo]]:
    """Returns where in a checkpoint the weights are that a run publishes, and what they are, by path."""
    for under in ("learner.ema", "params"):
        if found := _inside(leaves, under):
            return under, found
    raise ConfigError("init_from: that checkpoint has no parameters.")


def _inside(leaves: Mapping[str, Any], under: str) -> dict[str, Any]:
    """Returns the leaves of a part of a tree, by their paths in that part."""
    inside = {path.removeprefix(under): leaf for path, leaf in leaves.items() if path.startswith(under)}
    return {path.removeprefix("."): leaf for path, leaf in inside.items() if path[:1] in (".", "[")}


def _like(leaf: Any, stored: LeafInfo | None) -> Any:
    """Returns what to ask for to get a stored parameter to where `leaf` lies; None if it does not fit."""
    if stored is None or stored.shape != tuple(leaf.shape):
        return None
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(stored.dtype), sharding=leaf.sharding)


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"... and {len(lines) - _SHOWN} more"]
