# SPDX-License-Identifier: Apache-2.0
"""The format of prepared data: what it opens, how large it may be, and what it refuses."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.data import Manifest, PreparedData
from dovetail.data._manifest import MANIFEST, SHARD, TABLE, token_dtype
from support.prepared import prepared_corpus


@pytest.mark.parametrize("vocab_size, name", [(1, "<u2"), (1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_ids_have_the_smallest_type_that_holds_them_all(vocab_size, name):
    assert token_dtype(vocab_size) == np.dtype(name)


def test_tokens_of_a_shard_can_be_mapped_into_memory_as_they_are():
    data = PreparedData(prepared_corpus())
    file = Path(prepared_corpus()) / f"{data.name(0)}.tokens"
    mapped = np.memmap(file, "<u2")
    blocks = data.read(range(int(data.shards[0]["blocks"])))
    np.testing.assert_array_equal(np.concatenate([block.tokens for block in blocks]), mapped)


def test_a_million_shards_on_paper_are_opened_and_their_blocks_found(tmp_path):
    lines = np.zeros(1_000_000, SHARD)
    lines["unit"], lines["blocks"] = np.arange(10**6), 1 + np.arange(10**6) % 7
    (tmp_path / TABLE).write_bytes(lines.tobytes())
    about = {"count": 10**6, "blocks": int(lines["blocks"].sum()), "crc32": f"{zlib.crc32(lines.tobytes()):08x}"}
    real = PreparedData(prepared_corpus()).manifest
    fields = {name: getattr(real, name) for name in ("tokenizer", "settings", "sources", "statistics")}
    (tmp_path / MANIFEST).write_bytes(Manifest(shards=about, **fields).to_bytes())
    data = PreparedData(str(tmp_path))
    assert len(data) == int(lines["blocks"].sum())
    assert (data.locate(0), data.locate(1), data.locate(2)) == ((0, 0), (1, 0), (1, 1))
    assert data.locate(len(data) - 1) == (999_999, int(lines["blocks"][-1]) - 1)
    assert data.name(999_999) == "shards/0999/0999999-0"


def test_another_format_is_refused(tmp_path):
    content = json.loads((Path(prepared_corpus()) / MANIFEST).read_text()) | {"format": 3}
    (tmp_path / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"manifest\.json: is of format 3, this is made for 1 and 2"):
        PreparedData(str(tmp_path))
