# SPDX-License-Identifier: Apache-2.0
"""Whole directories in the format of Hugging Face, of small models of the zoo: weights, config, tokenizer."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.cli import main
from dovetail.zoo import recipe
from dovetail.zoo.hf import plan_export

from .published import random_weights, write_published

CHAT = "{% for m in messages %}<bos>{{ m.role }}: {{ m.content }}<eos>{% endfor %}<bos>"
TEXT = "It was a dark and stormy night. " * 40  # One document: no row of a batch has parts of two.


def write_small(directory: Path, name: str = "qwen3-tiny", seed: int = 0, dtype: str = "float32") -> str:
    """Writes a model with random weights and a tokenizer of bytes; returns its name as a recipe."""
    cfg: Any = recipe(name)
    published = write_published(directory, cfg.model, random_weights(cfg.model, seed), dtype)
    for file, content in plan_export(cfg, None, dtype).files.items():
        (directory / file).write_bytes(content)
    return published


def reading(file: Path) -> list[str]:
    """Writes a text; returns the overrides of a run that trains on it, in small batches."""
    file.write_text(TEXT, encoding="utf-8")
    source = ["input.dataset.source=TextFiles", f"input.dataset.source.files=[{json.dumps(str(file))}]"]
    return [*source, "input.batch_size=8", "input.seq_len=16", "log_every=1"]


def losses(run: Path) -> list[float]:
    """Returns the loss of each step of a run."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def logits(name: str, rows: Any, place: Path, *more: str) -> np.ndarray:
    """Returns what `generate --logits` writes of rows of tokens; `place` is a directory for files."""
    tokens, out = place / "tokens.txt", place / "logits.npy"
    tokens.write_text("\n".join(" ".join(map(str, row)) for row in np.asarray(rows).tolist()), encoding="utf-8")
    assert main(["generate", name, "--tokens", str(tokens), "--logits", str(out), *more]) == 0
    return np.load(out)


def contents(directory: Path) -> dict[str, bytes]:
    """Returns all files of a directory."""
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def change_json(file: Path, **changes: Any) -> None:
    """Changes fields of a JSON file, which it makes if there is none; None removes a field."""
    fields = json.loads(file.read_bytes()) if file.exists() else {}
    fields = {name: value for name, value in (fields | changes).items() if changes.get(name, ...) is not None}
    file.write_text(json.dumps(fields), encoding="utf-8")
