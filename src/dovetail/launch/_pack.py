# SPDX-License-Identifier: Apache-2.0
"""What goes into a bundle: Dovetail's source, the user's own files, versions of what is installed, the state in git.

Nothing of the environment is looked at, and what looks like a key or a token is refused.
"""

import ast
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from dovetail.config import ConfigError

from ._bundle import Bundle

_PACKAGE = Path(__file__).parents[1]
_OWN = "dovetail"
_SECRET_NAME = re.compile(
    r"(?i)\.env(\..*)?|.*\.(pem|key|p12|pfx|jks|kdbx|keytab)|id_(rsa|dsa|ecdsa|ed25519)(\..*)?|[._]netrc|\.pypirc|"
    r"\.?(secrets?|credentials?|token|passwords?|passwd|api_?keys?)(\.[a-z]+)?|.*_(secret|token|password|api_?key)(\.\w+)?"
)
_SECRET = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bhf_[A-Za-z0-9]{30,}|\bgh[pousr]_[A-Za-z0-9]{36}|"
    rb"\bgithub_pat_[A-Za-z0-9_]{40,}|\bsk-[A-Za-z0-9_-]{20,}|\bxox[abprs]-[A-Za-z0-9-]{10,}|\bAIza[0-9A-Za-z_-]{35}|"
    rb"\bglpat-[A-Za-z0-9_-]{20}"
)
_DISTRIBUTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# What JAX finds by itself if it is installed, though nothing requires it.
_PLUGINS = re.compile(r"jax[-_]cuda.*|jax[-_]rocm.*|libtpu.*|libneuron.*|jax[-_]neuron.*")


def pack(config: str, arguments: Sequence[str], user: Mapping[str, Path]) -> Bundle:
    """Returns the bundle of a job.

    Args:
        config: of the run, as JSON.
        arguments: of `dovetail`.
        user: the user's own files, by where they stand in `user/`.
    """
    files = {f"code/{_OWN}/{path.relative_to(_PACKAGE)}": path.read_bytes() for path in _sources(_PACKAGE)}
    own = {name: path.read_bytes() for name, path in user.items()}
    for name, data in files.items():
        check_no_secret(name, data)
    for name, data in own.items():
        check_no_secret(str(user[name]), data)
    for what, text in (("the config", config), ("the overrides", "\n".join(arguments))):
        check_no_secret(what, text.encode(), is_file=False)
    imports = {name for path, data in own.items() if path.endswith(".py") for name in _imported(data)}
    about = {
        "arguments": list(arguments),
        "dovetail": _version(_OWN),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "git": {place: found for place, where in _places(user).items() if (found := git_state(where)) is not None},
    }
    files |= {f"user/{name}": data for name, data in own.items()}
    files["config.json"] = f"{config}\n".encode()
    files["constraints.txt"] = "".join(f"{line}\n" for line in constraints(imports)).encode()
    files["about.json"] = f"{json.dumps(about, indent=1, sort_keys=True)}\n".encode()
    return Bundle(files)


def _sources(package: Path) -> list[Path]:
    found = (path for path in package.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in found if "__pycache__" not in path.parts and path.suffix != ".pyc"]


def _places(user: Mapping[str, Path]) -> dict[str, Path]:
    places = {"dovetail": _PACKAGE}
    return places | {f"user/{name}": path.parent for name, path in sorted(user.items())[:1]}


def check_no_secret(name: str, data: bytes, *, is_file: bool = True) -> None:
    """Raises if something looks as if it should stay where it is."""
    if is_file and _SECRET_NAME.fullmatch(Path(name).name):
        raise ConfigError(
            f"launch: {name} looks like a secret by its name, and a job's bundle must have none.\n"
            "  Give it another name if it is none; else have the hosts read it where they are."
        )
    if (match := _SECRET.search(data)) is not None:
        line = data.count(b"\n", 0, match.start()) + 1
        where = f"{name}, line {line}, has" if is_file else f"{name} have" if name.endswith("s") else f"{name} has"
        raise ConfigError(
            f"launch: {where} what looks like a key or a token ({match[0][:4].decode()}...), and a job's bundle must "
            "have none.\n  Have the hosts read it from a file or from their environment."
        )


def constraints(imports: Collection[str] = ()) -> list[str]:
    """Returns NAME==VERSION of what is installed that Dovetail needs, and of what modules with these names need."""
    installed = {_normal(each.metadata["Name"]): each for each in metadata.distributions() if each.metadata["Name"]}
    providers = metadata.packages_distributions() if imports else {}
    wanted = [_OWN, *(name for name in installed if _PLUGINS.fullmatch(name))]
    wanted += [each for name in imports for each in providers.get(name, ())]
    found: dict[str, str] = {}
    while wanted:
        name = _normal(wanted.pop())
        if name in found or name not in installed:
            continue
        found[name] = installed[name].version
        for requirement in installed[name].requires or ():
            if "extra ==" not in requirement and (match := _DISTRIBUTION.match(requirement)):
                wanted.append(match[0])
    return [f"{name}=={version}" for name, version in sorted(found.items()) if name != _OWN]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _imported(source: bytes) -> set[str]:
    """Returns the modules that a file imports, without what is in them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found - {_OWN}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def git_state(directory: Path) -> dict[str, str | bool] | None:
    """Returns commit, whether something is changed, and the hash of what; None where there is no git."""

    def git(*arguments: str) -> bytes | None:
        command = ["git", "-C", str(directory), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    diff = git("diff", "HEAD", "--no-color", "--no-ext-diff") or b""
    untracked = git("ls-files", "--others", "--exclude-standard") or b""  # Below the directory.
    dirty = bool(diff or untracked)
    changed = hashlib.sha256(diff).hexdigest()[:16] if diff else ""
    return {"commit": commit.decode().strip(), "dirty": dirty, "diff": changed}
