# SPDX-License-Identifier: Apache-2.0
"""What was compiled is kept by program, scopes, options, hardware and versions."""

import gzip
import json

import jax
import jax.numpy as jnp
import pytest

from dovetail.aot import Buffer, Compilation, Memory
from dovetail.plan import _cache as cache

FOUND = Compilation("HloModule step", Memory(1, 2, 3, 4, [Buffer(("jit(step)/model",), 5)]), 6.5, "")


@pytest.fixture(autouse=True)
def _own_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_was_stored_is_loaded():
    cache.store("name", FOUND)
    assert cache.load("name") == FOUND


def test_what_cannot_be_read_or_has_another_format_is_compiled_again(tmp_path):
    assert cache.load("name") is None
    cache.store("name", FOUND)
    (path,) = tmp_path.rglob("name.json.gz")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert cache.load("name") is None
    older = json.loads(gzip.decompress(whole)) | {"format": 1}
    path.write_bytes(gzip.compress(json.dumps(older).encode()))
    assert cache.load("name") is None
    cache.store("name", FOUND)
    assert cache.load("name") == FOUND


def test_a_place_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache.store("name", FOUND)
    assert cache.load("name") is None


def _lowered(scope, factor):
    def function(x):
        with jax.named_scope(scope):
            return factor * x

    return jax.jit(function).lower(jnp.ones(3))


def test_each_part_of_the_question_is_part_of_the_key():
    program, options, where, versions = _lowered("layer", 2), {"option": True}, ["cpu-8", [0, 1]], {"jax": "1"}
    keys = {
        cache.key(program, options, where, versions),
        cache.key(_lowered("layer", 3), options, where, versions),
        cache.key(_lowered("other", 2), options, where, versions),
        cache.key(program, {}, where, versions),
        cache.key(program, options, ["cpu-8", [1, 0]], versions),
        cache.key(program, options, where, {"jax": "2"}),
    }
    assert len(keys) == 6
    assert cache.key(_lowered("layer", 2), options, where, versions) in keys
