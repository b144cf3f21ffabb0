# SPDX-License-Identifier: Apache-2.0
"""What is learnt is as good as it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quality import check


@pytest.mark.slow
def test_tiny_lm_learns_as_well_as_recorded():
    tool = Path(__file__).parents[2] / "tools" / "quality.py"
    # As users run it: what the tests set for JAX makes programs slow.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    done = subprocess.run([sys.executable, str(tool), "--check"], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_worse_than_the_seeds_differ_is_a_failure():
    record = {"held_out_loss": [2.0, 2.1, 2.05]}
    assert check(record, 2.09) == ""
    assert check(record, 2.11) == "held-out loss of tiny-lm is 2.1100, recorded 2.0000; 0.1000 more are allowed."
