# SPDX-License-Identifier: Apache-2.0
"""What users run is what is tested: the optimizations of the compiler change nothing but the order of sums.

All other tests turn most of them off, because programs compile faster without.
"""

import json

import pytest
from filelock import FileLock

from support import optimized

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def report(tmp_path_factory, worker_id):
    """Made once, whichever process of pytest needs it first: it takes a minute."""
    if worker_id == "master":
        return optimized.report()
    file = tmp_path_factory.getbasetemp().parent / "optimized.json"
    with FileLock(file.with_suffix(".lock")):
        if not file.exists():
            file.write_text(json.dumps(optimized.report()))
        return json.loads(file.read_text())


@pytest.mark.parametrize("name", optimized.NAMES)
def test_loss_and_gradients_are_those_without_fusions(report, name):
    found = report[name]
    (fusions, products), (alone, none) = found["fused"], found["unfused"]
    assert fusions > products > 0, "users have fusions, and products of YNN"
    assert none == 0
    assert alone > 1.5 * fusions, "each operation stands alone"
    assert found["error"] <= found["allowed"], found["where"]


def test_steps_of_training_are_those_without_fusions(report):
    found = report["steps"]
    assert found["losses"][-1] < found["losses"][0]
    assert found["error"] <= found["allowed"]


def test_what_is_generated_is_most_likely_by_the_whole_sequence(report):
    assert report["written"]["tokens"] > 3, "it writes more than one word"
    assert report["written"]["gap"] <= 1e-4
