# SPDX-License-Identifier: Apache-2.0
"""What the directory of a run says about it: the config that made its steps, and the user's own code in that config."""

import hashlib
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dovetail.checkpoint import StoredConfig, checkpoints_of, is_url, load_config, note_place
from dovetail.config import (
    REQUIRED,
    ConfigBase,
    ConfigError,
    Difference,
    diff,
    find,
    from_json,
    modules_named,
    to_json,
    to_text,
)
from dovetail.ops import AttentionKernel, GroupedMatmul

if TYPE_CHECKING:
    from ._trainer import Trainer

CODE = "code.json"
_CONFIG = "config.txt"
_CONFIGS = "configs"
_SPAN = re.compile(r"steps_(\d+)-(\d+)\.txt")
_SHA256 = re.compile("[0-9a-f]{64}")
_MOST = 1 << 20  # Characters of a record of code.
_SHOWN = 20  # Differences in a message.
_KERNELS = (AttentionKernel.Config, GroupedMatmul.Config)  # Ways to compute the same.


def check_directory(directory: str) -> None:
    """Raises if the directory of a run is none: metrics are appended to files, which stores of objects cannot do."""
    if is_url(directory):
        raise ConfigError(
            f"directory: expected a path, found {directory!r}: metrics and logs are in a file system.\n"
            f"  To have the checkpoints there: directory=runs/NAME checkpoint.directory={directory}"
        )


def checkpoints_in(cfg: "Trainer.Config") -> str:
    """Returns where a run has its checkpoints: where its config says, or in its directory."""
    own = cfg.checkpoint.directory
    return checkpoints_of(cfg.directory) if own is REQUIRED else own


def make_directory(directory: Path, checkpoints: str) -> None:
    """Makes the directory of a run and proves that it can be written; notes where the checkpoints are."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
        note_place(directory, checkpoints)
    except OSError as e:
        raise ConfigError(f"directory: cannot write to {str(directory)!r}: {e.strerror}. Choose another one.") from e


def write_record(directory: Path, cfg: "Trainer.Config", after: int = 0) -> None:
    """Writes the config of a run, and which files the code in it that is not dovetail's came from.

    Where it goes on after a step with another config, that of the steps so far is kept beside it.
    """
    text = to_text(cfg)
    _keep_span(directory, text, after)
    (directory / _CONFIG).write_text(text, encoding="utf-8")
    if code := _code_of(cfg):
        (directory / CODE).write_text(json.dumps(code, indent=2) + "\n", encoding="utf-8")


def spans_of(directory: Path) -> dict[Path, tuple[int, int | None]]:
    """Returns the files with the configs that made the steps of a run: the first and the last step of each, in order.

    The last one has no last step; where all steps were made with one config, there is no other.
    """
    names = {file: _SPAN.fullmatch(file.name) for file in (directory / _CONFIGS).glob("steps_*.txt")}
    spans = {file: (int(name[1]), int(name[2])) for file, name in names.items() if name}
    found: dict[Path, tuple[int, int | None]] = dict(sorted(spans.items(), key=lambda item: item[1]))
    if (directory / _CONFIG).is_file():
        found[directory / _CONFIG] = 1 + max((last for _, last in spans.values()), default=0), None
    return found


def _keep_span(directory: Path, text: str, after: int) -> None:
    """Keeps the config of the steps so far; what was recorded of later ones, which are made again, goes."""
    for file, (first, last) in spans_of(directory).items():
        if first > after:
            file.unlink()
        elif last is None and file.read_text("utf-8") == text:
            return
        elif last is None or last > after:
            (directory / _CONFIGS).mkdir(exist_ok=True)
            file.replace(directory / _CONFIGS / f"steps_{first}-{after}.txt")


def changes_since(
    directory: Path,
    cfg: "Trainer.Config",
    made: tuple[int, str] | None = None,
    *,
    allow_change: bool,
    data_change: bool = False,
) -> str:
    """Returns what differs between `cfg` and the config that made the steps of the run so far, a line for each.

    Raises if some of it changes the past, so that the run would not be what its record says, unless that is allowed.

    Args:
        made: the newest step and its config in JSON; by default those of the newest checkpoint.
        data_change: whether that of the input is allowed, but for what a token means.
    """
    stored = (
        load_config(checkpoints_in(cfg.set(directory=str(directory))))
        if made is None
        else StoredConfig(*made, files={})
    )
    try:  # The user's own code is there if it has been imported already. What is read here is compared, never built.
        old = from_json(stored.config, allow=modules_named(stored.config) & sys.modules.keys())
    except ConfigError as e:
        if allow_change:
            return f"  the config of step_{stored.step} cannot be read: {e}"
        raise ConfigError(
            f"{directory}: the config of step_{stored.step} cannot be read, so it cannot be compared: {e}\n{_WAYS_OUT}"
        ) from e
    differences = diff(old, cfg)
    free, why = _free(old) | _free(cfg), ""
    if isinstance(old, type(cfg)) and _changes_rates(cfg, old.steps, stored.step):
        free, why = free - {"steps"}, _SCHEDULE
    refused = [d for d in differences if not any(_is_in(d.path, path) for path in free)]
    if data_change:
        refused = [d for d in refused if not _is_in(d.path, "input") or _is_in(d.path, "input.tokenizer")]
    if refused and not allow_change:
        others = _shortened([d for d in differences if d not in refused], refused)
        raise ConfigError(
            f"{directory}: this config is not that of the run there, which has made {stored.step} steps:\n"
            + _shortened(refused)
            + (f"{why}  Also different, but allowed:\n{others}" if others else why)
            + _WAYS_OUT
            + (_DATA if any(_is_in(d.path, "input") for d in refused) else "")
        )
    return "\n".join([*filter(None, [str(differences)]), *_changed_code(directory, cfg)])


_SCHEDULE = "  The schedule ends with the run: with other steps, those made would have had other learning rates.\n"
_WAYS_OUT = (
    "  Use the config of the run, or another directory. To go on with this one all the same: --allow-change\n"
    "  (in Python: run(allow_change=True))."
)

_DATA = (
    "\n  Where only input differs: --data-change keep, restart or skip-to-step (run(data_change=...)), which says\n"
    "  what the position in the data means then."
)


def _is_in(path: str, part: str) -> bool:
    return path == part or path.startswith((f"{part}.", f"{part}["))


def _shortened(differences: Sequence[Difference], others: Sequence[Difference] = ()) -> str:
    """Returns a line for each difference; what came or went with a part that is among them, or the others, has none."""
    shown: list[Difference] = []
    for d in differences:
        if not any(_is_in(d.path, part.path) for part in (*shown, *others) if None in (d.old, d.new)):
            shown.append(d)
    more = f"  ... and {len(shown) - _SHOWN} more: `dovetail diff` prints all\n" if len(shown) > _SHOWN else ""
    return "".join(f"{d}\n" for d in shown[:_SHOWN]) + more


def _changes_rates(cfg: "Trainer.Config", steps: int, done: int) -> bool:
    """Whether a schedule gives the steps that are done other learning rates than it did in a run of so many steps."""
    if steps == cfg.steps:
        return False
    schedule = cfg.learner.schedule
    try:
        before, now = (np.asarray(schedule.build(steps=count)(np.arange(done))) for count in (steps, cfg.steps))
    except ConfigError:  # It has no place in so few steps.
        return True
    return not np.array_equal(before, now)


def _free(cfg: ConfigBase) -> set[str]:
    """Returns the paths of what may change when a run is resumed: fields that say so themselves, and kernels."""
    found = {path for path, node in find(cfg, ConfigBase) if isinstance(node, _KERNELS)}
    for path, node in find(cfg, ConfigBase):
        found |= {f"{path}.{name}" if path else name for name in getattr(type(node), "may_change", ())}
    return found


def _code_of(cfg: "Trainer.Config") -> dict[str, dict[str, str]]:
    """Returns the file, and its digest, of each module that a config names and that is not dovetail's own."""
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in sorted(modules_named(to_json(cfg)))}
    return {name: {"file": file, "sha256": digest(Path(file))} for name, file in files.items() if file}


def digest(file: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _changed_code(directory: Path, cfg: "Trainer.Config") -> list[str]:
    before, now = recorded_code(directory), _code_of(cfg)
    return [
        f"  {code['file']}: is not as it was when the run was started (sha256 {before[name]['sha256'][:12]}...)"
        for name, code in now.items()
        if name in before and before[name]["sha256"] != code["sha256"]
    ]


def recorded_code(directory: Path) -> dict[str, dict[str, str]]:
    """Returns file and digest of the user's own modules, as the run recorded them; nothing of them is imported.

    The directory may come from elsewhere, so this reads a regular file of a bounded size, and checks what it says.
    """
    file = directory / CODE
    try:
        if not stat.S_ISREG(os.lstat(file).st_mode):
            raise ValueError("it is not a regular file")
        with file.open(encoding="utf-8") as opened:
            found = json.loads(opened.read(_MOST))
        checked = {name: {"file": code["file"], "sha256": code["sha256"]} for name, code in found.items()}
        for code in checked.values():
            if not (code["file"].isprintable() and _SHA256.fullmatch(code["sha256"])):
                raise ValueError("expected the name of a file and its SHA-256")
        return checked
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ConfigError(f"{file}: is not the record of a run's code ({e}). Delete it.") from e
