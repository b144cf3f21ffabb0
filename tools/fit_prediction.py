# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of predictions to a table of published steps: `python tools/fit_prediction.py TABLE.csv`.

It rewrites the values in `src/dovetail/hardware/fitted.toml`, and nothing else there: priors are ours. The table has
the columns that `dovetail predict --score` takes.
"""

import argparse
import re
from pathlib import Path

import numpy as np

from dovetail.config import ConfigError
from dovetail.plan import FREE, Table, intervals, rebuilt
from dovetail.zoo.measured import read_measured, rebuild

FILE = Path(__file__).parents[1] / "src/dovetail/hardware/fitted.toml"


def main() -> None:
    """Fits, and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table")
    steps = []
    for row in read_measured(parser.parse_args().table):
        try:
            steps.append(rebuilt(rebuild(row)))
        except ConfigError as e:
            print(f"left out: {row['model']} on {row['hw']}: {e}")
    table = Table(steps)
    text = FILE.read_text("utf-8")
    values = {f"[{each.name}.{each.group}]": value for each, value in zip(FREE, np.exp(table.fit), strict=True)}
    values |= {f"[interval.{kind}]": value for kind, value in intervals(table).items()}
    for title, value in values.items():
        text, count = re.subn(rf"(?<={re.escape(title)}\nvalue = )\S+", f"{value:.3g}", text)
        assert count == 1, title
        print(f"{title:<28} {value:.3g}")
    FILE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
