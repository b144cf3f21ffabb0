# SPDX-License-Identifier: Apache-2.0
"""`dovetail profile DIR`: the parts of a step that took the time, by config path, and their operations."""

import argparse
import json
from collections import defaultdict
from pathlib import Path

from ._table import table

_SHOWN = 25


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("directory", help="the directory of a run, or of one profile in it")
    parser.set_defaults(run=_profile)


def _profile(args: argparse.Namespace) -> int:
    from dovetail.train import read_profile

    found = read_profile(Path(args.directory))
    whole, busy = found.step_seconds, found.busy_seconds
    paths: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in found.operations:
        path = each.path or ("other programs" if each.opcode == "other program" else "not attributed")
        paths[path][0] += each.seconds
        paths[path][1] += each.times
    ordered = sorted(paths.items(), key=lambda item: -item[1][0])
    if args.json:
        operations = [{**each._asdict(), "share": each.seconds / whole} for each in found.operations]
        parts = [{"path": path, "seconds": s, "share": s / whole, "count": n} for path, (s, n) in ordered]
        about = {"profile": str(found.where), "first": found.first, "last": found.last, "devices": found.devices}
        rest = {"nothing_ran_seconds": max(0.0, whole - busy), "paths": parts, "operations": operations}
        print(json.dumps({**about, "step_seconds": whole, "busy_seconds": busy, **rest}, indent=2))
        return 0
    devices = "1 device" if found.devices == 1 else f"{found.devices} devices, on average"
    print(f"steps {found.first} to {found.last}: {_ms(whole)} ms a step, on {devices}\n")
    rows = [(path, _ms(s), _share(s, whole), f"{n:,.0f}") for path, (s, n) in ordered[:_SHOWN]]
    rows += [("(nothing ran)", _ms(max(0.0, whole - busy)), _share(max(0.0, whole - busy), whole), "")]
    print(table(("path", "ms", "%", "count"), rows))
    longest = [
        (each.name, each.opcode, each.path or "-", _ms(each.seconds), _share(each.seconds, whole), f"{each.times:,.0f}")
        for each in found.operations[:_SHOWN]
    ]
    print("\n" + table(("operation", "kind", "path", "ms", "%", "count"), longest))
    return 0


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}"


def _share(seconds: float, whole: float) -> str:
    return f"{100 * seconds / whole:.1f}"
