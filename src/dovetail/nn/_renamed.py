# SPDX-License-Identifier: Apache-2.0
"""Names that there were, for configs that were written with them."""

from collections.abc import Mapping

_BLOCK = "Block, whose docstring has the fields of each kind"
RENAMED: Mapping[str, str] = {
    **dict.fromkeys(("PreNormBlock", "PostNormBlock", "SandwichBlock", "ParallelBlock", "MixerBlock"), _BLOCK),
    **dict.fromkeys(("RepeatedBlock", "PatternStack"), "Repeat"),
    "SequenceStack": "Sequence",
    "Stack": "Layer",
}
