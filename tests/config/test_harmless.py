# SPDX-License-Identifier: Apache-2.0
"""A file from elsewhere names harmless functions only, so that what is built from it reaches nothing outside."""

import json
import os
import pickle
from typing import Any

import jax
import optax
import pytest

from dovetail.config import ConfigError, config_for, from_json, to_json
from dovetail.config._harmless import FUNCTIONS, TYPES
from dovetail.config._importing import import_object, import_path
from dovetail.data import JsonLines
from dovetail.ops import gated
from support.configs import run_python
from support.hostile import FUNCTION, HARMFUL, ways_to_name


def test_every_name_on_the_list_is_the_one_that_to_json_writes():
    assert [path for path in sorted(FUNCTIONS | TYPES) if import_path(import_object(path)) != path] == []


@pytest.mark.parametrize("path", HARMFUL)
def test_what_could_reach_a_file_a_process_or_any_code_is_refused_whatever_the_tag(path):
    for value in ways_to_name(path):
        with pytest.raises(ConfigError):
            from_json(json.dumps({"$format": 1, "$config": FUNCTION, "$of": "optax:masked", "inner": value}))


class Harm:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_pickle_that_a_file_leads_to_is_not_read(tmp_path):
    (tmp_path / "x.npy").write_bytes(pickle.dumps(Harm(f"touch {tmp_path / 'owned'}")))
    load = {"$config": FUNCTION, "$of": "numpy:load", "file": str(tmp_path / "x.npy"), "allow_pickle": True}
    with pytest.raises(ConfigError, match=r"^\(root\): numpy:load is not among what a config file may refer to\.\n"):
        from_json(json.dumps({"$format": 1, **load})).build()
    assert not (tmp_path / "owned").exists()


def test_function_on_the_list_is_not_given_a_component_which_would_be_built_first():
    cfg = config_for(gated, config_for(gated, JsonLines.Config(files=["/etc/passwd"])))
    with pytest.raises(ConfigError) as e:
        from_json(to_json(cfg))
    assert str(e.value) == (
        "activation: activation is a JsonLines.Config (a config), which dovetail.ops:gated may not be given by a file."
    )
    assert from_json(to_json(config_for(gated, config_for(gated, jax.nn.gelu))))


@pytest.mark.parametrize("path", ["dovetail.config._harmless:FUNCTIONS", "dovetail.nn.moe:MoEFeedForward.Config"])
def test_config_is_named_by_the_package_that_it_is_public_in(path):
    with pytest.raises(ConfigError):
        from_json(json.dumps({"$format": 1, "$config": path}))


def test_schedules_and_transformations_of_optax_are_read_without_permission():
    schedule = config_for(optax.join_schedules, [config_for(optax.constant_schedule, 0.1)] * 2, [10])
    cfg = config_for(optax.chain, config_for(optax.clip, 1.0), config_for(optax.lion, schedule))
    assert from_json(to_json(cfg)) == cfg


def test_files_made_hostile_at_random_are_refused_or_read_and_built_without_touching_anything():
    run_python("import sys; from support.hostile import main; sys.exit(main(seed=14, cases=300))", hash_seed=1)
