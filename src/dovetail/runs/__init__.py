# SPDX-License-Identifier: Apache-2.0
"""Runs as their directories tell them: config, metrics, curves, samples, goodput. For notebooks and scripts."""

from ._curves import AXES as AXES
from ._curves import curves as curves
from ._find import find_runs as find_runs
from ._run import Run as Run
