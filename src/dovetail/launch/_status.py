# SPDX-License-Identifier: Apache-2.0
"""The status of a run under a supervisor: what that knows, the ledger of the run, and what was logged last."""

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.progress import LEDGER, METRICS, Ledger, Status, StatusServer, json_lines

from ._launcher import Job
from ._supervisor import Supervisor

_TAIL = 64 << 10  # Bytes of the metrics that are looked at.
_RATE = "_per_second"


class LaunchStatus:
    """Tells how a launch is when it is asked. Files are read in a thread, so that the supervisor never waits."""

    def __init__(self, supervisor: Supervisor, job: Job) -> None:
        self._supervisor, self._job = supervisor, job
        self._ledger, self._reading = Ledger(job.directory / LEDGER), asyncio.Lock()

    def server(self, status: Status) -> StatusServer | None:
        """Returns what serves this; None if it is off."""
        actions = {"stop": self._supervisor.stop, "profile": self._supervisor.profile}
        return (
            StatusServer(status, self.snapshot, actions=actions, directory=self._job.directory) if status.on else None
        )

    async def snapshot(self) -> dict[str, Any]:
        """Returns what there is to tell at the moment."""
        async with self._reading:
            account, values = await asyncio.to_thread(self._read)
        loss = values.get("loss")
        rates = {name.removesuffix(_RATE): rate for name, rate in values.items() if name.endswith(_RATE)}
        return {
            "run": str(self._job.directory),
            "recipe": self._job.arguments[1] if len(self._job.arguments) > 1 else "",
            **self._supervisor.status(),
            "loss": loss if isinstance(loss, float) and math.isfinite(loss) else None,
            "rate": {name: rate for name, rate in rates.items() if isinstance(rate, float)},
            "goodput": account,
        }

    def _read(self) -> tuple[dict[str, Any], Mapping[str, Any]]:
        account = self._ledger.update()
        return account.named() if account.starts else {}, _logged(self._job.directory / METRICS)


def _logged(file: Path) -> Mapping[str, Any]:
    """Returns the metrics of a step that were logged last; none where the run writes no such file."""
    return next((record for record in reversed([*json_lines(file, tail=_TAIL)]) if "loss" in record), {})
