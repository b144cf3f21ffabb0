# SPDX-License-Identifier: Apache-2.0
"""Prepared data that tests share."""

import functools
import tempfile

from dovetail.data import ByteTokenizer, Preparation, corpus_path

_kept: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def prepared_corpus() -> str:
    """Returns a directory with what is held out of the shipped corpus, as bytes; it is gone when Python ends."""
    _kept.append(tempfile.TemporaryDirectory())
    to = f"{_kept[0].name}/data"
    source = str(corpus_path("moby-dick", "held-out"))
    cfg = Preparation.Config(sources=[source], tokenizer=ByteTokenizer.Config(), to=to, workers=0)
    cfg.set(separator="\n\n\n", shard_bytes=10_000).build().run()
    return to
