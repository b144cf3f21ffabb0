# SPDX-License-Identifier: Apache-2.0
"""What a run starts on, or goes on with, on a command line: `--text`, `--data`, `--from`, `--data-change`."""

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ._text import add_data_places, add_text, own_and_overrides

if TYPE_CHECKING:
    from dovetail.data import DataChange
    from dovetail.train import Trainer

_FROM = "the directory of a run, or of a step (runs/x/checkpoints/step_600), to start from its weights"
_ALLOW = "go on with a run although the config is not the one that made its steps; the differences are printed"
_CHANGE = "what to do about other data: go on at the same place as exactly as can be, start anew, or go to the step's"


class Start(NamedTuple):
    """What a command line says of it."""

    text: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    init_from: str | None = None
    allow_change: bool = False
    data_change: "DataChange | None" = None

    @property
    def is_other(self) -> bool:
        """Whether the data is not that of the recipe."""
        return bool(self.text or self.data)

    def change(self, cfg: "Trainer.Config") -> "Trainer.Config":
        """Returns the config with data and weights in place."""
        from dovetail.train import InitFrom
        from dovetail.zoo.recipes import on_data, on_text

        cfg = on_text(cfg, self.text) if self.text else cfg
        cfg = on_data(cfg, self.data) if self.data else cfg
        return cfg if self.init_from is None else cfg.set(init_from=InitFrom(path=self.init_from))

    def in_full(self) -> "Start":
        """Returns the same with paths that do not depend on where a process is started."""
        text, data = (tuple(map(_in_full, each)) for each in (self.text, self.data))
        init_from = None if self.init_from is None else _in_full(self.init_from)
        return self._replace(text=text, data=data, init_from=init_from)

    @property
    def paths(self) -> list[str]:
        """What is read."""
        return [*self.text, *self.data, *([] if self.init_from is None else [self.init_from])]

    def arguments(self) -> list[str]:
        """Returns what says the same to `dovetail train`."""
        options = {"--from": self.init_from, "--data-change": self.data_change}
        given = [text for name, value in options.items() if value is not None for text in (name, value)]
        given += ["--allow-change"] if self.allow_change else []
        given += ["--data", *self.data] if self.data else []
        return [*given, "--text", *self.text] if self.text else given


def add_start(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    add_text(parser, "your text to train on, the last of it held out")
    add_data_places(parser, "to train on; the last of it held out")
    parser.add_argument("--from", dest="init_from", metavar="RUN", help=_FROM)
    parser.add_argument("--allow-change", action="store_true", help=_ALLOW)
    parser.add_argument("--data-change", choices=("keep", "restart", "skip-to-step"), help=_CHANGE)


def start_and_overrides(args: argparse.Namespace) -> tuple[Start, list[str]]:
    """Returns what is said, and the overrides."""
    own, overrides = own_and_overrides(args)
    return Start(own.text, own.data, args.init_from, args.allow_change, args.data_change), overrides


def without_changes(arguments: Sequence[str]) -> list[str]:
    """Returns arguments without what is done about changes: it does not say what a run is."""
    allowed = [text for text in arguments if text != "--allow-change"]
    before = ["", *allowed]
    return [text for text, last in zip(allowed, before, strict=False) if "--data-change" not in (text, last)]


def _in_full(path: str) -> str:
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))
