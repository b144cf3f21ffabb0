# SPDX-License-Identifier: Apache-2.0
"""Exit codes of a run: what an engine (Slurm, Kubernetes) or a supervisor should do next."""

from typing import Final

DONE: Final = 0  # All steps are made.
FAILED: Final = 1  # It failed, and was tried again as often as it may be; the report says what is known.
MISTAKE: Final = 2  # Something that the user can mend; trying again would fail again.
RESUMABLE: Final = 85  # It was asked to end, and saved: start it again, and it goes on. (Slurm: requeue.)
BAD_HOST: Final = 86  # This host computes wrongly: start it again elsewhere.


def meaning(code: int) -> str:
    """Returns what the end of a process means; a negative code is the number of the signal that ended it.

    >>> meaning(85)
    'was asked to end, and saved'
    >>> meaning(-9)
    'was ended by SIGKILL'
    """
    import signal

    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    known = {
        DONE: "has finished",
        MISTAKE: "found something that its user can mend",
        RESUMABLE: "was asked to end, and saved",
        BAD_HOST: "found that its host computes wrongly",
    }
    return known.get(code, f"ended with exit code {code}")
