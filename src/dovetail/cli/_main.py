# SPDX-License-Identifier: Apache-2.0
"""The command line: parse, resolve, print, run. JAX is imported by the commands that need it, not before."""

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.config import ConfigBase, ConfigError, diff, from_json, override, to_json, to_text
from dovetail.zoo import RECIPES, recipe


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns 0, or 2 with one message for what the user can fix."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except ConfigError as e:
        print(f"dovetail {args.command}: {e}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dovetail", description="Train language models from configs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    def takes_recipe(added: argparse.ArgumentParser) -> None:
        added.add_argument("recipe", help="a name from `dovetail list`, file.py:function, or the directory of a run")
        added.add_argument("overrides", nargs="*", metavar="PATH=VALUE", help="changes, as in learner.clip_norm=0.5")

    command("list", _list, "List the recipes.").add_argument("--json", action="store_true")
    show = command("show", _show, "Print the config of a recipe.")
    takes_recipe(show)
    show.add_argument("--json", action="store_true", help="also parameters and flops_per_token")
    differ = command("diff", _diff, "Print what differs between two recipes.")
    differ.add_argument("a")
    differ.add_argument("b")
    differ.add_argument("--json", action="store_true")
    takes_recipe(command("train", _train, "Train a recipe; run again to go on where it stopped."))
    sample = command("generate", _generate, "Continue a prompt with a trained model.")
    sample.add_argument("directory", help="the directory of a run")
    sample.add_argument("prompt")
    sample.add_argument("overrides", nargs="*", metavar="PATH=VALUE", help="as in sampling.temperature=0.5")
    sample.add_argument("--seed", type=int, default=0)
    return parser


def resolve(name: str, overrides: Sequence[str] = ()) -> Any:
    """Returns the config that a name stands for, with overrides applied.

    A name is that of a recipe, `file.py:function`, or the directory of a run, which carries its config.
    """
    path, colon, function = name.rpartition(":")
    if colon and path.endswith(".py"):
        cfg = _from_file(Path(path), function)
    elif (Path(name) / "checkpoints").is_dir():
        from dovetail.checkpoint import load_config

        cfg = from_json(load_config(str(Path(name) / "checkpoints")).config)
    else:
        cfg = recipe(name)
    return override(cfg, overrides)


def _from_file(path: Path, function: str) -> ConfigBase:
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # Its functions and classes are found by import path.
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        raise ConfigError(f"{path} has no function {function!r}.")
    cfg = getattr(module, function)()
    if not isinstance(cfg, ConfigBase):
        raise ConfigError(f"{path}:{function} returned {cfg!r}, expected a config.")
    return cfg


def _list(args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps({name: text for name, (_, text) in RECIPES.items()}, indent=2))
    else:
        width = max(map(len, RECIPES))
        print("\n".join(f"{name:{width}}  {text}" for name, (_, text) in RECIPES.items()))
    return 0


def _show(args: argparse.Namespace) -> int:
    cfg = resolve(args.recipe, args.overrides)
    if not args.json:
        print(to_text(cfg), end="")
        return 0
    from dovetail.train import size_of

    size = size_of(cfg)
    found = {"parameters": size.parameters, "flops_per_token": size.flops_per_token}
    print(json.dumps({"config": json.loads(to_json(cfg)), **found}, indent=2))
    return 0


def _diff(args: argparse.Namespace) -> int:
    found = diff(resolve(args.a), resolve(args.b))
    print(json.dumps([d._asdict() for d in found], indent=2) if args.json else str(found))
    return 0


def _train(args: argparse.Namespace) -> int:
    cfg = resolve(args.recipe, args.overrides)
    cfg.build().run()
    return 0


def _generate(args: argparse.Namespace) -> int:
    cfg = resolve(args.directory, [*args.overrides, f"directory={args.directory}"])
    trainer = cfg.build()
    print(trainer.sample(trainer.averaged(trainer.restore()), args.prompt, args.seed))
    return 0
