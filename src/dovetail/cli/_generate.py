# SPDX-License-Identifier: Apache-2.0
"""`dovetail generate DIRECTORY PROMPT`: a trained model continues a prompt."""

import argparse
import json
import sys

from ._use import start_run


def add_generate(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("directory", help="the directory of a run")
    parser.add_argument("prompt")
    parser.add_argument("overrides", nargs="*", default=[], metavar="PATH=VALUE", help="as in sampling.temperature=0.5")
    parser.add_argument("--step", type=int, help="of the checkpoint; the newest by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=_generate)


def _generate(args: argparse.Namespace) -> int:
    run = start_run(args.directory, args.overrides, args.step, args.mesh, args.on)
    from dovetail.train import escaped, load_trained, visible

    trained = load_trained(run.cfg, files=run.files, step=args.step)
    cfg = run.cfg
    found = trained.timed_sample(args.prompt, seed=args.seed, max_new=cfg.sample_tokens, sampling=cfg.sampling)
    rate = found.tokens / found.seconds
    if args.json:
        values = {"step": trained.step, "text": found.text, "tokens": found.tokens, "tokens_per_second": round(rate, 1)}
        print(escaped(json.dumps(values, ensure_ascii=False, indent=2)))
    else:
        print(visible(found.text), flush=True)
        print(f"{found.tokens} tokens, {rate:,.0f} a second", file=sys.stderr)
    return 0
