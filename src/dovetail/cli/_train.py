# SPDX-License-Identifier: Apache-2.0
"""`dovetail train RECIPE`: resolve, run."""

import argparse

from ._resolve import start


def add_train(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> int:
    start(args.recipe, args.overrides, args.mesh, args.on).build().run()
    return 0
