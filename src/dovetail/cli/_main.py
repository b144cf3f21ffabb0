# SPDX-License-Identifier: Apache-2.0
"""The command line: parse, resolve, print, run. JAX is imported by the commands that need it, not before."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from dovetail.config import ConfigError, diff, to_json, to_text
from dovetail.launch import host_settings, restart_with
from dovetail.zoo import RECIPES

from ._bench import add_bench
from ._compile import add_compile
from ._doctor import doctor
from ._loc import add_loc
from ._mesh import show_mesh
from ._resolve import resolve, resolve_run, start

# Commands that compute: they start again with faster settings of the host, where there are any.
_COMPUTES = ("train", "eval", "generate", "bench")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns 0, or 2 with one message for what the user can fix."""
    args = _parsed(argv)
    if argv is None and args.command in _COMPUTES:
        restart_with(host_settings(os.environ))
    for library in ("absl", "tensorboardX"):  # Orbax logs each error many times; what counts reaches the user below.
        logging.getLogger(library).setLevel(logging.CRITICAL)
    try:
        code = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # As in `dovetail show ... | head`: nobody reads on.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as e:
        if not isinstance(e, _fixable()):
            raise
        print(f"dovetail {args.command}: {e}", file=sys.stderr)
        return 2


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the arguments; overrides may stand after an option, where argparse does not look for them."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if any(text.startswith("-") for text in rest) or (rest and not hasattr(args, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.overrides = [*args.overrides, *rest]
    return args


_ERRORS = (
    ("data", "DataError"),
    ("checkpoint", "CheckpointError"),
    ("train", "TrainingError"),
    ("aot", "CompileError"),
)


def _fixable() -> tuple[type[Exception], ...]:
    """Returns the errors that a user can do something about, of the parts that have been imported."""
    found: list[type[Exception]] = [ConfigError]
    for module, name in _ERRORS:
        if f"dovetail.{module}" in sys.modules:
            found.append(getattr(sys.modules[f"dovetail.{module}"], name))
    return tuple(found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dovetail", description="Train language models from configs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str, *, recipe: str = "", reports: bool = True) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        if recipe:
            added.add_argument(recipe, help=_NAMES[recipe])
            added.add_argument("overrides", nargs="*", metavar="PATH=VALUE", help="as in learner.clip_norm=0.5")
        if reports:
            added.add_argument("--json", action="store_true", help="print JSON")
        return added

    command("list", _list, "List the recipes.")
    show = command(
        "show", _show, "Print the config of a recipe; with --mesh, its parameters on that mesh.", recipe="recipe"
    )
    show.add_argument("--mesh", metavar="AXIS=SIZE,...", help=_MESH)
    show.add_argument("--on", metavar="HARDWARE", help=_ON)
    differ = command("diff", _diff, "Print what differs between two recipes, or between one on two kinds of hardware.")
    differ.add_argument("a", help="a recipe, or RECIPE@HARDWARE")
    differ.add_argument("b", help="another one")
    train = command("train", _train, "Train a recipe; run again to go on.", recipe="recipe", reports=False)
    train.add_argument("--mesh", metavar="AXIS=SIZE,...", help=_MESH)
    train.add_argument("--on", metavar="HARDWARE", help=_ON)
    evaluate = command("eval", _eval, "Evaluate a trained model on its held-out data.", recipe="run_directory")
    evaluate.add_argument("--step", type=int, help="of the checkpoint; the newest by default")
    sample = command("generate", _generate, "Continue a prompt with a trained model.")
    sample.add_argument("directory", help=_NAMES["run_directory"])
    sample.add_argument("prompt")
    sample.add_argument("overrides", nargs="*", metavar="PATH=VALUE", help="as in sampling.temperature=0.5")
    sample.add_argument("--step", type=int, help="of the checkpoint; the newest by default")
    sample.add_argument("--seed", type=int, default=0)
    add_compile(
        command("compile", None, "Compile a recipe for chips that need not be here, and report.", recipe="recipe")
    )
    command("doctor", doctor, "Say what this machine has, and what would make it faster.")
    add_bench(command("bench", None, "Compare with peers, in one run.", reports=False))
    add_loc(command("loc", None, "Measure how many lines of other code features cost.", reports=False))
    return parser


_ON = "what to run on, as in tpu-v5p-512 or gpu-h100-256: sets mesh, remat, kernels, precision"
_MESH = "how to spread the run over devices, as in data=2,tensor=4 (2x4: 2 slices of 4)"
_NAMES = {
    "recipe": "a name from `dovetail list`, file.py:function, or the directory of a run",
    "run_directory": "the directory of a run",
}


def _list(args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps({name: entry.text for name, entry in RECIPES.items()}, indent=2))
    else:
        width = max(map(len, RECIPES))
        print("\n".join(f"{name:{width}}  {entry.text}" for name, entry in RECIPES.items()))
    return 0


def _show(args: argparse.Namespace) -> int:
    cfg = resolve(args.recipe, args.overrides, args.mesh, args.on)
    if args.mesh is not None:
        return show_mesh(cfg, args.json)
    if not args.json:
        print(to_text(cfg), end="")
        return 0
    from dovetail.train import size_of

    print(json.dumps({"config": json.loads(to_json(cfg)), **size_of(cfg)._asdict()}, indent=2))
    return 0


def _diff(args: argparse.Namespace) -> int:
    found = diff(resolve(args.a), resolve(args.b))
    print(json.dumps([d._asdict() for d in found], indent=2) if args.json else str(found))
    return 0


def _train(args: argparse.Namespace) -> int:
    start(args.recipe, args.overrides, args.mesh, args.on).build().run()
    return 0


def _eval(args: argparse.Namespace) -> int:
    import jax

    from dovetail.train import eval_step, evaluate, load_trained

    cfg, files = resolve_run(args.run_directory, args.overrides, args.step)
    if cfg.eval_input is None:
        raise ConfigError("eval_input is None: this run has no data to evaluate on. Set one: eval_input...=")
    data = cfg.eval_input.build(path="eval_input", tokenizer_files=files)
    trained = load_trained(cfg, files=files, step=args.step)
    values = evaluate(jax.jit(eval_step(trained.model, dtype=None)), trained.params, data)
    found = {"step": trained.step, **values}
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print("  ".join(f"{name} {value:,.4f}".removesuffix(".0000") for name, value in found.items()))
    return 0


def _generate(args: argparse.Namespace) -> int:
    from dovetail.train import load_trained

    cfg, files = resolve_run(args.directory, args.overrides, args.step)
    trained = load_trained(cfg, files=files, step=args.step)
    found = trained.timed_sample(args.prompt, seed=args.seed, max_new=cfg.sample_tokens, sampling=cfg.sampling)
    rate = found.tokens / found.seconds
    if args.json:
        values = {"step": trained.step, "text": found.text, "tokens": found.tokens, "tokens_per_second": round(rate, 1)}
        print(json.dumps(values, ensure_ascii=False, indent=2))
    else:
        print(found.text, flush=True)
        print(f"{found.tokens} tokens, {rate:,.0f} a second", file=sys.stderr)
    return 0
