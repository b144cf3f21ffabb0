# SPDX-License-Identifier: Apache-2.0
"""`hf:DIRECTORY` and `hf:ORG/NAME`: published models as recipes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.checkpoint.hf import read_beside
from dovetail.config import ConfigError
from dovetail.models import CausalLM

from .._published_name import PREFIX, check_published
from ._published import Published, family_of

# Files that travel with the tokenizer, so that an export has them again.
BESIDE = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)


_MOST = 1 << 25  # Bytes of a file that is parsed here; published ones have less than a tenth of it.
_TOKENIZER = "tokenizer.json"
_SPECIAL = ("bos_token", "eos_token", "pad_token")


class Directory(NamedTuple):
    """A published model, as far as its files say without the weights."""

    path: Path
    family: Published
    fields: Mapping[str, Any]  # Of config.json.
    model: CausalLM.Config
    ignored: Mapping[str, str]
    generation: Mapping[str, Any]  # Of generation_config.json.
    special: Mapping[str, str]  # Tokens: bos_token, eos_token, pad_token.
    files: Mapping[str, bytes]  # tokenizer.json, and what is there of `BESIDE`.

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer.json."""
        return _TOKENIZER in self.files

    @property
    def beside(self) -> tuple[str, ...]:
        """The files that travel with the tokenizer."""
        return tuple(name for name in self.files if name != _TOKENIZER)


def directory_of(name: str, *, weights: bool = True) -> Path:
    """Returns the directory that `hf:...` means; a repository is downloaded, but for files that could hold code.

    Args:
        weights: whether these are downloaded, too.
    """
    check_published(name)
    place = name.removeprefix(PREFIX)
    path = Path(place).expanduser()
    if path.is_dir():
        return path
    try:
        from huggingface_hub import snapshot_download
    except ImportError as e:
        raise ConfigError(
            f"{name}: there is no such directory, and to download it huggingface_hub is needed: "
            "pip install 'dovetail[hf]'."
        ) from e
    wanted = ["*.json", "*.jinja", "tokenizer.model", "merges.txt", *(["*.safetensors"] if weights else [])]
    others = ["*/*", "consolidated*"]  # The same weights once more, in other formats.
    try:
        return Path(snapshot_download(place, allow_patterns=wanted, ignore_patterns=others))
    except Exception as e:  # Whatever the network or the hub raises.
        why = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__).removeprefix("Got: ")
        raise ConfigError(
            f"{name}: there is no directory {place!r}, and no repository of this name can be downloaded: {why}"
        ) from e


def open_directory(name: str, *, weights: bool = True) -> Directory:
    """Returns what the files of a published model say.

    Args:
        weights: whether those of a repository are downloaded, too.
    """
    path = directory_of(name, weights=weights)
    fields = _json(path, "config.json")
    if fields is None:
        raise ConfigError(f"{name}: the directory has no config.json. Name one in the format of Hugging Face.")
    where = str(path / "config.json")
    family = family_of(where, fields)
    model, ignored = family.read(where, fields)
    # All of them are read here: a link that leads elsewhere is refused, before anything of it is copied.
    read = {each: read_beside(path, each) for each in (_TOKENIZER, *BESIDE)}
    files = {each: content for each, content in read.items() if content is not None}
    return Directory(
        path, family, fields, model, ignored, _json(path, "generation_config.json") or {}, _special(path), files
    )


def _special(path: Path) -> dict[str, str]:
    """Returns the special tokens that the files of a tokenizer name."""
    special: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        values = _json(path, file) or {}
        if values.get("auto_map"):
            raise ConfigError(
                f"{path / file}: auto_map names code of the tokenizer's own, which is never run.\n"
                "  Remove it if tokenizer.json says all that the code does."
            )
        for token in _SPECIAL:
            value = values.get(token)
            text = value.get("content") if isinstance(value, dict) else value
            if value is not None and not isinstance(text, str):
                raise ConfigError(f"{path / file}: {token} is {value!r:.60}, expected text, or an object with content.")
            if isinstance(text, str):
                special[token] = text
    return special


def _json(directory: Path, name: str) -> dict[str, Any] | None:
    """Returns the object in a JSON file, which may come from anywhere."""
    content = read_beside(directory, name, _MOST)
    if content is None:
        return None
    try:
        found = json.loads(content, object_pairs_hook=_once)
    except RecursionError as e:
        raise ConfigError(f"{directory / name}: is nested too deeply.") from e
    except ValueError as e:
        raise ConfigError(f"{directory / name}: is not JSON: {e}.") from e
    if not isinstance(found, dict):
        raise ConfigError(f"{directory / name}: holds a {type(found).__name__}, expected an object.")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the key {twice!r:.60} is there twice")
    return found
