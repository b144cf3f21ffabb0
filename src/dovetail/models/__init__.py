# SPDX-License-Identifier: Apache-2.0
"""Models: what a trainer trains."""

from ._causal_lm import CausalLM as CausalLM
from ._prediction import MultiTokenPrediction as MultiTokenPrediction
from ._renamed import RENAMED as RENAMED
