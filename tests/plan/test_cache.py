# SPDX-License-Identifier: Apache-2.0
"""Reports are kept by config, hardware, versions and source."""

import json
from typing import Any

import pytest

from dovetail.plan import Report
from dovetail.plan import _cache as cache
from dovetail.zoo import recipe


@pytest.fixture(autouse=True)
def _own_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def _report() -> Report:
    given: dict[str, Any] = dict.fromkeys(Report._fields, 0)
    given |= {"mesh": {"fsdp": 2}, "suggestions": [], "hbm_by_path": {"model": {"parameters": 0.5}}}
    return Report(**given)


def test_what_was_stored_is_loaded():
    cache.store("name", _report())
    assert cache.load("name") == _report()


def test_nothing_stored_and_nothing_readable_is_nothing(tmp_path):
    assert cache.load("name") is None
    cache.store("name", _report())
    (path,) = tmp_path.rglob("name.json")
    path.write_text("{", encoding="utf-8")
    assert cache.load("name") is None
    path.write_text(json.dumps({"an": "older report"}), encoding="utf-8")
    assert cache.load("name") is None


def test_a_place_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache.store("name", _report())
    assert cache.load("name") is None


def test_each_part_of_the_question_is_part_of_the_key():
    cfg, versions = recipe("qwen3-tiny"), {"jax": "1"}
    keys = {
        cache.key("program", cfg, "cpu-8", versions),
        cache.key("another", cfg, "cpu-8", versions),
        cache.key("program", cfg.set(seed=1), "cpu-8", versions),
        cache.key("program", cfg, "cpu-4", versions),
        cache.key("program", cfg, "cpu-8", {"jax": "2"}),
    }
    assert len(keys) == 5
    assert cache.key("program", cfg, "cpu-8", versions) in keys
