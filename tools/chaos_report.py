# SPDX-License-Identifier: Apache-2.0
"""How long it took to notice faults and to go on, by kind, as a table."""

import dataclasses
import platform
import statistics
from collections.abc import Sequence
from importlib import metadata

from chaos_faults import Fault


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a fault."""

    fault: Fault
    start: int  # Of the gang that it hit.
    step: int  # At which the run went on.
    detected: float | None  # Seconds until it was noticed; None: nothing was to be noticed, or a save came first.
    recovered: float | None  # Seconds until the next step was made.

    def text(self) -> str:
        """Returns it for people."""
        times = [f"noticed after {self.detected:.2f} s"] if self.detected is not None else []
        times += [f"next step after {self.recovered:.1f} s"] if self.recovered is not None else []
        where = {"step": "", "save": " inside a save", "start": " while starting"}[self.fault.when]
        return f"{self.fault.kind}{where} after step {self.fault.after}: {', '.join(times) or 'went on'}"


def report(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Returns the table, with the machine and the versions it was made with."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "orbax-checkpoint"))
    inside = sum(each.fault.when == "save" for each in outcomes)
    lines = [
        f"{len(outcomes)} faults in {seconds:.0f} s, {inside} of them inside a save.",
        f"{platform.machine()}, Python {platform.python_version()}, {versions}.",
        "",
        "| fault | times | noticed after, median (most), s | next step after, median (most), s |",
        "| --- | ---: | ---: | ---: |",
    ]
    kinds = sorted({each.fault.kind for each in outcomes})
    for kind in [*kinds, "all of them"]:
        those = [each for each in outcomes if kind in (each.fault.kind, "all of them")]
        cells = [_spread([getattr(each, name) for each in those], digits) for name, digits in _TIMES]
        lines.append(f"| {kind} | {len(those)} | {' | '.join(cells)} |")
    return "\n".join(lines)


_TIMES = (("detected", 2), ("recovered", 1))


def _spread(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.{digits}f} ({max(known):.{digits}f})" if known else ""
