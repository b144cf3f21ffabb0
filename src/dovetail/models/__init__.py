# SPDX-License-Identifier: Apache-2.0
"""Models: what a trainer trains."""

from ._causal_lm import CausalLM as CausalLM
from ._generate import Sampling as Sampling
from ._generate import generate as generate
from ._generate import sample as sample
from ._prediction import MultiTokenPrediction as MultiTokenPrediction
