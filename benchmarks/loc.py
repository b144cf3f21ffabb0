# SPDX-License-Identifier: Apache-2.0
"""The full run of `dovetail loc growth`: what features cost, in a thousand experiments.

Writes the record, results/loc.json, and the plot of docs/loc-complexity.md; prints what results/loc.md shows.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from _report import header, table

ROOT = Path(__file__).resolve().parents[1]
RECORD, PLOT = ROOT / "benchmarks" / "results" / "loc.json", ROOT / "docs" / "loc-complexity.svg"


def row(design: str, feature: str, found: dict[str, Any]) -> tuple[object, ...]:
    """Returns a row of the table."""
    exponents = [
        f"{found[name]:.2f} [{low:.2f}, {high:.2f}]"
        for name in ("exponent_models", "exponent_variants")
        for low, high in [found[f"{name}_interval"]]
    ]
    return design, feature, found["lines"], *exponents, found["models"], found["variants"]


def main() -> None:
    command = [sys.executable, "-m", "dovetail.cli", "loc", "growth", "--json", "--svg", str(PLOT), *sys.argv[1:]]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    RECORD.write_text(text, encoding="utf-8")
    record = json.loads(text)
    header("What features cost, and how it grows")
    columns = ("design", "feature", "lines", "exponent of models", "exponent of variants", "models", "variants")
    designs = {"dovetail": record["features"], **record["designs"]}
    table(columns, [row(design, name, each) for design, some in designs.items() for name, each in some.items()])
    drawn = f"{record['models_drawn']} of {record['models_in_pool']:,} models"
    print(f"{record['combinations']:,} combinations built, of {drawn}; ", end="")
    print(f"{record['experiments']:,} checked in full, {record['trained']} trained; ", end="")
    print(f"{len(record['failures'])} failed; {record['seconds']:.0f} s.")


if __name__ == "__main__":
    main()  # What it starts says how far it is.
