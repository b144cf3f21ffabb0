# SPDX-License-Identifier: Apache-2.0
"""From what a user names to the run it stands for."""

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail.config import REQUIRED, ConfigBase, ConfigError, from_json, override, split_override
from dovetail.hardware import Hardware, hardware, start_devices
from dovetail.progress import phase
from dovetail.zoo import check_name, check_published, is_published_name, recipe

from ._code import check_code, load_file, own_modules

if TYPE_CHECKING:
    from dovetail.train import Trainer


class Run(NamedTuple):
    """What a command works on."""

    name: str  # As the user gave it, without hardware.
    cfg: "Trainer.Config"
    hardware: Hardware | None  # That the config is for, if one is named.
    files: Mapping[str, bytes] | None  # That a checkpoint carries, if those of the input would be the same.


def resolve(
    name: str,
    overrides: Sequence[str] = (),
    mesh: str | None = None,
    on: str | None = None,
    *,
    step: int | None = None,
    change: "Callable[[Trainer.Config], Trainer.Config] | None" = None,
    devices: bool = False,
    weights: bool = True,
) -> Run:
    """Returns the run that a name stands for, with overrides applied, on hardware or on a mesh if one is named.

    A name is that of a recipe, `file.py:function`, `hf:DIRECTORY` for a published model, or the directory of a run,
    which carries its config; `NAME@HARDWARE` is the same on hardware. What hardware changes depends on the overrides
    (as the size of the batch), and they win.

    Args:
        step: of a run, whose config it is; the newest by default.
        change: is made before all of these.
        devices: for a command that computes: the CPU has as many devices as are needed if there is nothing else. That
            number must be known before JAX starts, which it does when a config is fitted to hardware.
        weights: whether those of a published model are downloaded, if it is not here.
    """
    name, on = split_hardware(name, on)
    check(name, overrides, on)
    found = None if on is None else hardware(on)
    _import(mesh)
    from dovetail.parallel import parse_mesh

    named, files = _named(name, step, weights)
    cfg = override(change(named) if change else named, overrides, note=note)
    if devices:
        start_devices(parse_mesh(mesh, cfg.mesh) if mesh is not None else found or cfg.mesh, os.environ)
    if found is not None:
        from dovetail.plan import on_hardware

        cfg = override(on_hardware(cfg, found.name), overrides, note=note)
    if mesh is not None:
        cfg = cfg.set(mesh=parse_mesh(mesh, cfg.mesh))
    same = files is not None and cfg.input.shares_files(named.input)
    return Run(name, cfg, found, files if same else None)


@functools.cache
def note(text: str) -> None:
    """Says what an override changed besides what it names, once: overrides are applied again after hardware."""
    print(text, file=sys.stderr)


def split_hardware(name: str, on: str | None) -> tuple[str, str | None]:
    """Returns name and hardware of `NAME@HARDWARE`, unless the hardware is given; what exists is a name, with any @."""
    recipe, at, after = name.rpartition("@")
    exists = Path(name.removeprefix("hf:")).exists() or Path(name.rpartition(":")[0]).is_file()
    return (recipe, after) if at and on is None and not exists and "/" not in after else (name, on)


def check(name: str, overrides: Sequence[str] = (), on: str | None = None) -> None:
    """Raises if something is wrong that can be told before JAX is imported, which takes a while."""
    for text in overrides:
        split_override(text)
    path, colon, _ = name.rpartition(":")
    if is_published_name(name):
        check_published(name)
    elif colon and path.endswith(".py"):
        if not Path(path).is_file():
            raise ConfigError(f"there is no file {path!r}.")
    elif not is_run(name):
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


def _named(name: str, step: int | None, weights: bool) -> "tuple[Trainer.Config, Mapping[str, bytes] | None]":
    """Returns a config as it was written, and the files that a run carries."""
    if is_published_name(name):
        return importlib.import_module("dovetail.zoo.recipes").finetune(name, weights=weights), None
    path, colon, function = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file(Path(path), function), None
    return _from_run(name, step) if is_run(name) else (recipe(name), None)


def is_run(name: str) -> bool:
    """Whether a name is the directory of a run, or the URL of its checkpoints."""
    run = Path(name)
    return name.startswith(("s3://", "gs://")) or (run / "checkpoints").is_dir() or (run / "checkpoints.url").is_file()


def _from_run(directory: str, step: int | None) -> "tuple[Trainer.Config, Mapping[str, bytes]]":
    """Returns the config of a run and the files of its tokenizer; the directory is where it is now."""
    from dovetail.checkpoint import checkpoints_of, is_url, load_config

    place = checkpoints_of(directory)
    stored = load_config(place, step)
    check_code(Path(directory), stored.config)
    try:
        cfg = from_json(stored.config, allow=own_modules())
        cfg = cfg if is_url(directory) else cfg.set(directory=directory)
        return cfg.set(checkpoint=cfg.checkpoint.set(directory=place if is_url(place) else REQUIRED)), stored.files
    except ConfigError as e:
        raise ConfigError(f"{directory}: its config cannot be read: {e}") from e


def _from_file(path: Path, function: str) -> Any:
    module = load_file(path)
    if not hasattr(module, function):
        raise ConfigError(f"{path} has no function {function!r}.")
    cfg = getattr(module, function)()
    if not isinstance(cfg, ConfigBase):
        raise ConfigError(f"{path}:{function} returned {cfg!r}, expected a config.")
    return cfg
