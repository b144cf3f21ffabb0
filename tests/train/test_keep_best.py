# SPDX-License-Identifier: Apache-2.0
"""The best checkpoints of a run: by a metric that it reports, or refused before anything is made."""

import os
from pathlib import Path

import pytest

from dovetail.checkpoint import Checkpointer, KeepBest
from dovetail.config import ConfigError
from dovetail.train._keep_best import warn_if_missing
from support.runs import tiny, without_samples


def keeping(directory: Path, metric: str, **fields):
    cfg = without_samples(tiny(directory))
    every = {name: each.set(every=2) for name, each in cfg.evaluators.items()}
    checkpoint = Checkpointer.Config(keep=1, keep_best=KeepBest(metric=metric, mode="max"))
    return cfg.set(checkpoint=checkpoint, evaluators=every, save_every=2, **fields)


def test_a_run_keeps_its_best_steps_by_what_its_evaluator_reports(tmp_path):
    cfg = keeping(tmp_path, "eval/loss")  # The greatest loss: that of the first evaluation.
    cfg.build().run()
    assert sorted(name for name in os.listdir(tmp_path / "run/checkpoints") if name[0] != ".") == ["step_2", "step_6"]


def test_a_metric_that_nobody_reports_is_refused(tmp_path):
    with pytest.raises(ConfigError) as e:
        keeping(tmp_path, "evil/loss").build()
    assert str(e.value) == (
        "checkpoint.keep_best.metric: 'evil/loss' is reported by no evaluator: there is no 'evil', only 'eval'. "
        "Did you mean 'eval'?\n  A metric goes by the name of its evaluator: eval/loss."
    )
    cfg = keeping(tmp_path, "eval/loss")
    for every, when in ((None, "at the end alone"), (5, "every 5 steps")):
        evaluators = {"eval": cfg.evaluators["eval"].set(every=every)}
        with pytest.raises(ConfigError) as e:
            cfg.set(evaluators=evaluators).build()
        assert str(e.value) == (
            f"checkpoint.keep_best.metric: 'eval' evaluates {when}, and steps are saved every 2: never the same step "
            "before the end.\n  Use evaluators.eval.every=2."
        )


def test_a_metric_that_an_evaluator_lacks_is_said_once(tmp_path, caplog):
    cfg = keeping(tmp_path, "eval/los")
    for name in ("eval", "eval", "other"):
        warn_if_missing(cfg, name, {"eval/loss": 1.0})
    assert caplog.messages == [
        "checkpoint.keep_best: 'eval/los' is not reported, only 'eval/loss': no step is the best."
    ]
