# SPDX-License-Identifier: Apache-2.0
"""`python -m dovetail.launch supervise JOB | agent ADDRESS SLOT LOGS [PARENT]`: what a launcher starts."""

import os
import sys

from ._local import run_agent, supervise


def main(arguments: list[str]) -> int:
    """Runs a supervisor or an agent."""
    match arguments:
        case ["supervise", what]:
            return supervise(what)
        case ["agent", address, slot, logs, *parent]:
            return run_agent(address, slot, logs, int(parent[0]) if parent else None, os.environ)
        case _:
            print(__doc__, file=sys.stderr)
            return 2


sys.exit(main(sys.argv[1:]))
