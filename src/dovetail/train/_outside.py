# SPDX-License-Identifier: Apache-2.0
"""What looks at a run from outside: its ledger, its status over HTTP, its profiles."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.module import Module
from dovetail.parallel import is_first
from dovetail.progress import supervised

from ._data_wait import DataWait
from ._goodput import Goodput
from ._profile import Profiler
from ._watched import Watched

if TYPE_CHECKING:
    from ._trainer import Trainer


class Outside:
    """Goes along with a run, which tells it what it does."""

    def __init__(self, cfg: "Trainer.Config", model: Module, goodput: Goodput) -> None:
        cfg.status.token()
        self._status, self._directory, self._goodput = cfg.status, Path(cfg.directory), goodput
        self.data_wait = DataWait(goodput)
        self._watched = Watched(goodput, self._directory, cfg.steps)
        steps = cfg.profile.range()
        self.profiler = Profiler(steps if is_first() else range(0), self._directory, model, goodput)
        self._before: tuple[float, float] | None = None  # Seconds of waiting for data, and of all, at the last figures.
        self.url = ""  # Where the status is; empty if it is not served here.
        self.end = "done"  # How the run ends, where it ends without an error.
        self._opened = contextlib.ExitStack()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Goes along with what is inside."""
        self.end = "done"
        try:
            with self.profiler.listening(), supervised(self._goodput), supervised(self._watched), self._opened:
                yield
        except BaseException as e:
            self.end = "stopped" if isinstance(e, KeyboardInterrupt) else "failed"
            raise
        finally:
            self.data_wait.close()
            self._goodput.close(self.end)

    def open(self) -> None:
        """The run goes on in its directory, which is there: the ledger is opened, and the status served."""
        if self.url or not is_first():
            return
        self._goodput.open(self._directory)
        if server := self._watched.server(self._status):
            self.url = self._opened.enter_context(server.in_thread())
            self._opened.callback(setattr, self, "url", "")

    def saw(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns figures of a step with the goodput so far, and keeps them for the status.

        `data_wait` is the share of the time since the last ones in which devices had no work for want of a batch.
        """
        account = self._goodput.account()
        waited, whole = account.seconds.get("data_wait", 0.0), account.total
        found = {**values, "goodput": account.goodput}
        if self._before is not None and whole > self._before[1]:
            found["data_wait"] = max(0.0, waited - self._before[0]) / (whole - self._before[1])
        self._before = waited, whole
        self._watched.metrics(found)
        return found

    def shares(self) -> tuple[dict[str, float], str]:
        """Returns what the time went to, by name and for people; nothing where the first process has it."""
        account = self._goodput.account()
        whole = account.total or 1.0
        return {f"goodput/{kind}": seconds / whole for kind, seconds in account.seconds.items()}, account.text()


def told(url: str) -> str:
    """Returns a line that says where the status is."""
    return f"\nStatus: {url}/status, /healthz, /metrics" if url else ""
