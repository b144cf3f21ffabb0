# SPDX-License-Identifier: Apache-2.0
"""`dovetail eval DIRECTORY`: a trained model on held-out data."""

import argparse
import json

from dovetail.config import ConfigError

from ._text import add_text, text_and_overrides
from ._use import start_run


def add_eval(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_text(parser, "what to evaluate on, in place of the held-out data of the run")
    parser.add_argument("--step", type=int, help="of the checkpoint; the newest by default")
    parser.set_defaults(run=_eval)


def _eval(args: argparse.Namespace) -> int:
    text, overrides = text_and_overrides(args)
    run = start_run(args.run_directory, overrides, args.step, args.mesh, args.on)
    from dovetail.train import eval_input_of, load_trained

    cfg = run.cfg
    if text:
        from dovetail.zoo.recipes import eval_on_text

        cfg = eval_on_text(cfg, text)
    data = eval_input_of(cfg, run.files)
    if data is None:
        raise ConfigError("this run has no data to evaluate on (eval_input is None). Name a text: --text FILE")
    trained = load_trained(cfg, files=run.files, step=args.step)
    found = {"step": trained.step, **trained.evaluate(data)}
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print("  ".join(f"{name} {value:,.4f}".removesuffix(".0000") for name, value in found.items()))
    return 0
