# SPDX-License-Identifier: Apache-2.0
"""Files of traces: fixed columns, and what is said of mistakes."""

import random

import pytest

from dovetail.config import ConfigError
from dovetail.launch.schedule import Pool, read_rates, read_trace

POOLS = (Pool(name="new", count=8), Pool(name="old", count=8))
RATES = "gpu,kind,gpus,steps_per_s\nnew,lm,1,4\nold,lm,1,1\nnew,lm,4,9\n"
JOBS = "trace,kind,gpus,steps,arrival_s\nt,lm,4,900,60\nt,lm,1,100,0\nu,lm,1,50,0\n"


def trace(where, rates=RATES, jobs=JOBS, names=()):
    (where / "rates.csv").write_text(rates)
    (where / "jobs.csv").write_text(jobs)
    return read_trace(str(where / "jobs.csv"), read_rates(str(where / "rates.csv"), POOLS), POOLS, names)


def test_jobs_can_run_where_there_is_a_rate(tmp_path):
    found = trace(tmp_path)
    assert list(found) == ["t", "u"]
    assert [each.seconds for each in found["t"]] == [0.0, 60.0]
    assert [each.job.rates for each in found["t"]] == [{("new", 1): 4.0, ("old", 1): 1.0}, {("new", 4): 9.0}]
    assert list(trace(tmp_path, names=["u"])) == ["u"]


def test_the_order_of_rows_and_columns_changes_nothing(tmp_path):
    head, *rows = JOBS.splitlines()
    turned = [",".join(reversed(line.split(","))) for line in [head, *random.Random(0).sample(rows, len(rows))]]
    found = trace(tmp_path, jobs="\r\n".join(turned))
    assert {name: found[name] for name in "tu"} == trace(tmp_path)


@pytest.mark.parametrize(
    "jobs, message",
    [
        ("", r"line 1: the columns are not there: trace, kind, gpus, steps, arrival_s is missing"),
        ("trace,kind,gpus,steps\n", r"line 1: .*arrival_s is missing.*The columns are trace,kind,gpus,steps,arrival_s"),
        ("trace,kind,gpus,steps,arrival_s,user\n", r"line 1: .*unknown: user"),
        ("trace,kind,gpus,steps,arrival_s\n", r"there is no row"),
        (f"{JOBS}t,lm,1,5\n", r"line 5: 4 values, expected 5"),
        (f"{JOBS}t,lm,1,many,0\n", r"line 5: steps is 'many', expected a number above 0"),
        (f"{JOBS}t,lm,1,nan,0\n", r"line 5: steps is 'nan'"),
        (f"{JOBS}t,lm,1,0,0\n", r"line 5: steps is '0', expected a number above 0"),
        (f"{JOBS}t,lm,1,5,-1\n", r"line 5: arrival_s is '-1', expected a number of at least 0"),
        (f"{JOBS}t,lm,1.5,5,0\n", r"line 5: gpus is '1.5', expected a whole number"),
        (f"{JOBS}t,lmm,1,5,0\n", r"line 5: --rates has no row of kind 'lmm'. Did you mean 'lm'"),
        (f"{JOBS}t,lm,2,5,0\n", r"line 5: 'lm' on 2 can run nowhere"),
        (f"{JOBS}t,,2,5,0\n", r"line 5: kind is empty"),
    ],
)
def test_a_mistake_in_a_trace_is_an_error_with_its_line(tmp_path, jobs, message):
    with pytest.raises(ConfigError, match=f"(?s)JOBS .*jobs.csv.*{message}"):
        trace(tmp_path, jobs=jobs)


@pytest.mark.parametrize(
    "rates, message",
    [
        (f"{RATES}newer,lm,1,1\n", r"line 5: gpu is 'newer', which is no pool. Did you mean 'new'.*count = 0"),
        (f"{RATES}new,lm,1,1\n", r"line 5: new, lm, 1 is there twice"),
        (f"{RATES}new,lm,2,0\n", r"line 5: steps_per_s is '0', expected a number above 0"),
        ("gpu,kind,gpus,rate\n", r"line 1: .*steps_per_s is missing; unknown: rate"),
    ],
)
def test_a_mistake_in_rates_is_an_error_with_its_line(tmp_path, rates, message):
    with pytest.raises(ConfigError, match=f"(?s)--rates .*rates.csv.*{message}"):
        trace(tmp_path, rates=rates)


def test_a_trace_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"has no trace 'tt'. Did you mean 't'\? It has: t, u"):
        trace(tmp_path, names=["tt"])
