# SPDX-License-Identifier: Apache-2.0
"""How fast jobs are: what was measured comes before tables, and tables before predictions."""

import pytest

from dovetail.config import ConfigError
from dovetail.launch.schedule import JobSpec, Pool, Predicted, demands, hardware_name

POOLS = (Pool(name="v5p", hardware="tpu-v5p", count=64, block=4), Pool(name="mine", count=16))


def forecast(recipe, overrides, sizes):
    rates = {(pool.name, chips): chips / 8 for pool, chips in sizes if pool.hardware}
    return Predicted(rates, {(pool.name, chips): "unheard of" for pool, chips in sizes if not pool.hardware}, 500.0)


def rates_of(table=(), **fields):
    job = JobSpec(name="j", chips=(8, 16), **fields)
    return demands([job], POOLS, dict(table), forecast)[0]


def test_a_recipe_is_predicted_where_nothing_is_known():
    found = rates_of(recipe="r")
    assert found.rates == {("v5p", 8): 1.0, ("v5p", 16): 2.0}
    assert found.remaining == 500


def test_what_was_measured_replaces_a_prediction_and_corrects_the_others():
    found = rates_of(recipe="r", steps=10.0, rates={"v5p": {"8": 0.5}})
    assert found.rates == {("v5p", 8): 0.5, ("v5p", 16): 1.0}
    assert found.remaining == 10


def test_a_table_of_kinds_comes_between():
    table = {"lm": {("v5p", 8): 3.0, ("mine", 8): 4.0, ("mine", 2): 9.0}}
    assert rates_of(table.items(), kind="lm", steps=1.0).rates == {("v5p", 8): 3.0, ("mine", 8): 4.0}
    found = rates_of(table.items(), kind="lm", steps=1.0, rates={"mine": {"8": 5.0}}, recipe="r")
    assert found.rates == {("v5p", 8): 3.0, ("mine", 8): 5.0, ("v5p", 16): 2.0}


def test_a_job_of_which_nothing_is_known_is_an_error():
    with pytest.raises(ConfigError, match=r"\[jobs.j\]: nothing says how fast it is(?s:.*)8 of mine: unheard of"):
        rates_of(recipe="r", pools=("mine",))
    with pytest.raises(ConfigError, match=r"\[jobs.j\]: kind is 'lm', of which --rates has no row"):
        rates_of(kind="lm", steps=1.0)


def test_chips_of_a_pool_have_the_name_that_runs_use():
    assert hardware_name(POOLS[0], 64) == "tpu-v5p-128"
    slices = Pool(name="v6e", hardware="tpu-v6e", count=1024, block=256)
    assert hardware_name(slices, 512) == "tpu-v6e-256x2"
    with pytest.raises(ConfigError, match="mine names no chip of the hardware catalogue"):
        hardware_name(POOLS[1], 8)
