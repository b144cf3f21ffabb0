# SPDX-License-Identifier: Apache-2.0
"""The machine that measurements are labelled with."""

from dovetail.hardware import machine


def test_the_machine_is_described():
    assert {"processor", "cores", "memory_gib", "python", "jax"} <= machine().keys()
