# SPDX-License-Identifier: Apache-2.0
"""`dovetail eval DIRECTORY`: a trained model on held-out data."""

import argparse
import json

from dovetail.config import ConfigError

from ._use import start_run


def add_eval(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--step", type=int, help="of the checkpoint; the newest by default")
    parser.set_defaults(run=_eval)


def _eval(args: argparse.Namespace) -> int:
    cfg, files = start_run(args.run_directory, args.overrides, args.step, args.mesh, args.on)
    from dovetail.train import load_trained

    if cfg.eval_input is None:
        raise ConfigError("eval_input is None: this run has no data to evaluate on. Set one: eval_input...=")
    data = cfg.eval_input.build(path="eval_input", tokenizer_files=files)
    trained = load_trained(cfg, files=files, step=args.step)
    found = {"step": trained.step, **trained.evaluate(data)}
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print("  ".join(f"{name} {value:,.4f}".removesuffix(".0000") for name, value in found.items()))
    return 0
