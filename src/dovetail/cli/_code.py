# SPDX-License-Identifier: Apache-2.0
"""The user's own files: imported because the user named them, never because a run did, and in nobody else's place."""

import contextlib
import functools
import importlib
import importlib.util
import re
import shlex
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from dovetail.config import ConfigError, modules_named

_files: dict[str, Path] = {}  # Those that were loaded, by the name of the module they became.
_packages: set[str] = set()  # Modules that were named, not files.


def load_code(name: str) -> None:
    """Imports what the user names: a file, or a module that is installed."""
    if name.endswith(".py"):
        load_file(Path(name))
        return
    try:
        importlib.import_module(name)
    except Exception as e:  # Whatever the user's own code raises.
        why = e if isinstance(e, ImportError) else f"{type(e).__name__}: {e}"
        raise ConfigError(
            f"--code {name}: cannot be imported: {why}. Name a file, as in --code my.py, or a module."
        ) from e
    _packages.add(name)


def load_file(path: Path) -> ModuleType:
    """Returns the module that a file becomes; it is run once, however often it is named.

    It imports what is beside it, after all that is installed: a file called json.py takes no one's place.
    """
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r}.")
    name = _free_name(path)
    if name in _files:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Its functions and classes are found by import path.
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        del sys.modules[name]
        raise ConfigError(f"{_place(e, path)}: {type(e).__name__}: {e}") from e
    _files[name] = path
    return module


def _free_name(path: Path) -> str:
    """Returns the name of the file, if it is nobody else's, and else a longer one."""
    name = re.sub(r"\W|^(?=\d)", "_", path.stem)
    while _files.get(name) != path and not _is_free(name, path):
        name += "_py"
    return name


def _is_free(name: str, path: Path) -> bool:
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
    else:
        spec = importlib.util.find_spec(name)
        if spec is None:
            return True
        file = spec.origin
    return file is not None and Path(file).resolve() == path


def _place(error: Exception, path: Path) -> str:
    """Returns where in a file an error comes from."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def own_modules() -> set[str]:
    """Returns the modules that a config may name because the user has: named ones, and those beside named files."""
    beside = {name for name, module in list(sys.modules.items()) if _is_beside(name, getattr(module, "__file__", None))}
    return {*_files, *_packages, *beside}


@contextlib.contextmanager
def code_apart() -> Iterator[None]:
    """Forgets the user's files that are loaded meanwhile: what is done next has only its own."""
    files, modules = dict(_files), own_modules()
    try:
        yield
    finally:
        for name in own_modules() - modules:
            del sys.modules[name]
        _files.clear()
        _files.update(files)


def own_files() -> dict[Path, list[Path]]:
    """Returns the files that the user has named, and those beside them that they have imported, by their directory."""
    found: dict[Path, list[Path]] = {}
    for path in _files.values():
        found.setdefault(path.parent, []).append(path)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and name not in _files and _is_beside(name, file):
            folder = next(each for each in found if Path(file) in {each / tail for tail in _tails(_path_of(name))})
            found[folder].append(Path(file))
    return {folder: sorted(set(paths)) for folder, paths in found.items()}


def _path_of(name: str) -> Path:
    return Path(*name.split("."))


def _is_beside(name: str, file: str | None) -> bool:
    if file is None:
        return False
    inside = Path(*name.split("."))
    places = {folder / tail for folder in {path.parent for path in _files.values()} for tail in _tails(inside)}
    return Path(file) in places


def _tails(inside: Path) -> tuple[Path, Path]:
    return inside.with_name(f"{inside.name}.py"), inside / "__init__.py"


def check_code(directory: Path, config: str) -> None:
    """Raises if a config from a run names code that the user has not; warns if that code is not what it was."""
    from dovetail.train import digest, recorded_code, visible

    recorded = recorded_code(directory)
    try:
        named = modules_named(config)
    except ConfigError as e:
        raise ConfigError(f"{directory}: its config cannot be read: {e}") from e
    if missing := sorted(named - own_modules()):
        files = {name: recorded[name]["file"] if name in recorded else name for name in missing}
        shown = ", ".join(name if name == file else f"{name} ({file})" for name, file in files.items())
        options = " ".join(
            f"--code {shlex.quote(file)}" for file in files.values()
        )  # To be copied, and from elsewhere.
        raise ConfigError(
            f"{directory}: its config names code that is not dovetail's: {visible(shown)}.\n"
            f"  Code from a run is only run if you say so. If you trust it: {visible(options)}"
        )
    for name, code in recorded.items():
        path = _files.get(name)
        if path is not None and digest(path) != code["sha256"]:
            _warn(f"{path} is not as it was when the run was trained (sha256 {code['sha256'][:12]}...).")


@functools.cache
def _warn(text: str) -> None:
    print(text, file=sys.stderr)
