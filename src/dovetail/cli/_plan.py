# SPDX-License-Identifier: Apache-2.0
"""`dovetail plan RECIPE`: the best way to train a recipe on chips that can be had, and the command that does it."""

import argparse
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.config import ConfigError, find, override, split_override
from dovetail.hardware import hardware

from ._amounts import count, seconds
from ._picture import add_picture, check_picture, save_picture
from ._plan_text import plan_json, plan_text
from ._resolve import check, note, resolve
from ._verify import verify

if TYPE_CHECKING:
    from dovetail.plan import Plan, Pool, Row, Wanted
    from dovetail.train import Trainer

_VERIFIED = 12  # Rows that are compiled.
_MORE = 4  # And of those that turn out to be the best, so many.


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--on", metavar="HARDWARE,...", help="all of one of these, as in tpu-v5p-512,gpu-h100-256")
    where.add_argument("--pools", metavar="FILE.toml", help="any part of one of these pools of chips")
    parser.add_argument("--tokens", metavar="N", help="what to train on, as in 2T; by default what the recipe does")
    parser.add_argument("--by", choices=("time", "cost", "energy"), default="time", help="what to rank by")
    parser.add_argument("--deadline", metavar="TIME", help="when it has to be done, as in 30d")
    parser.add_argument(
        "--linear",
        metavar="CLASS",
        help="linear maps of layers may be of this class too; it is yours to say that its numbers will do",
    )
    verified = parser.add_mutually_exclusive_group()
    verified.add_argument("--verify", type=int, metavar="N", help=f"compile so many of the best, not {_VERIFIED}")
    verified.add_argument("--no-verify", action="store_true", help="compile nothing: it takes seconds, not minutes")
    add_picture(parser, "time and cost of all options")
    parser.set_defaults(run=_plan)


def _plan(args: argparse.Namespace) -> int:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Before JAX starts: it need not look for what is not there.
    check(args.recipe, args.overrides)
    check_picture(args)
    if args.verify is not None and args.verify < 0:
        raise ConfigError(f"--verify is {args.verify}, expected 0 or more.")
    names = [name for name in args.on.split(",") if name] if args.on is not None else []
    if args.on is not None and not names:
        raise ConfigError("--on names no hardware, expected some as in tpu-v5p-512,gpu-h100-256.")
    for name in names:
        hardware(name)
    tokens = None if args.tokens is None else count(args.tokens, "--tokens")
    deadline = None if args.deadline is None else seconds(args.deadline, "--deadline")
    cfg = resolve(args.recipe, args.overrides, weights=False).cfg
    from dovetail.plan import Wanted, plan_picture, pools_on, read_pools
    from dovetail.train import largest

    pools = pools_on(names) if names else read_pools(args.pools)
    trained = cfg.steps * largest(cfg.input.batch_specs()).num_units if tokens is None else tokens
    wanted = Wanted(float(trained), args.by, deadline)

    number = 0 if args.no_verify else _VERIFIED if args.verify is None else args.verify
    found, problems = _verified(_planned(cfg, pools, wanted, args), args, number)
    commands = [train_command(args.recipe, args.overrides, row) for row in found.rows]
    shown = plan_json if args.json else plan_text
    print(shown(args.recipe, found, commands, problems))
    save_picture(args, lambda: plan_picture(args.recipe, found))
    return 0


def _planned(cfg: "Trainer.Config", pools: "Sequence[Pool]", wanted: "Wanted", args: argparse.Namespace) -> "Plan":
    """Returns the plan for a recipe, and for the recipe with other linear maps, if some are named."""
    from dovetail.plan import plan, ranked

    fixed = _fixed(cfg, args.overrides)
    found = plan(cfg, pools, wanted, fixed, changes=lambda base: override(base, args.overrides, note=note))
    if not args.linear:
        return found
    more = [f"model.{path}={args.linear}" for path in linear_maps(cfg.model)]
    other = override(cfg, more, note=note)
    again = plan(other, pools, wanted, fixed, changes=lambda base: override(base, [*args.overrides, *more], note=note))
    rows = ranked([*found.rows, *(row._replace(overrides=tuple(more)) for row in again.rows)], wanted)
    return found._replace(rows=rows, counted=found.counted + again.counted)


def linear_maps(model: Any) -> list[str]:
    """Returns the paths of the linear maps in layers; layers that share a config are one."""
    from dovetail.nn import Linear

    return [path for path, _ in find(model, Linear.Config) if "layer" in path]


def _fixed(cfg: "Trainer.Config", overrides: Sequence[str]) -> Mapping[str, Any]:
    """Returns what a user has chosen, of what is searched for."""
    named = {split_override(text)[0] for text in overrides}
    if whole := named & {"mesh"}:
        raise ConfigError(f"{', '.join(whole)}: plan chooses the mesh. Fix some of its axes, as in mesh.tensor=8.")
    values = {"remat": cfg.remat, "num_microbatches": cfg.num_microbatches}
    values |= {f"mesh.{name}": getattr(cfg.mesh, name) for name in (*cfg.mesh.sizes, "microbatches", "rounds")}
    return {path: value for path, value in values.items() if path in named}


def _changes(row: "Row") -> list[str]:
    """Returns the overrides that make a row of what the mesh rules make; the sizes of the mesh are not among them."""
    cfg, before = row.cfg, row.base
    found = [f"remat={cfg.remat}", f"num_microbatches={cfg.num_microbatches}"]
    for field in ("microbatches", "rounds"):
        if getattr(cfg.mesh, field) != getattr(before.mesh, field):
            found.append(f"mesh.{field}={getattr(cfg.mesh, field)}")
    return [*found, *row.overrides]


def train_command(recipe: str, overrides: Sequence[str], row: "Row") -> str:
    """Returns the command that trains as a row of a plan says."""
    where = ["--on", row.hardware.name, "--mesh", row.cfg.mesh.text()]
    return shlex.join(["dovetail", "train", recipe, *where, *overrides, *_changes(row)])


def compile_arguments(recipe: str, overrides: Sequence[str], row: "Row") -> list[str]:
    """Returns the arguments of `dovetail compile` and `predict` for a row."""
    mesh = row.cfg.mesh
    sizes = [f"mesh.{axis}={getattr(mesh, axis)}" for axis in mesh.sizes]
    outer = f"mesh.across_slices={json.dumps(dict(mesh.across_slices))}"
    return [recipe, "--on", row.hardware.name, *overrides, *sizes, outer, *_changes(row)]


def _verified(found: "Plan", args: argparse.Namespace, number: int) -> tuple["Plan", list[str]]:
    """Returns a plan with what compilers say of its best rows, and why some could not be asked."""
    from dovetail.aot import CompileError, versions
    from dovetail.plan import retimed, to_verify

    problems: dict[str, str] = {}
    if not number:
        return found, []
    for name, hw in {row.hardware.chip.name: row.hardware for row in found.rows}.items():
        try:
            versions(hw)
        except CompileError as e:
            problems[name] = str(e)
    code = [word for file in args.code for word in ("--code", file)]
    rows, asked = list(found.rows), set[str]()
    chosen = [i for i in to_verify(found, number) if rows[i].hardware.chip.name not in problems]
    for more in range(1 + _MORE):  # Until the first of them is one that was compiled.
        runs = {i: [*compile_arguments(args.recipe, args.overrides, rows[i]), *code] for i in chosen}
        for i, said in verify(runs):
            asked.add(_name(rows[i]))
            if said.problem:
                problems[_name(rows[i])] = said.problem
            rows[i] = rows[i]._replace(
                fits=said.fits, compiled_gib=said.gib, compiled_seconds=said.seconds, problem=said.problem
            )
        found = retimed(found, rows)
        rows, first = list(found.rows), found.rows[0]
        if _name(first) in asked or first.hardware.chip.name in problems or more == _MORE:
            break
        chosen = [0]
    return found, [f"{name}: {why}" for name, why in problems.items()]


def _name(row: "Row") -> str:
    return f"{row.hardware.name}, {row.cfg.mesh.text()}, {' '.join(_changes(row))}"
