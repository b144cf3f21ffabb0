# SPDX-License-Identifier: Apache-2.0
"""Prepared data that tests share."""

import functools
import json
import tempfile
from pathlib import Path

from dovetail.data import ByteTokenizer, Preparation, corpus_path

_kept: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def prepared_corpus() -> str:
    """Returns a directory with what is held out of the shipped corpus, as bytes; it is gone when Python ends."""
    _kept.append(tempfile.TemporaryDirectory())
    to = f"{_kept[-1].name}/data"
    source = str(corpus_path("moby-dick", "held-out"))
    cfg = Preparation.Config(sources=[source], tokenizer=ByteTokenizer.Config(), to=to, workers=0)
    cfg.set(separator="\n\n\n", shard_bytes=10_000).build().run()
    return to


@functools.cache
def grouped_lines() -> str:
    """Returns a file of 18 questions with two answers each, a better and a worse one."""
    _kept.append(tempfile.TemporaryDirectory())
    file = Path(_kept[-1].name, "pairs.jsonl")
    records = [
        {"question": f"How often is it {n}? ", "better": f"{n} times.", "worse": "Never. " * (n % 4)} for n in range(18)
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return str(file)
