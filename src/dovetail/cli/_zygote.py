# SPDX-License-Identifier: Apache-2.0
"""`python -m dovetail.cli._zygote SOCKET`: imports all that training needs, then forks workers for an agent."""

import importlib
import os
import socket
import sys
from collections.abc import Sequence

from dovetail.hardware import host_settings, kept_programs, restart_with
from dovetail.launch import serve

from ._main import main

# JAX imports parts of itself when they are first used; what a training step uses is imported here.
_MODULES = (
    "dovetail.zoo.recipes",
    "dovetail.zoo.families",
    "dovetail.checkpoint",
    "grain",
    "orbax.checkpoint.experimental.v1",
    "rich.console",
    "tensorboardX",
    "jax.experimental.multihost_utils",
)


def run(arguments: Sequence[str]) -> int:
    """Runs a command of `dovetail` in a process that has been forked for it."""
    sys.argv = ["dovetail", *arguments]
    return main()


if __name__ == "__main__":
    restart_with(host_settings(os.environ))
    os.environ.update(kept_programs(os.environ).variables)
    for name in _MODULES:
        importlib.import_module(name)
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])), run))
