# SPDX-License-Identifier: Apache-2.0
"""Names that there were, for configs that were written with them."""

from collections.abc import Mapping

RENAMED: Mapping[str, str] = {name: f"dovetail.serve:{name}" for name in ("Sampling", "generate", "sample")}
