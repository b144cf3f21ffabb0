# SPDX-License-Identifier: Apache-2.0
"""Devices and processes: what a command settles before JAX starts."""

import json
import os
import subprocess
import sys

import pytest

from dovetail.config import ConfigError
from dovetail.hardware import start_devices
from dovetail.hardware._devices import _of_gang
from dovetail.parallel import parse_mesh

PROGRAM = """
import json, os
from dovetail.hardware import start_devices
from dovetail.hardware._devices import _of_gang
from dovetail.parallel import parse_mesh
start_devices(parse_mesh("data=2,tensor=3"), os.environ)
import jax
print(json.dumps([len(jax.devices()), os.environ["PJRT_NPROC"]]))
"""


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({}, [6, str(max(24, os.cpu_count() or 1))]),
        ({"JAX_NUM_CPU_DEVICES": "7", "PJRT_NPROC": "12"}, [7, "12"]),
    ],
)
def test_a_cpu_stands_for_as_many_devices_as_the_mesh_takes(variables, expected):
    """With threads enough that devices do not wait for each other for ever. What the user has set stays."""
    settled = ("JAX_NUM_CPU_DEVICES", "PJRT_NPROC")
    environ = {name: value for name, value in os.environ.items() if name not in settled} | variables
    found = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, env=environ)
    assert json.loads(found.stdout) == expected


def test_hosts_of_many_accelerators_get_no_more_threads():
    environ = {"JAX_NUM_CPU_DEVICES": "8"}
    start_devices(parse_mesh("data=512"), environ)
    assert environ == {"JAX_NUM_CPU_DEVICES": "8"}


def test_half_named_processes_are_an_error_that_says_what_is_missing():
    environ = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1", "JAX_PROCESS_ID": "0"}
    with pytest.raises(ConfigError) as e:
        start_devices(parse_mesh(""), environ)
    assert str(e.value) == "JAX_COORDINATOR_ADDRESS is set, and so must be JAX_NUM_PROCESSES, to a number."


def test_what_the_catalogue_says_of_a_process_is_filled_in_when_it_starts():
    texts = {"ROOT": "{host}:41000", "INDEX": "{rank}", "ALL": "{devices}", "SLICE": "{slice} of {slices}"}
    told = {"devices": 64, "variables": texts, "together": 2}
    environ = {"DOVETAIL_WORKER_ENVIRONMENT": json.dumps(told), "JAX_NUM_CPU_DEVICES": "1"}
    start_devices(parse_mesh(""), environ)
    assert (environ["ROOT"], environ["INDEX"], environ["ALL"]) == ("localhost:41000", "0", "64")
    gang = {"JAX_COORDINATOR_ADDRESS": "10.0.0.7:1234", "JAX_PROCESS_ID": "2"}
    assert _of_gang({**environ, **gang}, 4) == {
        "ROOT": "10.0.0.7:41000",
        "INDEX": "2",
        "ALL": "64,64,64,64",
        "SLICE": "1 of 2",
    }
