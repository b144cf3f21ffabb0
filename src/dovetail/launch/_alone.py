# SPDX-License-Identifier: Apache-2.0
"""One launch at a time in a directory: a lock of the kernel on a file, which ends with the processes that hold it."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from dovetail.config import ConfigError

_AGAIN = 0.1  # Seconds between two tries.


@contextlib.contextmanager
def alone(logs: Path, *, patience: float) -> Iterator[int]:
    """Keeps other launches out; yields the number of the file, for a supervisor that is to keep them out as well.

    A launch that was killed leaves a supervisor that saves and ends: it is waited for, `patience` seconds. Where the
    file system has no locks, the lease on the checkpoints is what keeps others out.
    """
    import fcntl  # Not on Windows.

    with (logs / "lock").open("a+", encoding="utf-8") as file:
        until, told = time.monotonic() + patience, False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = _holder(file)
                if _is_there(holder) or time.monotonic() > until:
                    raise _refused(logs, holder) from None
                if not told:
                    told = True
                    print("launch: the one before was killed, and its processes save: waiting for them", flush=True)
                time.sleep(_AGAIN)
            except OSError:
                break
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%F %T")}))
        file.flush()
        yield file.fileno()


def _holder(file: TextIO) -> Mapping[str, Any]:
    file.seek(0)
    try:
        found = json.loads(file.read())
    except ValueError:  # It is being written.
        return {}
    return found if isinstance(found, dict) else {}


def _is_there(holder: Mapping[str, Any]) -> bool:
    """Whether the launch itself is there, as far as one can tell from here."""
    if holder.get("host") != socket.gethostname() or not isinstance(holder.get("pid"), int):
        return True
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _refused(logs: Path, holder: Mapping[str, Any]) -> ConfigError:
    who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}, since {holder.get('since', '?')}"
    return ConfigError(
        f"{logs.parent}: another launch is running there: {who}.\n"
        f"  Stop that one first, or give this run a directory of its own: directory=runs/NAME"
    )
