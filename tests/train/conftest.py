# SPDX-License-Identifier: Apache-2.0
"""One run of the small trainer, which many tests look at and none changes."""

import jax
import pytest

from support.runs import tiny


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory):
    """The config of a run of six steps on one device, and its last state."""
    cfg = tiny(tmp_path_factory.mktemp("unbroken"))
    return cfg, jax.device_get(cfg.build().run())
