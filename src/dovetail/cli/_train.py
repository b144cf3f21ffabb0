# SPDX-License-Identifier: Apache-2.0
"""`dovetail train RECIPE`: resolve, run."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.config import ConfigError
from dovetail.hardware import FULL_PROCESSES
from dovetail.launch import RESUMABLE

from ._resolve import Run, is_run, resolve
from ._text import add_text, text_and_overrides

if TYPE_CHECKING:
    from dovetail.train import Trainer


def add_train(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_text(parser, "your text to train on, the last of it held out")
    parser.add_argument("--data", metavar="PLACE", help=_PREPARED)
    parser.add_argument("--from", dest="init_from", metavar="RUN", help=_FROM)
    parser.add_argument("--allow-change", action="store_true", help=_ALLOW)
    parser.add_argument("--data-change", choices=("keep", "restart", "skip-to-step"), help=_CHANGE)
    parser.set_defaults(run=_train)


_PREPARED = "what `dovetail data prepare` has written, to train on instead; the last of it held out"
_FROM = "the directory of a run, or of a step (runs/x/checkpoints/step_600), to start from its weights"
_ALLOW = "go on with a run although the config is not the one that made its steps; the differences are printed"
_CHANGE = "what to do about other data: go on at the same place as exactly as can be, start anew, or go to the step's"


def _train(args: argparse.Namespace) -> int:
    files, overrides = text_and_overrides(args)
    if files and args.data is not None:
        raise ConfigError("--text and --data: give one of them.")

    def change(cfg: "Trainer.Config") -> "Trainer.Config":
        from dovetail.train import InitFrom
        from dovetail.zoo.recipes import on_data, on_text

        cfg = on_text(cfg, files) if files else cfg
        cfg = cfg if args.data is None else on_data(cfg, args.data)
        return cfg if args.init_from is None else cfg.set(init_from=InitFrom(path=args.init_from))

    run = resolve(args.recipe, overrides, args.mesh, args.on, change=change, devices=True)
    other = bool(files) or args.data is not None
    cfg = _from_its_weights(run, overrides) if other and args.init_from is None else run.cfg
    cfg = _on_those_left(cfg)
    trainer: Trainer = cfg.build(files=run.files if args.data is None else _tokenizer_files(args.data))
    trainer.run(allow_change=args.allow_change, data_change=args.data_change)
    return RESUMABLE if trainer.interrupted else 0


def _tokenizer_files(data: str) -> Mapping[str, bytes]:
    """Returns what the tokenizer of prepared data is made from: it need not be where it was."""
    from dovetail.data import PreparedData

    return PreparedData(data, "--data").tokenizer().files()


def _from_its_weights(run: Run, overrides: Sequence[str]) -> "Trainer.Config":
    """Returns the config of a run on another text: it starts from the weights of the run that is named, if one is."""
    from dovetail.train import InitFrom

    chosen = any(text.startswith("init_from") for text in overrides)
    if chosen or not is_run(run.name) or Path(run.cfg.directory).resolve() == Path(run.name).resolve():
        return run.cfg
    return run.cfg.set(init_from=InitFrom(path=run.name))


def _on_those_left(cfg: "Trainer.Config") -> "Trainer.Config":
    """Returns the config on a smaller mesh if some of the processes that a supervisor had planned are missing."""
    import jax

    from dovetail.parallel import shrink

    if int(os.environ.get(FULL_PROCESSES, "0")) <= jax.process_count():
        return cfg
    mesh = shrink(cfg.mesh, jax.device_count())
    if jax.process_index() == 0:
        print(f"Going on with {jax.process_count()} processes, on mesh {mesh.text()}, until others are back.")
    return cfg.set(mesh=mesh)
