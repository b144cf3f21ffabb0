# SPDX-License-Identifier: Apache-2.0
"""Executes pages, each in a process forked from this one, which has imported what they need: that takes the longest.

Reads paths of pages, one a line, and answers each with a line of JSON: `code` and `output`, as run_docs.py has them.
"""

import importlib
import json
import os
import sys
import tempfile
import traceback

import fast_compile
import run_docs

_MODULES = (
    "dovetail.cli",
    "dovetail.zoo.recipes",
    "dovetail.checkpoint",
    "dovetail.serve",
    "dovetail.train",
    "grain",
    "orbax.checkpoint.experimental.v1",
    "tensorboardX",
)


def _run(page: str) -> dict[str, object]:
    with tempfile.TemporaryFile() as output:
        if (pid := os.fork()) == 0:
            code = 1
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                code = run_docs.main([page])
                sys.stdout.flush()
            except BaseException:  # What a page raises is told by run_docs; this is its own.
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        output.seek(0)
        return {"code": os.waitstatus_to_exitcode(status), "output": output.read().decode(errors="replace")}


def main() -> None:
    run_docs.set_environment()
    for name in _MODULES:
        importlib.import_module(name)
    fast_compile.share_context()
    fast_compile.share_programs()
    for line in sys.stdin:
        print(json.dumps(_run(line.strip())), flush=True)


if __name__ == "__main__":
    main()
