# SPDX-License-Identifier: Apache-2.0
"""Errors say where a component stands in the tree."""

import pytest

from dovetail.config import ConfigError
from dovetail.optim import AdamW, ConstantSchedule, Learner, Muon


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"schedule": ConstantSchedule.Config(peak=-1.0)},
            "trainer.learner.schedule (ConstantSchedule): peak is -1.0, expected a positive number.",
        ),
        (
            {"optimizer": Muon.Config(rest=AdamW.Config(eps=-1.0))},
            "trainer.learner.optimizer.rest (AdamW): eps is -1.0, expected at least 0.",
        ),
    ],
)
def test_the_path_of_a_part_of_the_learner(fields, message, specs):
    cfg = Learner.Config(schedule=ConstantSchedule.Config(peak=1.0)).set(**fields)
    with pytest.raises(ConfigError) as e:
        cfg.build(specs=specs, path="trainer.learner")
    assert str(e.value) == message


def test_the_path_of_a_part_of_a_learner_that_stands_alone(specs):
    with pytest.raises(ConfigError, match=r"^schedule \(ConstantSchedule\): peak is -1.0"):
        Learner.Config(schedule=ConstantSchedule.Config(peak=-1.0)).build(specs=specs)
