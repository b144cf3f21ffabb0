# SPDX-License-Identifier: Apache-2.0
"""From what a user names to the config it stands for."""

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.config import ConfigBase, ConfigError, from_json, override, split_override
from dovetail.hardware import hardware
from dovetail.progress import phase
from dovetail.zoo import check_name, recipe

from ._code import check_code, load_file, own_modules

Change = Callable[[Any], Any]  # Of a config.


def resolve(
    name: str,
    overrides: Sequence[str] = (),
    mesh: str | None = None,
    on: str | None = None,
    change: Change | None = None,
) -> Any:
    """Returns the config that a name stands for, with overrides applied, on hardware or on a mesh if one is named.

    A name is that of a recipe, `file.py:function`, or the directory of a run, which carries its config; `NAME@HARDWARE`
    is the same on hardware. What hardware changes depends on the overrides (as the size of the batch), and they win.
    `change` is made before all of these.
    """
    name, on = split_hardware(name, on)
    check(name, overrides, on)
    _import(mesh)
    cfg = override(change(_named(name)) if change else _named(name), overrides, note=note)
    if on is not None:
        from dovetail.plan import on_hardware

        cfg = override(on_hardware(cfg, on), overrides, note=note)
    if mesh is None:
        return cfg
    from dovetail.parallel import parse_mesh

    return cfg.set(mesh=parse_mesh(mesh, cfg.mesh))


@functools.cache
def note(text: str) -> None:
    """Says what an override changed besides what it names, once: a config may be resolved twice."""
    print(text, file=sys.stderr)


def split_hardware(name: str, on: str | None) -> tuple[str, str | None]:
    """Returns name and hardware of `NAME@HARDWARE`, unless the hardware is given; what exists is a name, with any @."""
    recipe, at, after = name.rpartition("@")
    exists = Path(name).exists() or Path(name.rpartition(":")[0]).is_file()
    return (recipe, after) if at and on is None and not exists and "/" not in after else (name, on)


def start(
    name: str,
    overrides: Sequence[str] = (),
    mesh: str | None = None,
    on: str | None = None,
    change: Change | None = None,
) -> Any:
    """As `resolve`, for a command that computes: the CPU has as many devices as are needed if there is nothing else.

    That number must be known before JAX starts, which it does when a config is fitted to hardware.
    """
    name, on = split_hardware(name, on)
    check(name, overrides, on)
    _import(mesh)
    from dovetail.launch import start_devices

    needed = resolve(name, overrides, mesh, change=change).mesh if on is None or mesh else hardware(on)
    start_devices(needed, os.environ)
    return resolve(name, overrides, mesh, on, change)


def check(name: str, overrides: Sequence[str] = (), on: str | None = None) -> None:
    """Raises if something is wrong that can be told before JAX is imported, which takes a while."""
    for text in overrides:
        split_override(text)
    path, colon, _ = name.rpartition(":")
    if colon and path.endswith(".py"):
        if not Path(path).is_file():
            raise ConfigError(f"there is no file {path!r}.")
    elif not (Path(name) / "checkpoints").is_dir():
        check_name(name)
    if on is not None:
        hardware(on)


def _import(mesh: str | None = None) -> None:
    """Imports all that a run needs; first what can tell whether a mesh is one."""
    with phase("importing"):
        if mesh is not None:
            from dovetail.parallel import parse_mesh

            parse_mesh(mesh)
        importlib.import_module("dovetail.zoo.recipes")


def _named(name: str) -> Any:
    path, colon, function = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file(Path(path), function)
    if (Path(name) / "checkpoints").is_dir():
        return resolve_run(name)[0]
    return recipe(name)


def resolve_run(directory: str, overrides: Sequence[str] = (), step: int | None = None) -> tuple[Any, Any]:
    """Returns the config of the run in a directory, and the files that it carries.

    The directory is where it is now, not where it was trained.
    """
    checkpoints = Path(directory) / "checkpoints"
    if not checkpoints.is_dir():
        raise ConfigError(f"there is no run in {directory!r}: it has no directory 'checkpoints'.")
    check(directory, overrides)
    _import()
    from dovetail.checkpoint import load_config

    stored = load_config(str(checkpoints), step)
    check_code(Path(directory), stored.config)
    try:
        cfg = from_json(stored.config, allow=own_modules()).set(directory=directory)
    except ConfigError as e:
        raise ConfigError(f"{directory}: its config cannot be read: {e}") from e
    return override(cfg, overrides, note=note), stored.files


def input_files(name: str, cfg: Any) -> Mapping[str, bytes] | None:
    """Returns the files that the run called `name` carries, if those of the input of `cfg` would be the same."""
    directory, _ = split_hardware(name, None)
    if not (Path(directory) / "checkpoints").is_dir():
        return None
    stored, files = resolve_run(directory)
    return files if cfg.input.shares_files(stored.input) else None


def _from_file(path: Path, function: str) -> ConfigBase:
    module = load_file(path)
    if not hasattr(module, function):
        raise ConfigError(f"{path} has no function {function!r}.")
    cfg = getattr(module, function)()
    if not isinstance(cfg, ConfigBase):
        raise ConfigError(f"{path}:{function} returned {cfg!r}, expected a config.")
    return cfg
