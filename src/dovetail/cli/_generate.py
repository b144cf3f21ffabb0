# SPDX-License-Identifier: Apache-2.0
"""`dovetail generate DIRECTORY PROMPT`: a trained model continues a prompt."""

import argparse
import json
import sys
from collections.abc import Sequence

from dovetail.config import split_override

from ._use import start_run


def add_generate(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("directory", help="the directory of a run")
    parser.add_argument("prompt")
    parser.add_argument("overrides", nargs="*", default=[], metavar="PATH=VALUE", help=_OVERRIDES)
    parser.add_argument("--step", type=int, help="of the checkpoint; the newest by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=_generate)


_OVERRIDES = "of how it is written, as in tokens=50 or sampling.temperature=0.5; and of the run"


def _generate(args: argparse.Namespace) -> int:
    own, others = split_writing(args.overrides)
    run = start_run(args.directory, others, args.step, args.mesh, args.on)
    from dovetail.config import override
    from dovetail.serve import Sampler, Writer, tokenizer_of
    from dovetail.train import escaped, load_trained, visible

    cfg = run.cfg
    samplers = (each for each in cfg.evaluators.values() if isinstance(each, Sampler.Config))
    how = override(next(samplers, Sampler.Config()), own)
    trained = load_trained(cfg, step=args.step)
    writer = Writer(trained.program, tokenizer_of(cfg, run.files), how.tokens, how.sampling)
    found = writer.write(trained.params, args.prompt, args.seed, trained.step)
    rate = found.tokens / found.seconds
    if args.json:
        values = {"step": trained.step, "text": found.text, "tokens": found.tokens, "tokens_per_second": round(rate, 1)}
        print(escaped(json.dumps(values, ensure_ascii=False, indent=2)))
    else:
        print(visible(found.text), flush=True)
        print(f"{found.tokens} tokens, {rate:,.0f} a second", file=sys.stderr)
    return 0


def split_writing(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the overrides of how to write, and those of the run."""
    own = [text for text in overrides if split_override(text)[0].partition(".")[0] in ("tokens", "sampling")]
    return own, [text for text in overrides if text not in own]
