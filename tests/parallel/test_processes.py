# SPDX-License-Identifier: Apache-2.0
"""Agreement between processes; with several of them, tests/checkpoint/test_processes.py."""

import json

import jax
import pytest

from dovetail.config import ConfigError
from dovetail.parallel import _processes, all_values, is_first, together


def test_alone_a_process_agrees_with_itself():
    assert is_first()
    assert all_values({"a": [1]}) == [{"a": [1]}]
    assert together(lambda: 3) == together(lambda: 3, everywhere=True) == 3
    error = ConfigError("x")
    with pytest.raises(ConfigError) as e:
        together(lambda: (_ for _ in ()).throw(error))
    assert e.value is error


@pytest.mark.parametrize("size", [0, 250, 251, 5000])
def test_values_of_any_size_arrive_whole(size, monkeypatch):
    sent = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(_processes, "_gathered", lambda data, room: sent.append(room) or [data.ljust(room, b"\0")] * 2)
    value = "x" * size
    assert all_values(value) == [value, value]
    assert sent == ([256] if len(json.dumps(value)) <= 252 else [256, 256 if size < 256 else 8192])


def test_the_error_of_another_process_is_of_the_same_kind_where_it_can_be():
    for kind in ("dovetail.config._errors:ConfigError", "dovetail.config._component:MissingFieldsError"):
        found = _processes._error(kind, "x")
        assert type(found) is ConfigError
        assert str(found) == "x"
    for kind in ("builtins:UnicodeDecodeError", "nowhere:NoError", "builtins:print"):
        found = _processes._error(kind, "x")
        assert type(found) is RuntimeError
        assert str(found) == f"{kind.partition(':')[2]}: x"
