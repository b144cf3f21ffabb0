# SPDX-License-Identifier: Apache-2.0
"""`dovetail eval DIRECTORY`: the evaluators of a run, on what it has trained."""

import argparse
import json
from typing import Any

from dovetail.config import ConfigError

from ._table import table
from ._text import add_data_places, add_text, check_data, own_and_overrides
from ._use import load_run, start_run


def add_eval(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_text(parser, "what to evaluate on, in place of all that the run evaluates")
    add_data_places(parser, "to evaluate on all of it in place of all that the run evaluates")
    parser.add_argument("--step", type=int, help="of the checkpoint; the newest by default")
    parser.set_defaults(run=_eval)


def _eval(args: argparse.Namespace) -> int:
    own, overrides = own_and_overrides(args)
    check_data(own.data)
    run = start_run(args.run_directory, overrides, args.step, args.mesh, args.on)
    from dovetail.serve import Sampler
    from dovetail.train import Evaluated, escaped, evaluators_of, findings, visible

    cfg = run.cfg
    if own.text:
        from dovetail.zoo.recipes import eval_on_text

        cfg = eval_on_text(cfg, own.text)
    if own.data:
        from dovetail.zoo.recipes import eval_on_data

        cfg = eval_on_data(cfg, own.data)
    if all(isinstance(each, Sampler.Config) and not each.prompt for each in cfg.evaluators.values()):
        raise ConfigError(
            "this run has nothing to evaluate it (in evaluators). Name a text or data: --text FILE, --data PLACE"
        )
    trained = load_run(run._replace(cfg=cfg), args.step)
    found = list(findings(evaluators_of(trained.program, run.files), Evaluated(trained.step, trained.params)))
    metrics = {"step": trained.step} | {name: value for each in found for name, value in each.metrics.items()}
    texts = {name: text for each in found for name, text in each.texts.items()}
    tables = {name: each for some in found for name, each in some.tables.items()}
    if args.json:
        plain = {name: {"columns": list(each.columns), "rows": list(each.rows)} for name, each in tables.items()}
        everything = metrics | texts | ({"tables": plain} if plain else {})
        print(escaped(json.dumps(everything, ensure_ascii=False, indent=2)))
        return 0
    print("  ".join(f"{name} {value:,.4f}".removesuffix(".0000") for name, value in metrics.items()))
    for name, text in texts.items():
        print(f"{name}:\n{visible(text)}")
    for name, each in tables.items():
        rows = [[_cell(cell) for cell in row] for row in each.rows]
        print(f"{name}:\n{visible(table(each.columns, rows))}")
    return 0


def _cell(value: Any) -> str:
    """Returns what a cell of a table says, in one line."""
    return f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
