# SPDX-License-Identifier: Apache-2.0
"""The package as a whole: what it needs to be imported, and the settings under which it is tested."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.dtypes import TypePromotionError

import dovetail

SRC = Path(__file__).resolve().parents[1] / "src"


def test_version_is_the_installed_one():
    assert version("dovetail") == dovetail.__version__


def test_config_needs_the_standard_library_only():
    """Imports each module of `dovetail.config` with a Python that sees no installed package (`-S`)."""
    program = f"""
import importlib, pkgutil, sys
sys.path.insert(0, {str(SRC)!r})
import dovetail.config
for module in pkgutil.walk_packages(dovetail.config.__path__, "dovetail.config."):
    importlib.import_module(module.name)
"""
    subprocess.run([sys.executable, "-S", "-c", program], check=True)


def test_tests_run_on_eight_devices_with_strict_promotion():
    assert [device.platform for device in jax.devices()] == ["cpu"] * 8
    with pytest.raises(TypePromotionError):
        jnp.add(jnp.int32(1), jnp.float32(1))
