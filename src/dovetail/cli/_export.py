# SPDX-License-Identifier: Apache-2.0
"""`dovetail export RUN --to DIRECTORY`: the model of a run in the format of Hugging Face."""

import argparse
import math

from dovetail.config import ConfigError
from dovetail.zoo import check_target

from ._use import load_run, start_run


def add_export(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("run_directory", help="the directory of a run, or hf:DIRECTORY")
    parser.add_argument("overrides", nargs="*", default=[], metavar="PATH=VALUE", help="of the config of the run")
    parser.add_argument("--to", required=True, metavar="DIRECTORY", help="where to write, which is new")
    parser.add_argument("--step", type=int, help="of the checkpoint; the newest by default")
    parser.add_argument("--dtype", choices=_DTYPES, help="of the tensors; by default that of the import, or float32")
    parser.add_argument("--shard-size", type=float, default=5.0, metavar="GB", help="of a file of weights, at most")
    parser.set_defaults(run=_export)


_DTYPES = ("float32", "bfloat16", "float16")


def _export(args: argparse.Namespace) -> int:
    if not 0 < args.shard_size < math.inf:
        raise ConfigError(f"--shard-size is {args.shard_size}, expected more than 0.")
    check_target(args.to, args.run_directory)
    run = start_run(args.run_directory, args.overrides, args.step, None, None)
    from dovetail.zoo.hf import export, plan_export

    plan = plan_export(run.cfg, run.files, args.dtype)  # Before anything is read: what cannot be published says so.
    trained = load_run(run, args.step)
    report = export(plan, trained.params, args.to, max_shard_bytes=max(1, int(args.shard_size * 1e9)))
    print("\n".join(report))
    return 0
