# SPDX-License-Identifier: Apache-2.0
"""What has to be settled about devices and processes before JAX starts."""

import json
import os
from collections.abc import Mapping, MutableMapping
from typing import Protocol

from dovetail.config import ConfigError

_ADDRESS, _COUNT, _INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
FULL_PROCESSES = "DOVETAIL_FULL_PROCESSES"  # When none is missing; a CPU stands for no more than its share of devices.
# What else a process has to say to its devices, by the catalogue, as JSON: "devices" of a host, "together", the hosts
# of a slice, and "variables", texts by name, with {host}, {rank}, {devices}, {slice}, {slices}: of each gang others.
WORKER_ENVIRONMENT = "DOVETAIL_WORKER_ENVIRONMENT"

# Devices of a CPU share one pool of threads, by default as many as there are devices, and a thread that has come to a
# collective waits there for the others. Where a program has several that do not depend on each other, devices may come
# to them in different orders, and with too few threads all wait for ever: pipelines have done so.
_THREADS = 4  # For each device, ...
_MOST = 64  # ... unless there are more devices: no CPU trains on so many, but hosts of accelerators come here, too.


class Needed(Protocol):
    """A mesh, or hardware."""

    @property
    def num_devices(self) -> int:
        """How many devices it takes."""
        ...


def start_devices(needed: Needed, environ: MutableMapping[str, str]) -> None:
    """Joins the other processes of the run, if the variables name them, and gives the CPU as many devices as needed.

    A CPU stands for as many devices as a mesh or hardware takes, so that any can be tried; `JAX_NUM_CPU_DEVICES` says
    how many instead. Where JAX finds an accelerator, that number changes nothing.
    """
    import jax

    count = 1
    if _ADDRESS in environ:
        missing = [name for name in (_COUNT, _INDEX) if not environ.get(name, "").isdigit()]
        if missing:
            raise ConfigError(f"{_ADDRESS} is set, and so must be {' and '.join(missing)}, to a number.")
        count = int(environ[_COUNT])
    environ.update(_of_gang(environ, count))
    devices = -(-needed.num_devices // int(environ.get(FULL_PROCESSES, count)))
    if "JAX_NUM_CPU_DEVICES" not in environ:
        jax.config.update("jax_num_cpu_devices", devices)
    if 1 < devices <= _MOST:
        environ.setdefault("PJRT_NPROC", str(max(os.cpu_count() or 1, _THREADS * devices)))
    if count > 1:
        address = environ[_ADDRESS]
        loopback = address.startswith(("127.", "localhost:"))  # By default it would listen to the whole network.
        bind = address if loopback else None
        jax.distributed.initialize(address, count, int(environ[_INDEX]), coordinator_bind_address=bind)


def _of_gang(environ: Mapping[str, str], count: int) -> dict[str, str]:
    """Returns the variables by which the devices of this process find those of the others."""
    if WORKER_ENVIRONMENT not in environ:
        return {}
    told = json.loads(environ[WORKER_ENVIRONMENT])
    facts = {
        "host": environ.get(_ADDRESS, "localhost:0").rpartition(":")[0],
        "rank": environ.get(_INDEX, "0"),
        "devices": ",".join([str(told["devices"])] * count),
        "slice": str(int(environ.get(_INDEX, "0")) // told["together"]),
        "slices": str(count // told["together"]),
    }
    return {name: text.format(**facts) for name, text in told["variables"].items()}
