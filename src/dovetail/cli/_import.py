# SPDX-License-Identifier: Apache-2.0
"""`dovetail import DIRECTORY --to RUN`: a published model becomes a run, which is used and trained like any other."""

import argparse
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail.config import ConfigError, missing_fields
from dovetail.zoo import check_target, is_published_name

from ._resolve import check, is_run, resolve

if TYPE_CHECKING:
    from dovetail.data import Input


def add_import(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("directory", help="with config.json and safetensors files; or hf:ORG/NAME")
    parser.add_argument("overrides", nargs="*", default=[], metavar="PATH=VALUE", help="of the config of the run")
    parser.add_argument("--to", required=True, metavar="RUN", help="the directory of the run, which is new")
    parser.set_defaults(run=_import)


def _import(args: argparse.Namespace) -> int:
    if is_run(args.directory):
        raise ConfigError(f"{args.directory!r} is a run already. Use it as it is, or copy it.")
    name = args.directory if is_published_name(args.directory) else f"hf:{args.directory}"
    check(name, args.overrides, args.on)
    check_target(args.to, name)
    run = resolve(name, [*args.overrides, f"directory={args.to}"], args.mesh, args.on, devices=True)
    from dovetail.train import save_initial
    from dovetail.zoo.hf import ignored_lines, open_directory

    found = open_directory(name)
    own = _own_files(run.cfg.input)
    try:
        size = save_initial(run.cfg, {**found.files, **(own or {})})
    except BaseException:
        shutil.rmtree(args.to, ignore_errors=True)  # It was new, or empty.
        raise
    print(f"{args.to}: {found.family.architecture}, {size.parameters:,} parameters in {size.dtypes}")
    for line in ignored_lines(found.ignored):
        print(f"  not used of config.json: {line}")
    if own is None:
        print("  There is no tokenizer.json: to read and write text, set input.tokenizer.file=...", file=sys.stderr)
    return 0


def _own_files(cfg: "Input.Config") -> Mapping[str, bytes] | None:
    """Returns the files of the tokenizer of the run, which overrides may have changed; None if it is not known."""
    from dovetail.data import TextInput

    if not isinstance(cfg, TextInput.Config):
        return {}
    named = cfg.tokenizer
    return None if named is None or missing_fields(named) else named.build(path="input.tokenizer").files()
