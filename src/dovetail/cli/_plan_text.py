# SPDX-License-Identifier: Apache-2.0
"""A plan in print: a table of the best ways to train, the commands for them, and what was assumed."""

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._table import short, table

if TYPE_CHECKING:
    from dovetail.plan import Plan, Row

_SHOWN = 12  # Rows.
_COMMANDS = 3
_HEAD = ("", "hardware", "mesh", "remat", "parts", "GiB", "step, s", "days", "cost, $", "MWh", "most of it", "")


def plan_json(recipe: str, found: "Plan", commands: Sequence[str], problems: Sequence[str]) -> str:
    """Returns all of a plan as JSON; what is infinite is null."""
    unit = f"{found.unit}s"
    figures = {
        "recipe": recipe,
        unit: found.wanted.units,
        "by": found.wanted.by,
        "deadline_seconds": found.wanted.deadline,
        "candidates": found.counted,
        "rank_correlation": correlation(found),
        "rows": [_figures(found, row, command) for row, command in zip(found.rows, commands, strict=True)],
        "skipped": dict(found.skipped),
        "not_compiled": list(problems),
        "assumptions": found.assumptions,
    }
    return json.dumps(figures, indent=2)


def _figures(found: "Plan", row: "Row", command: str) -> dict[str, Any]:
    from dovetail.plan import is_late, tied

    days = row.days if math.isfinite(row.days) else None
    return {
        "pool": row.pool.name,
        "hardware": row.hardware.name,
        "chips": row.hardware.num_chips,
        "mesh": {axis: size for axis, size in row.cfg.mesh.sizes.items() if size > 1},
        "remat": row.cfg.remat,
        "num_microbatches": row.cfg.num_microbatches,
        "pipeline_microbatches": row.cfg.mesh.num_microbatches,
        "rounds": row.cfg.mesh.rounds,
        "fits": row.fits,
        "estimated_gib": row.gib,
        "compiled_gib": row.compiled_gib,
        "limit_gib": row.limit_gib,
        "step_seconds": row.seconds,
        "interval": row.interval,
        "compiled_step_seconds": row.compiled_seconds,
        "breakdown": dict(row.parts),
        "goodput": row.goodput,
        "days": days,
        "cost": row.cost if days is not None else None,
        "megawatt_hours": row.energy if days is not None else None,
        "meets_deadline": None if found.wanted.deadline is None else not is_late(row, found.wanted),
        "tie": tied(row, found.rows[0], found.wanted.by),
        "by_mesh_rules": row.by_rules,
        "command": command,
    }


def correlation(found: "Plan") -> float | None:
    """Returns the rank correlation of times from the traced and from the compiled program."""
    from dovetail.plan import rank_correlation

    return rank_correlation([(row.seconds, row.compiled_seconds) for row in found.rows if row.compiled_seconds])


def plan_text(recipe: str, found: "Plan", commands: Sequence[str], problems: Sequence[str]) -> str:
    """Returns a table of the best rows, and the commands of the first of them."""
    wanted, compiled = found.wanted, [row for row in found.rows if row.compiled_gib is not None]
    shown = _shown(found)
    late = "" if wanted.deadline is None else f", within {wanted.deadline / 86_400:g} days"
    lines = [
        f"{recipe}: {short(wanted.units)} {found.unit}s, by {wanted.by}{late}; {found.counted:,} ways to run fit",
        "",
        table(_HEAD, [_cells(found, i, number) for number, i in enumerate(shown, 1)]),
        "",
        *(f"{number}: {commands[i]}" for number, i in enumerate(shown[:_COMMANDS], 1)),
        "",
        "GiB: of a chip, estimated / compiled / there is. Step: predicted, in the interval of 8 of 10 published steps.",
    ]
    if compiled:
        agree, share = sum(row.fits for row in compiled), correlation(found)
        ordered = "" if share is None else f"; their order by either time correlates with {share:.2f}"
        lines.append(f"compiled: {len(compiled)}, of which {agree} fit{ordered}")
    lines += [f"not compiled: {each}" for each in problems]
    lines += [f"left out: {name}: {why.partition(chr(10))[0]}" for name, why in found.skipped.items()]
    return "\n".join([*lines, *(f"assumed: {each}" for each in found.assumptions)])


def _shown(found: "Plan") -> list[int]:
    """Returns the rows to print: of one hardware the best ones, of several the best of each, then more."""
    first: dict[str, int] = {}
    for i, row in enumerate(found.rows):
        first.setdefault(row.hardware.name, i)
    rules = [i for i, row in enumerate(found.rows) if row.by_rules and row.hardware == found.rows[0].hardware]
    chosen = [*first.values(), *rules[:1]]
    chosen += [i for i in range(len(found.rows)) if i not in chosen][: max(0, _SHOWN - len(chosen))]
    return sorted(set(chosen))


def _cells(found: "Plan", at: int, number: int) -> tuple[str, ...]:
    from dovetail.plan import is_late, tied

    row, best, wanted = found.rows[at], found.rows[0], found.wanted
    low, high = row.interval
    part, seconds = max(row.parts.items(), key=lambda item: item[1])
    compiled = "-" if row.compiled_gib is None else f"{row.compiled_gib:.1f}"
    limit = "-" if row.limit_gib is None else f"{row.limit_gib:.0f}"
    by_compiler = "" if row.compiled_seconds is None else f", compiled {row.compiled_seconds:.3g}"
    marks = [
        "does not fit" if not row.fits else "",
        "late" if is_late(row, wanted) else "",
        "tie" if at and row.fits and tied(row, best, wanted.by) else "",
        "mesh rules" if row.by_rules else "",
    ]
    stages = f"x{row.cfg.mesh.num_microbatches}" if row.cfg.mesh.pipeline > 1 else ""
    return (
        str(number),
        row.hardware.name,
        row.cfg.mesh.text(),
        str(row.cfg.remat),
        f"{row.cfg.num_microbatches}{stages}",
        f"{row.gib:.1f}/{compiled}/{limit}",
        f"{row.seconds:.3g} ({low:.3g} to {high:.3g}{by_compiler})",
        f"{row.days:.3g}" if math.isfinite(row.days) else "-",
        "-" if row.cost is None or not math.isfinite(row.cost) else short(row.cost),
        "-" if row.energy is None or not math.isfinite(row.energy) else short(row.energy),
        f"{part} {seconds / row.seconds:.0%}",
        ", ".join(filter(None, marks)),
    )
