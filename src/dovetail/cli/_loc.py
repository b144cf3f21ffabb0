# SPDX-License-Identifier: Apache-2.0
"""`dovetail loc`: parse, measure, print."""

import argparse
import functools
import json
import os
from pathlib import Path
from typing import Any

from dovetail.progress import note
from dovetail.zoo import RECIPES, model

from ._table import table

_FOOTPRINT = "Count the lines that mention a feature outside its home."
_GROWTH = "Apply features to many models and fit how the lines they take grow."
_HISTORY = "List what commits to the home of a feature needed there and elsewhere."
_BUDGETS = {"mentions": "lines that mention it elsewhere", "modifier": "lines that apply it"}
_CHECK = "Fail where a feature is mentioned more often than its budget allows."


def add_loc(parser: argparse.ArgumentParser) -> None:
    """Adds the measurements to the parser of `dovetail loc`."""
    names = parser.add_subparsers(dest="measurement", required=True, metavar="MEASUREMENT")

    def measurement(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        added = names.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        added.add_argument("--json", action="store_true", help="print JSON")
        return added

    footprint = measurement("footprint", _footprint, _FOOTPRINT)
    footprint.add_argument("--files", action="store_true", help="list the files of each feature, too")
    history = measurement("history", _history, _HISTORY)
    history.add_argument("--commits", nargs="+", default=(), metavar="COMMIT", help="these, instead of all")
    check = measurement("check", _check, _CHECK)
    for added in (footprint, history, check):
        added.add_argument("features", nargs="*", metavar="FEATURE", help="all by default")
        added.add_argument("--repo", type=Path, default=Path("."), metavar="DIR", help="this directory by default")
        added.add_argument("--description", metavar="NAME", help="of a shipped description, or a .toml file")
    growth = measurement("growth", _growth, _GROWTH)
    growth.add_argument("--models", type=int, default=128, help="to which each feature is applied; 128 by default")
    growth.add_argument("--experiments", type=int, default=1000, help="of which everything is checked; 1000 by default")
    growth.add_argument("--trained", type=int, default=1, help="models of each feature that also train; 1 by default")
    growth.add_argument("--seed", type=int, default=0)
    growth.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; all cores by default")
    growth.add_argument("--svg", type=Path, metavar="FILE", help="write a plot")


def _footprint(args: argparse.Namespace) -> int:
    from dovetail.loc.footprint import survey

    found = survey(args.repo, _description(args), args.features)
    if args.json:
        print(json.dumps(_survey_json(found), indent=2))
        return 0
    about = found.description
    print(f"{about.name}: {found.lines:,} lines of code in {found.files} files")
    rows = [
        (each.feature.name, each.home_lines, len(each.per_file), len(each.mentions), len(each.counted))
        for each in found.footprints
    ]
    print(table(("feature", "home lines", "files outside", "lines outside", "without users"), rows))
    for each in found.footprints if args.files else ():
        print(f"\n{each.feature.name}")
        print("\n".join(f"{count:6}  {path}" for path, count in each.per_file.items()))
    print(*(f"not read: {path}" for path in found.unread), sep="\n", end="\n" if found.unread else "")
    return 0


def _check(args: argparse.Namespace) -> int:
    from dovetail.loc.footprint import survey

    found = survey(args.repo, _description(args), args.features).footprints
    budgets = [
        (kind, each.feature.name, lines, budget, over)
        for each in found
        for kind, lines, budget, over in (
            ("mentions", each.counted, each.feature.budget, each.exceeds),
            ("modifier", each.modifier, each.feature.modifier_budget, each.modifier_exceeds),
        )
        if budget is not None
    ]
    failed = any(over for *_, over in budgets)
    if args.json:
        data: dict[str, Any] = {}
        for kind, name, lines, budget, over in budgets:
            entry = {"lines": len(lines), "budget": budget, "exceeded_by": list(map(str, lines)) if over else []}
            data.setdefault(name, {})[kind] = entry
        print(json.dumps({"budgets": data, "ok": not failed}, indent=2))
        return 1 if failed else 0
    rows = [(name, _BUDGETS[kind], len(lines), budget) for kind, name, lines, budget, _ in budgets]
    print(table(("feature", "what", "lines", "budget"), rows))
    for kind, name, lines, budget, over in budgets:
        if over:
            print(f"\n{name}: {len(lines)} {_BUDGETS[kind]}, {budget} are allowed:")
            print(*lines, sep="\n")
    return 1 if failed else 0


def _history(args: argparse.Namespace) -> int:
    from dovetail.loc.history import history

    about = _description(args)
    found = {each.name: history(args.repo, about, each, args.commits) for each in about.select(args.features)}
    if args.json:
        data = {name: [_commit_json(commit) for commit in commits] for name, commits in found.items()}
        print(json.dumps(data, indent=2))
        return 0
    for name, commits in found.items():
        rows = [
            (
                each.name,
                each.date,
                _changed(each.count(home=True)),
                _changed(each.count(home=False)),
                each.mentions,
                each.subject[:50],
            )
            for each in commits
        ]
        columns = ("commit", "date", "at home", "elsewhere", "that mention it", "subject")
        print(f"{name}\n{table(columns, rows)}\n")
    return 0


def _growth(args: argparse.Namespace) -> int:
    from dovetail.config import ConfigError

    for name, least in (("models", 1), ("experiments", 1), ("workers", 1), ("trained", 0)):
        if getattr(args, name) < least:
            raise ConfigError(f"--{name} is {getattr(args, name)}, expected at least {least}.")
    from dovetail.hardware import start_devices
    from dovetail.loc._plot import growth_plot
    from dovetail.loc.description import load
    from dovetail.loc.growth import Base, grow, grow_classical
    from dovetail.parallel import parse_mesh

    start_devices(parse_mesh("data=4"), os.environ)
    bases = [Base(name, entry.family, functools.partial(model, name)) for name, entry in RECIPES.items()]
    chosen = {name: getattr(args, name) for name in ("models", "experiments", "trained", "seed", "workers")}
    budgets = load("dovetail").features  # First: what cannot be read fails here, not after minutes.
    found, designs = grow(bases, **chosen, log=note), grow_classical()
    over = _over_budget(found.features, budgets)
    classical = {design: {name: each.as_json() for name, each in some.items()} for design, some in designs.items()}
    record = {**found.as_json(), "designs": classical, "over_budget": over}
    if args.svg:
        args.svg.write_text(growth_plot(record), "utf-8")
    if args.json:
        print(json.dumps(record, indent=2))
    else:
        print(_growth_text(found, designs))
        print(*found.failures, *over, sep="\n", end="\n" if found.failures or over else "")
    return 1 if found.failures or over else 0


def _over_budget(measured: Any, features: Any) -> list[str]:
    """Returns what takes more lines than it may, or more of them for more models or variants."""
    found: list[str] = []
    for name, each in measured.items():
        allowed = features[name].modifier_budget if name in features else None
        if allowed is not None and each.lines > allowed:
            found.append(f"{name}: {each.lines} lines to apply it, {allowed} are allowed.")
        if each.growth.models.high > 0 or each.growth.variants.high > 0:
            found.append(f"{name}: lines grow with models or variants.")
    return found


def _growth_text(found: Any, designs: Any) -> str:
    designs = {"dovetail": found.features, **designs}
    rows = [
        (design, name, each.lines, str(each.growth.models), str(each.growth.variants), each.models, each.variants)
        for design, features in designs.items()
        for name, each in features.items()
    ]
    columns = ("design", "feature", "lines", "exponent of models", "exponent of variants", "models", "variants")
    return (
        f"{table(columns, rows)}\n{found.count('built'):,} combinations built, of which {found.count('checked'):,} "
        f"checked in full and {found.count('trained')} trained; {len(found.failures)} failed; models drawn from "
        f"{found.pool:,}; {found.seconds:.0f} s"
    )


def _description(args: argparse.Namespace) -> Any:
    from dovetail.config import ConfigError
    from dovetail.loc.description import describe, load

    if not args.repo.is_dir():
        raise ConfigError(f"{args.repo}: no such directory.")
    return (load(args.description) if args.description else describe(args.repo)).located(args.repo)


def _survey_json(found: Any) -> dict[str, Any]:
    return {
        "repository": found.description.name,
        "files": found.files,
        "lines": found.lines,
        "unread": found.unread,
        "features": {
            each.feature.name: {
                "home_lines": each.home_lines,
                "files": len(each.per_file),
                "lines": len(each.mentions),
                "lines_without_users": len(each.counted),
                "per_file": each.per_file,
                "recorded": {**each.feature.recorded, "commit": found.description.commit},
            }
            for each in found.footprints
        },
    }


def _commit_json(commit: Any) -> dict[str, Any]:
    sides = {name: commit.count(home=name == "home") for name in ("home", "elsewhere")}
    counts = {name: dict(zip(("files", "added", "removed"), side, strict=True)) for name, side in sides.items()}
    return {
        "commit": commit.name,
        "date": commit.date,
        "subject": commit.subject,
        **counts,
        "mentions": commit.mentions,
    }


def _changed(count: tuple[int, int, int]) -> str:
    files, added, removed = count
    return f"{files} files +{added} -{removed}"
