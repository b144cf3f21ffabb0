# SPDX-License-Identifier: Apache-2.0
"""Models: what a trainer trains."""

from ._causal_lm import CausalLM as CausalLM
from ._picture import model_picture as model_picture
from ._prediction import MultiTokenPrediction as MultiTokenPrediction
from ._renamed import RENAMED as RENAMED
