# SPDX-License-Identifier: Apache-2.0
"""From a run to the job that a launcher is given: for an engine, with the bundle that its hosts run."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dovetail.config import to_json
from dovetail.launch import Engine, Job, Kubernetes, Launcher, Local, SkyPilot, Slurm, Variant, pack
from dovetail.zoo import is_published_name

from ._code import own_files
from ._resolve import Run, is_run

# What starts processes: `--via` takes these. One line each.
LAUNCHERS: dict[str, type[Launcher.Config]] = {
    "local": Local.Config,
    "slurm": Slurm.Config,
    "kubernetes": Kubernetes.Config,
    "skypilot": SkyPilot.Config,
}


def job_for(
    cfg: Launcher.Config,
    run: Run,
    arguments: Sequence[str],
    code: Sequence[str],
    sweep: Sequence[Variant] = (),
    *,
    reads: Sequence[str] = (),
) -> Job:
    """Returns the job of a run, which `reads` data by full paths. Reads what it takes along; writes nothing."""
    if not isinstance(cfg, Engine.Config):
        given = [*arguments, *(text for name in code for text in ("--code", name))]
        return Job(tuple(given), Path(run.cfg.directory), run.cfg.status, hardware=run.hardware, sweep=tuple(sweep))
    user = _in_bundle(own_files())
    command, recipe, *rest = arguments
    told = [command, _told(recipe, user), *rest]
    for name in code:
        told += ["--code", _told(name, user)]
    bundle = pack(to_json(run.cfg), told, {inside: path for path, inside in user.items()})
    return Job(
        tuple(told),
        Path(run.cfg.directory).resolve(),
        run.cfg.status,
        name=cfg.name or f"{_plain(recipe)}-{bundle.hash[:8]}",
        hardware=run.hardware,
        bundle=bundle,
        reads=tuple(reads),
        sweep=tuple(sweep),
    )


def _in_bundle(files: Mapping[Path, Sequence[Path]]) -> dict[Path, str]:
    """Returns where the user's files stand in a bundle: those of a directory together, as they are to each other."""
    found: dict[Path, str] = {}
    for number, (folder, inside) in enumerate(files.items()):
        for path in inside:
            found.setdefault(path, f"{number}/{path.relative_to(folder)}")
    return found


def _told(name: str, user: Mapping[Path, str]) -> str:
    """Returns a name as a host understands it: a file is in the bundle, a directory is named in full."""
    path, colon, function = name.rpartition(":") if ".py:" in name else (name, "", "")
    if (inside := user.get(Path(path).resolve())) is not None:
        return f"{{bundle}}/user/{inside}{colon}{function}"
    if is_published_name(name) and Path(name.removeprefix("hf:")).exists():
        return f"hf:{Path(name.removeprefix('hf:')).resolve()}"
    return str(Path(name).resolve()) if is_run(name) and "://" not in name else name


def _plain(recipe: str) -> str:
    """Returns a name that any engine takes.

    >>> _plain("examples/My_run.py:small"), _plain("hf:org/Model-1.5")
    ('my-run-small', 'org-model-1-5')
    """
    text = recipe.removeprefix("hf:").replace(".py:", "-")
    text = text if recipe.startswith("hf:") else text.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "run"
