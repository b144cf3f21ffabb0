# SPDX-License-Identifier: Apache-2.0
"""What makes an input faster: the command that tokenises its text once, word for word."""

import shlex
from typing import Any

from dovetail.config import REQUIRED, ConfigBase, find

from ._corpora import ShippedTokenizer
from ._dataset import Dataset, TextDataset
from ._source import FileSource
from ._tokenizer import ByteTokenizer, Tokenizer

_OF_SOURCES = {"field": "field", "column": "field", "separator": "separator"}  # What `data prepare` calls them.
_OF_TOKENIZERS = ("bos_token", "eos_token", "pad_token", "beside", "add_special")
_MOST = 3  # Commands in a message.


def prepare_commands(dataset: Dataset.Config, tokenizer: Tokenizer.Config) -> str:
    """Returns what to type to have the text of a data set tokenised once; empty if none of it is raw text."""
    texts = [text for _, text in find(dataset, TextDataset.Config)]
    places = [f"PLACE{number}" for number in range(1, len(texts) + 1)] if len(texts) > 1 else ["PLACE"]
    commands = [_command(text, tokenizer, place) for text, place in zip(texts, places, strict=False)]
    return "\n".join([*commands[:_MOST], *(["..."] if len(commands) > _MOST else [])])


def _command(text: TextDataset.Config, tokenizer: Tokenizer.Config, place: str) -> str:
    sources = [source for _, source in find(text.source, FileSource.Config) if source.files is not REQUIRED]
    files = [file for source in sources for file in source.files]
    changes = {name: getattr(text, name) for name in ("add_bos", "add_eos") if not _is_default(text, name)}
    for source in sources[:1]:
        changes |= {told: getattr(source, name) for name, told in _OF_SOURCES.items() if not _is_default(source, name)}
    changes |= {
        f"tokenizer.{name}": getattr(tokenizer, name) for name in _OF_TOKENIZERS if not _is_default(tokenizer, name)
    }
    words = ["dovetail", "data", "prepare", *(files or ["SOURCE..."]), "--tokenizer", _named(tokenizer), "--to", place]
    return shlex.join([*words, *(f"{name}={_spelled(value)}" for name, value in changes.items())]).replace(
        "'SOURCE...'", "SOURCE..."
    )


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() else repr(value)


def _is_default(cfg: ConfigBase, name: str) -> bool:
    """Whether a config has no such field, or has it as it is where nobody has set it."""
    missing = object()
    return getattr(cfg, name, missing) in (missing, getattr(type(cfg)(), name, missing), REQUIRED)


def _named(tokenizer: Tokenizer.Config) -> str:
    """Returns what `--tokenizer` calls a tokenizer."""
    if isinstance(tokenizer, ByteTokenizer.Config):
        return "bytes"
    if isinstance(tokenizer, ShippedTokenizer.Config):
        return "tiny-lm"
    return str(getattr(tokenizer, "file", "TOKENIZER"))
