# SPDX-License-Identifier: Apache-2.0
"""Curves of runs beside each other."""

import json

import pytest

from dovetail.config import ConfigError
from dovetail.progress import Metrics
from dovetail.runs import curves
from support.drawn import checked, texts


def _run(*names, unit="tokens"):
    found = Metrics()
    for step in (1, 2, 3):
        record = {"step": step, "time": float(step), unit: 10, f"{unit}_per_second": 1.0}
        found.add(json.loads(json.dumps({**record, **dict.fromkeys(names, 1.0 / step)})))
    found.finish([], None)
    return found


def test_the_usual_metrics_are_those_that_a_run_has():
    assert "loss" in texts(checked(curves({"a": _run("loss")})))
    assert {"loss", "eval/loss"} <= set(texts(checked(curves({"a": _run("loss"), "b": _run("eval/loss")}))))
    assert "reward" in texts(checked(curves({"a": _run("reward")}, ["reward"])))


@pytest.mark.parametrize(
    "asked, error",
    [
        ({"metrics": ["los"]}, "none of these runs has measured 'los'. Did you mean 'loss'?"),
        ({"smooth": 1.0}, "smooth is 1, expected a number from 0 up to 1, as in 0.9."),
        ({"x": "epoch"}, "x is 'epoch', expected one of step, tokens, units, time."),
    ],
)
def test_what_cannot_be_drawn_is_said(asked, error):
    with pytest.raises(ConfigError) as e:
        curves({"a": _run("loss")}, **asked)
    assert str(e.value) == error


def test_runs_that_count_other_units_share_no_such_axis():
    assert "tokens" in texts(checked(curves({"a": _run("loss"), "b": _run("loss")}, x="tokens")))
    with pytest.raises(ConfigError, match="these runs count frames, tokens: they share no such axis"):
        curves({"a": _run("loss"), "b": _run("loss", unit="frames")}, x="tokens")


def test_a_run_that_has_measured_nothing_is_named():
    with pytest.raises(ConfigError, match="a: nothing has been measured yet"):
        curves({"a": Metrics()})
