# SPDX-License-Identifier: Apache-2.0
"""`python -m dovetail.board WHAT PLACE [HARDWARE]`: what a board asks of a process that has JAX."""

import contextlib
import json
import os
import sys

from dovetail.config import ConfigError

from ._child import answer


def main() -> int:
    """Prints the answer; returns 2 with a message for what the user can fix."""
    with contextlib.suppress(OSError):
        os.nice(10)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = answer(sys.argv[1:])
    except (ConfigError, RuntimeError) as e:
        print(e, file=sys.stderr)
        return 2
    print(json.dumps(found))
    return 0


sys.exit(main())
