# SPDX-License-Identifier: Apache-2.0
"""Comparison of trees of arrays up to the rounding of float32."""

from typing import Any

import jax
import numpy as np

# Sums of about 100 terms of size 1 in float32 (24 bits), whose order the compiler is free to choose.
RELATIVE, ABSOLUTE = 1e-5, 1e-6


def assert_same(got: Any, want: Any) -> None:
    """Asserts that two trees have the same structure and, but for rounding, the same values."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=RELATIVE, atol=ABSOLUTE), got, want)
