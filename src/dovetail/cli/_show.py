# SPDX-License-Identifier: Apache-2.0
"""`dovetail show RECIPE`: what it is made of and what that takes, its whole config, or its parameters on a mesh.

Of a run it also says what its time went to, and which configs made its steps, if there are several.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config import to_json, to_text
from dovetail.progress import LEDGER, Account, Ledger, phase

from ._mesh import show_mesh
from ._resolve import Run, resolve
from ._summary import print_summary

if TYPE_CHECKING:
    from dovetail.plan import Estimate


def add_show(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--full", action="store_true", help="print the whole config, a line for each value")
    parser.set_defaults(run=_show)


def _show(args: argparse.Namespace) -> int:
    run = resolve(args.recipe, args.overrides, args.mesh, args.on, weights=False)
    cfg, memory = run.cfg, None if args.mesh is not None else _memory(run)
    if args.full and not args.json:  # JSON has it all.
        print(to_text(cfg), end="")
    elif args.mesh is not None:
        return show_mesh(cfg, args.json)
    elif not args.json:
        print_summary(args.recipe, cfg, memory)
        if account := _account(run.name):
            print(f"\n{account.text()}")
        if len(spans := _spans(run.name)) > 1:
            print("\nconfigs:")
            for each in spans:
                print(f"  steps {each['first']} to {each['last'] or 'now'}: {each['file']}")
    else:
        from dovetail.train import size_of

        found = {"config": json.loads(to_json(cfg)), **size_of(cfg).named()}
        if memory is not None:
            found["memory_per_chip"] = {**memory._asdict(), "total_gib": memory.total_gib, "fits": memory.fits}
        if account := _account(run.name):
            found["goodput"] = account.named()
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
