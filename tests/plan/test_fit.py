# SPDX-License-Identifier: Apache-2.0
"""Fits: constants are found again from steps that were made with them, and what is left out is not seen."""

import numpy as np
import pytest

from dovetail.plan import FREE, Table, rebuilt
from dovetail.plan._constants import priors
from dovetail.zoo.measured import rebuild

FIELDS = ("system", "model", "hw", "chips", "precision", "seq", "gbs", "parallelism", "remat", "step_s", "source")
ROWS = [
    ("A", "Llama2-7B", "H100", 64, "bf16", 4096, 256, "fsdp=64", "full", 1.0, "one"),
    ("A", "Llama2-7B", "H100", 8, "bf16", 4096, 64, "fsdp=8", "full", 1.0, "one"),
    ("A", "Llama2-13B", "H100", 64, "bf16", 4096, 256, "tp=2,fsdp=32", "full", 1.0, "two"),
    ("B", "Llama2-70B", "H100", 256, "bf16", 4096, 512, "fsdp=256", "full", 1.0, "three"),
    ("B", "Llama3 8B", "TPU v5p", 64, "bf16", 8192, 256, "fsdp=64", "full", 1.0, "three"),
    ("B", "Llama3 70B", "TPU v5p", 256, "bf16", 8192, 512, "fsdp=256", "full", 1.0, "four"),
    ("B", "Mixtral-8x7B", "H100", 64, "bf16", 4096, 512, "ep8 fsdp=8", "full", 1.0, "four"),
]


@pytest.fixture(scope="module")
def steps():
    return [rebuilt(rebuild({name: str(value) for name, value in zip(FIELDS, row, strict=True)})) for row in ROWS]


def measured(steps, logs):
    """The steps, as long as these constants say that they take."""
    seconds = np.exp(Table(steps).errors(logs))
    return [
        step._replace(measured=step.measured._replace(seconds=step.measured.seconds * float(factor)))
        for step, factor in zip(steps, seconds, strict=True)
    ]


def test_steps_that_the_constants_say_are_met_without_error(steps):
    logs = priors()["value"]
    assert np.abs(Table(measured(steps, logs)).errors(logs)).max() < 1e-12


def test_a_constant_that_all_steps_depend_on_moves_to_where_they_say(steps):
    place = next(i for i, each in enumerate(FREE) if (each.name, each.group) == ("reached", "hopper"))
    truth = priors()["mean"].copy()
    truth[place] -= 0.1
    table = Table(measured(steps, truth))
    prior = priors()["mean"]
    assert truth[place] < table.fit[place] < prior[place] - 0.01
    before, after = (np.abs(table.errors(logs)) for logs in (prior, table.fit))
    assert np.median(after) < 0.8 * np.median(before)  # A system may also be slow by itself.


def test_a_system_that_is_left_out_does_not_change_what_is_said_of_it(steps):
    made = measured(steps, priors()["value"])
    slower = [
        step._replace(measured=step.measured._replace(seconds=step.measured.seconds * 1.5))
        if step.measured.system == "B"
        else step
        for step in made
    ]
    rows = np.array([step.measured.system == "B" for step in made])
    before, after = (Table(each).left_out(np.array(["B" if r else "A" for r in rows])) for each in (made, slower))
    np.testing.assert_allclose(after[rows], before[rows] - np.log(1.5), atol=0.1)


def test_a_row_like_others_is_calibrated_by_them(steps):
    made = measured(steps[:1] * 4, priors()["value"])
    late = [
        step._replace(measured=step.measured._replace(seconds=step.measured.seconds * 1.3, source=str(i)))
        for i, step in enumerate(made)
    ]
    table = Table(late)
    plain, corrected = (table.left_out(table.labels.source, calibrated=each) for each in (False, True))
    assert np.abs(corrected).max() < 0.3 * np.abs(plain).max()
