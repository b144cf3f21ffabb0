# SPDX-License-Identifier: Apache-2.0
"""Names of jobs, as engines take them: short, of small letters, digits and hyphens."""

import re
from pathlib import PurePath

from dovetail.config import ConfigError

from ._launcher import Job

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_END = re.compile(r"(-[0-9a-f]{8})?(-\d{1,4})?\Z")  # What tells names apart: the hash, and the number of a run.
_HASH = 8  # Digits of the hash of a bundle that a name has.


def job_name(job: Job, name: str, *, most: int) -> str:
    """Returns the name of a job: as its config says, or made of the recipe and the hash of its bundle, cut if need be.

    >>> from pathlib import Path
    >>> job_name(Job(("train", "zoo/My_model.py:big"), Path("runs/a")), "", most=25)
    'my-model-py-big'
    >>> job_name(Job(("train", "a"), Path("runs/a"), name="mixtral-8x22b-large-0123abcd-7"), "", most=25)
    'mixtral-8x22b-0123abcd-7'
    """
    if name and (len(name) > most or not _NAME.fullmatch(name)):
        raise ConfigError(
            f"launch.name is {name!r} ({len(name)} characters), expected at most {most} of a-z, 0-9 and -, with a "
            f"letter first.\n  Say another one, as in launch.name={_made(name, most)}."
        )
    wanted = job.name or name
    if not wanted:
        recipe = PurePath(job.arguments[1] if len(job.arguments) > 1 else "job").name
        wanted = recipe + (f"-{job.bundle.hash[:_HASH]}" if job.bundle is not None else "")
    if len(wanted) <= most and _NAME.fullmatch(wanted):
        return wanted
    end = _END.search(wanted)
    assert end is not None
    return _made(wanted[: end.start()], most - len(end[0])) + end[0]


def _made(text: str, most: int) -> str:
    """Returns the nearest name that is allowed."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"j-{plain}"
    return plain[:most].strip("-")
