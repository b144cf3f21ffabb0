# SPDX-License-Identifier: Apache-2.0
"""What a run has trained, loaded from its directory."""

import jax
import numpy as np

from dovetail.train import load_trained


def test_the_moving_average_is_what_is_published(unbroken):
    cfg, state = unbroken
    trained = load_trained(cfg)
    assert trained.step == 6
    jax.tree.map(np.testing.assert_array_equal, trained.params, state.learner.ema)
    plain = load_trained(cfg.set_in("learner.ema", None))
    jax.tree.map(np.testing.assert_array_equal, plain.params, state.params)
    assert not np.allclose(trained.params["embedding"]["table"], plain.params["embedding"]["table"])


def test_a_step_may_be_asked_for_and_the_data_is_not_needed(unbroken):
    cfg, state = unbroken
    earlier = load_trained(cfg.set_in("input.dataset.source.files", ["gone.txt"]), step=3)
    assert earlier.step == 3
    assert not np.array_equal(earlier.params["embedding"]["table"], state.learner.ema["embedding"]["table"])
