# SPDX-License-Identifier: Apache-2.0
"""`dovetail compile RECIPE --on HARDWARE`: what the real compiler makes of a training step, or of serving."""

import argparse
import json
import os
from typing import Any

from dovetail.config import ConfigError
from dovetail.hardware import hardware

from ._compile_serving import compile_serving
from ._picture import add_picture, check_picture, save_picture
from ._resolve import resolve

_SHOWN = 12  # Rows of the table of memory.
_TOO_LARGE = 3  # Exit code.


def add_compile(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--on", required=True, metavar="HARDWARE", help="as in tpu-v5p-512, gpu-h100-256")
    parser.add_argument(
        "--no-cache", action="store_true", help="compile again, though config and versions are the same"
    )
    parser.add_argument(
        "--no-suggestions", action="store_true", help="if it does not fit, do not compile more to find what does"
    )
    parser.add_argument(
        "--serve", action="store_true", help="of serving, not of training: serving.slots=16 and others say how"
    )
    add_picture(parser, "memory by part of the model, and a step in its order")
    parser.set_defaults(run=_compile)


def _compile(args: argparse.Namespace) -> int:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Before JAX starts: it need not look for what is not there.
    found = hardware(args.on)
    check_picture(args)
    if args.picture and args.serve:
        raise ConfigError("--picture: a step of training is drawn. Leave out --serve.")
    # Only CPUs are compiled for as devices that are here; others are described.
    virtual = found.chip.platform == "cpu"
    if args.serve:
        report, text = compile_serving(args.recipe, args.overrides, found, virtual=virtual)
        print(json.dumps({"recipe": args.recipe, **report}, indent=2) if args.json else text)
        return 0 if report["fits"] else _TOO_LARGE
    run = resolve(args.recipe, args.overrides, on=args.on, devices=virtual, weights=False)
    from dovetail.plan import compile_picture, compiled

    report, cached = compiled(
        run.cfg, found, use_cache=not args.no_cache, suggest=not args.no_suggestions, timed=args.picture is not None
    )
    if args.json:
        print(json.dumps({"recipe": args.recipe, **_named(report), "cached": cached}, indent=2))
    else:
        print(_text(args.recipe, report, cached))
    save_picture(args, lambda: compile_picture(args.recipe, report))
    return 0 if report.fits else _TOO_LARGE


def _named(report: Any) -> dict[str, Any]:
    """Returns the figures of a report, the work of a step by a name with its unit: `tokens_per_step`."""
    figures = report._asdict()
    unit, units = figures.pop("unit"), figures.pop("units_per_step")
    return {**figures, f"{unit}s_per_step": units, "timeline": [each._asdict() for each in report.timeline]}


def _text(recipe: str, report: Any, cached: bool) -> str:
    mesh = ",".join(f"{axis}={size}" for axis, size in report.mesh.items()) or "one device"
    chips = "1 chip" if report.chips == 1 else f"{report.chips:,} chips"
    parts = "" if report.num_microbatches == 1 else f" in {report.num_microbatches} microbatches"
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    kept = " (kept from before)" if cached else ""
    limit = "" if report.hbm_limit_gib is None else f" of {report.hbm_limit_gib:.1f}"
    verdict = "fits" if report.fits else "does not fit"
    lines = [
        f"{recipe} on {report.hardware}: {chips}, mesh {mesh}, remat {report.remat}",
        f"a step: {report.units_per_step:,} {report.unit}s{parts}, {report.parameters:,} parameters",
        f"compiled in {report.compile_seconds:.0f} s{kept} with {versions}",
        f"{verdict}: {report.hbm_per_chip_gib:.1f}{limit} GiB per chip",
        "",
        *_memory(report),
        "",
        f"FLOPs of a step: model {report.model_flops:.3e} (with all scores of attention "
        f"{report.full_model_flops:.3e}), hardware {report.hardware_flops:.3e} "
        f"({report.hardware_flops / report.model_flops:.2f}x)",
        f"copied to change a layout: {report.copied_gib:.1f} GiB per chip",
        "",
        *_collectives(report),
        *_kernels(report),
        *_suggestions(report),
    ]
    return "\n".join(lines)


def _memory(report: Any) -> list[str]:
    kinds = ("parameters", "optimizer", "activations", "temporaries")
    unit, scale = ("GiB", 1) if report.hbm_per_chip_gib >= 1 else ("MiB", 1024)

    def show(gib: float) -> str:
        return f"{gib * scale:,.2f}" if gib * scale >= 0.005 else "-"

    rows: list[tuple[str, ...]] = [(f"memory per chip, {unit}", *kinds, "all")]
    shown = list(report.hbm_by_path.items())
    for path, parts in shown[:_SHOWN]:
        rows.append((path, *(show(parts.get(kind, 0)) for kind in kinds), show(sum(parts.values()))))
    rest = [parts for _, parts in shown[_SHOWN:]]
    if rest:
        sums = [sum(parts.get(kind, 0) for parts in rest) for kind in kinds]
        rows.append((f"{len(rest)} more", *map(show, sums), show(sum(sums))))
    rows.append(("code, and lost between buffers", *[""] * len(kinds), show(report.hbm["other"])))
    rows.append(("all", *(show(report.hbm[kind]) for kind in kinds), show(report.hbm_per_chip_gib)))
    if report.host_per_chip_gib:
        rows.append(("in the memory of the host", *[""] * len(kinds), show(report.host_per_chip_gib)))
    return _table(rows)


def _collectives(report: Any) -> list[str]:
    if not report.collectives:
        return ["no collectives"]
    rows: list[tuple[str, ...]] = [("collectives of a step", "axis", "count", "GiB per chip", "beside other work")]
    rows += [
        (
            each["kind"],
            each["axis"],
            f"{each['count']:,}",
            _gib(each["bytes"] / 2**30),
            "yes" if each["async"] else "no",
        )
        for each in report.collectives
    ]
    return _table(rows, left=2)


def _kernels(report: Any) -> list[str]:
    lines = ["", "kernels"]
    for each in report.kernels:
        lines.append(f"  {each['path']}: {each['kernel']}")
        lines += [f"    instead of {kernel}: {reason}" for kernel, reason in each["refused"].items()]
    return lines if report.kernels else []


def _suggestions(report: Any) -> list[str]:
    if report.fits:
        return []
    lines = ["", "tried, to make it fit:"]
    for each in report.suggestions:
        verdict = "fits" if each["fits"] else "does not fit"
        lines.append(f"  {' '.join(each['changes'])}: {each['hbm_per_chip_gib']:.1f} GiB, {verdict}")
    if not any(each["fits"] for each in report.suggestions):
        lines.append("  Nothing did. Use more chips, or a smaller batch.")
    return lines


def _gib(value: float) -> str:
    return f"{value:,.2f}" if value >= 0.005 else "-"


def _table(rows: list[tuple[str, ...]], left: int = 1) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
