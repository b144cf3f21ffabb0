# SPDX-License-Identifier: Apache-2.0
"""`dovetail train RECIPE`: resolve, run."""

import argparse
from pathlib import Path
from typing import Any

from ._resolve import start, tokenizer_files


def add_train(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--text", nargs="+", default=[], metavar="FILE", help=_TEXT)
    parser.add_argument("--from", dest="init_from", metavar="RUN", help=_FROM)
    parser.add_argument("--allow-change", action="store_true", help=_ALLOW)
    parser.set_defaults(run=_train)


_TEXT = "your text to train on, the last of it held out: .txt, .jsonl or .parquet files or globs, .gz and .zst too"
_FROM = "the directory of a run, or of a step (runs/x/checkpoints/step_600), to start from its weights"
_ALLOW = "go on with a run although the config is not the one that made its steps; the differences are printed"


def _train(args: argparse.Namespace) -> int:
    files = [text for text in args.text if "=" not in text or Path(text).exists()]
    overrides = [*args.overrides, *(text for text in args.text if text not in files)]

    def change(cfg: Any) -> Any:
        from dovetail.train import InitFrom
        from dovetail.zoo.recipes import on_text

        cfg = on_text(cfg, files) if files else cfg
        return cfg if args.init_from is None else cfg.set(init_from=InitFrom(path=args.init_from))

    cfg = start(args.recipe, overrides, args.mesh, args.on, change)
    cfg.build(tokenizer_files=tokenizer_files(args.recipe, cfg)).run(allow_change=args.allow_change)
    return 0
