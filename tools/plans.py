# SPDX-License-Identifier: Apache-2.0
"""The table of docs/plan.md: for some recipes and chips, what the mesh rules choose beside what a search finds.

`python tools/plans.py` prints it. Nothing is compiled.
"""

import sys

from dovetail.config import ConfigError
from dovetail.plan import Plan, Row, Wanted, plan, pools_on
from dovetail.zoo import recipe

RECIPES = ("llama2-70b", "qwen3-30b-a3b", "deepseek-v3", "granite-4.0-h-small")
ON = ("tpu-v5p-1024", "tpu-v6e-256x4", "gpu-h100-1024", "gpu-b200-512")
TOKENS = 2e12
HEAD = ("recipe", "hardware", "mesh rules", "s", "plan", "s", "saves", "GiB", "days, 2T tokens", "k$")


def main() -> int:
    """Prints the table as Markdown."""
    print("| " + " | ".join(HEAD) + " |\n|" + " --- |" * len(HEAD))
    for name in RECIPES:
        for on in ON:
            try:
                print("| " + " | ".join([name, on, *cells(plan(recipe(name), pools_on([on]), Wanted(TOKENS)))]) + " |")
            except ConfigError as e:
                print(f"| {name} | {on} | {str(e).splitlines()[-1].strip()} |" + " |" * (len(HEAD) - 3))
            sys.stdout.flush()
    return 0


def cells(found: Plan) -> list[str]:
    """Returns what the mesh rules choose, and the best row."""
    best = found.rows[0]
    rules = next((row for row in found.rows if row.by_rules), None)
    before = ["(more than 92 % of memory)", "-"] if rules is None else [way(rules), f"{rules.seconds:.3g}"]
    saves = "-" if rules is None else f"{1 - best.seconds / rules.seconds:.0%}"
    cost = "-" if best.cost is None else f"{best.cost / 1e3:,.0f}"
    return [*before, way(best), f"{best.seconds:.3g}", saves, f"{best.gib:.0f}", f"{best.days:.3g}", cost]


def way(row: Row) -> str:
    """Returns how a row runs."""
    cfg, mesh = row.cfg, row.cfg.mesh
    stages = f", {mesh.num_microbatches} in {mesh.rounds} rounds" if mesh.sizes["pipeline"] > 1 else ""
    parts = f", {cfg.num_microbatches} parts" if cfg.num_microbatches > 1 else ""
    return f"{mesh.text()}, {cfg.remat}{parts}{stages}"


if __name__ == "__main__":
    sys.exit(main())
