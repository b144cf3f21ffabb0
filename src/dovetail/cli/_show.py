# SPDX-License-Identifier: Apache-2.0
"""`dovetail show RECIPE`: what it is made of and what that takes, its whole config, or its parameters on a mesh.

Of a run it also says what its time went to, what its data has given, and which configs made its steps, if there are
several.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail.config import to_json, to_text
from dovetail.progress import LEDGER, METRICS, Account, Ledger, json_lines, phase

from ._mesh import show_mesh
from ._picture import add_picture, check_picture, save_picture
from ._resolve import Run, resolve
from ._summary import print_summary
from ._table import printable, table

if TYPE_CHECKING:
    from dovetail.plan import Estimate


_GIVEN = "data/"  # What these figures start with, in the metrics.
_TAIL = 1 << 18  # Bytes of the metrics that are read.


def add_show(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--full", action="store_true", help="print the whole config, a line for each value")
    add_picture(parser, "the model as blocks")
    parser.set_defaults(run=_show)


def _show(args: argparse.Namespace) -> int:
    check_picture(args)
    run = resolve(args.recipe, args.overrides, args.mesh, args.on, weights=False)
    cfg, memory = run.cfg, None if args.mesh is not None else _memory(run)
    if args.picture is not None:
        from dovetail.models import model_picture

        save_picture(args, lambda: model_picture(args.recipe, cfg.model.build(path="model")))
    if args.full and not args.json:  # JSON has it all.
        print(to_text(cfg), end="")
    elif args.mesh is not None:
        return show_mesh(cfg, args.json)
    elif not args.json:
        print_summary(args.recipe, cfg, memory)
        if data := _data(run.name):
            print(f"\n{data.text()}")
        if len(spans := _spans(run.name)) > 1:
            print("\nconfigs:")
            for each in spans:
                print(f"  steps {each['first']} to {each['last'] or 'now'}: {each['file']}")
        if account := _account(run.name):
            print(f"\n{account.text()}")
    else:
        from dovetail.train import size_of

        found = {"config": json.loads(to_json(cfg)), **size_of(cfg).named()}
        if memory is not None:
            found["memory_per_chip"] = {**memory._asdict(), "total_gib": memory.total_gib, "fits": memory.fits}
        if account := _account(run.name):
            found["goodput"] = account.named()
        if data := _data(run.name):
            found["data"] = {"step": data.step, **data.sources}
        if spans := _spans(run.name):
            found["configs"] = spans
        print(json.dumps(found, indent=2))
    if run.hardware is not None and memory is not None and not memory.fits:
        sys.stdout.flush()
        print(
            f"{run.name} does not fit on {run.hardware.name}, by an estimate: {memory.total_gib:,.0f} GiB per chip "
            f"(state {memory.state_gib:,.0f}, activations {memory.activations_gib:,.0f}) of {memory.limit_gib:,.1f}.\n"
            f"  Use more chips; `dovetail compile {run.name} --on ...` says for sure.",
            file=sys.stderr,
        )
    return 0


def _account(name: str) -> Account | None:
    """Returns what the time of a run went to, if the name is its directory."""
    account = Ledger(Path(name) / LEDGER).update()
    return account if account.starts else None


class _Data(NamedTuple):
    """What the data of a run has given up to a step, by source and figure; the source is "" where there is one."""

    step: int
    sources: dict[str, dict[str, float]]

    def text(self) -> str:
        """Returns it in print."""
        names = list(dict.fromkeys(name for each in self.sources.values() for name in each))
        rows = [
            (source or "(all)", *(_figure(each[name]) if name in each else "" for name in names))
            for source, each in self.sources.items()
        ]
        return f"data, after step {self.step}:\n{table(('source', *names), rows)}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() else f"{value:,.2f}"


def _data(name: str) -> _Data | None:
    """Returns what the metrics of a run say last of its data, if the name is its directory."""
    for record in reversed(list(json_lines(Path(name) / METRICS, tail=_TAIL))):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            given = {key.removeprefix(_GIVEN): float(value) for key, value in record.items() if key.startswith(_GIVEN)}
            if given:
                sources: dict[str, dict[str, float]] = {}
                for key, value in given.items():
                    source, _, figure = key.rpartition("/")
                    sources.setdefault(printable(source), {})[printable(figure)] = value
                return _Data(int(record["step"]), sources)
    return None


def _spans(name: str) -> list[dict[str, Any]]:
    """Returns which config made which steps of a run, if the name is its directory."""
    from dovetail.train import spans_of

    return [{"first": first, "last": last, "file": str(file)} for file, (first, last) in spans_of(Path(name)).items()]


def _memory(run: Run) -> "Estimate | None":
    """Returns an estimate of the memory of a chip, if it is known which."""
    if run.hardware is None:
        return None
    from dovetail.plan import estimate

    with phase("measuring the model"):
        return estimate(run.cfg, run.hardware)
