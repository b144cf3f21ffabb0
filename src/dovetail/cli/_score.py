# SPDX-License-Identifier: Apache-2.0
"""`dovetail predict --score FILE.csv`: predictions beside steps that others have measured."""

import json
from typing import Any

from ._table import printable, table

_WORST = 10
_GROUPS = {"kind": "kind of model", "chip": "chip", "precision": "precision", "system": "system", "source": "source"}


def score_table(file: str, *, as_json: bool) -> int:
    """Prints how far predictions are from the rows of a table."""
    from dovetail.plan import score
    from dovetail.zoo.measured import read_measured, rebuild

    rows = read_measured(file)
    found = score(rows, rebuild)
    print(json.dumps(_plain(found), indent=2) if as_json else _text(found))
    return 0


def _plain(found: Any) -> dict[str, Any]:
    figures = found._asdict()
    for name in ("by", "left_out"):
        figures[name] = {
            group: {value: error._asdict() for value, error in errors.items()}
            for group, errors in figures[name].items()
        }
    return figures


def _text(found: Any) -> str:
    lines = [
        f"{found.rebuilt} of {len(found.rows)} rows rebuilt: median error {found.median_error:.1%}, "
        f"90th percentile {found.p90_error:.1%}",
        f"in their interval: {found.coverage:.0%}; pairs of one source and model more than 10 % apart in the right "
        f"order: {found.ordered:.0%}",
    ]
    if found.left_out:
        head = ("left out of the fit", *next(iter(found.left_out.values())))
        rows = [(way, *(_error(each) for each in errors.values())) for way, errors in found.left_out.items()]
        lines += ["", table(head, rows), f"rows in intervals of other systems: {found.left_out_coverage:.0%}"]
    for group, title in _GROUPS.items():
        rows = [
            (_cut(name or "none", 60), each.rows, f"{each.median:.1%}", f"{each.p90:.1%}")
            for name, each in sorted(found.by[group].items(), key=lambda item: -item[1].rows)
        ]
        lines += ["", table((title, "rows", "median", "90th percentile"), rows)]
    predicted = [row for row in found.rows if "error" in row]
    worst = sorted(predicted, key=lambda row: -abs(row["error"]))[:_WORST]
    head = ("worst rows", "system", "model", "hardware", "measured", "predicted", "error")
    lines += ["", table(head, map(_row, worst)), ""]
    left = [row for row in found.rows if "reason" in row]
    lines += [f"row {row['row']}: {_cut(row['model'], 32)} on {row['hw']}: {row['reason']}" for row in left]
    return printable("\n".join(lines)).rstrip()


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _error(each: Any) -> str:
    return f"{each.median:.1%} ({each.p90:.0%})"


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    measured, predicted = f"{row['measured_seconds']:.3g} s", f"{row['predicted_seconds']:.3g} s"
    return (
        *(str(row["row"]), row["system"], _cut(row["model"], 32), row["hardware"]),
        *(measured, predicted, f"{row['error']:+.0%}"),
    )
