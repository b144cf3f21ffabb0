# SPDX-License-Identifier: Apache-2.0
"""What a launcher starts: `python -m dovetail.launch COMMAND`.

supervise JOB | agent ADDRESS SLOT LOGS [PARENT]    on one machine
host WORK DIRECTORY [PATH=VALUE ...]                on each host of a job of an engine
addresses                                           prints where other hosts reach this one, with a free port
"""

import os
import sys

from dovetail.config import ConfigError

from ._exit_codes import MISTAKE
from ._host import addresses, run_host
from ._local import run_agent, supervise


def main(arguments: list[str]) -> int:
    """Runs what is named."""
    match arguments:
        case ["supervise", what]:
            return supervise(what)
        case ["agent", address, slot, logs, *parent]:
            return run_agent(address, slot, logs, int(parent[0]) if parent else None, os.environ)
        case ["host", work, directory, *overrides]:
            try:
                return run_host(work, directory, overrides, os.environ)
            except ConfigError as e:
                print(e, file=sys.stderr)
                return MISTAKE
        case ["addresses"]:
            print(addresses())
            return 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2


sys.exit(main(sys.argv[1:]))
