# SPDX-License-Identifier: Apache-2.0
"""The loss on held-out data: over all of it, which has an end. Whose tokenizer: tests/cli/test_resolve.py."""

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.train import Evaluated, HeldOutLoss, eval_step, load_trained
from support.runs import tiny


def test_evaluation_is_the_mean_over_all_that_counts(unbroken):
    cfg, _ = unbroken
    trained = load_trained(cfg)
    held_out: HeldOutLoss = cfg.evaluators["eval"].build(path="evaluators.eval", program=trained.program)
    found = held_out.run(Evaluated(trained.step, trained.params)).metrics
    step = jax.jit(eval_step(trained.model, dtype=None))
    losses = [jax.device_get(step(trained.params, batch)) for batch in held_out.input]
    sums = np.sum([(each.sum, each.weight, each.metrics["accuracy"][0]) for each in losses], axis=0)
    np.testing.assert_allclose(found["loss"], sums[0] / sums[1], rtol=1e-6)
    np.testing.assert_allclose(found["accuracy"], sums[2] / sums[1], rtol=1e-6)
    assert found["tokens"] == sums[1]


def test_data_without_an_end_is_refused_before_anything_runs(tmp_path):
    cfg = tiny(tmp_path).set_in("evaluators.eval.input.dataset.epochs", None)
    with pytest.raises(ConfigError, match=r"(?s)evaluators.eval.input: its data has no end.*input.dataset.epochs=1"):
        cfg.build()
