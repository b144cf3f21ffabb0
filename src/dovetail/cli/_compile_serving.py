# SPDX-License-Identifier: Apache-2.0
"""`dovetail compile RECIPE --on HARDWARE --serve`: what fits, and how fast tokens could come at best."""

from collections.abc import Sequence
from typing import Any

from dovetail.config import override, split_override
from dovetail.hardware import Hardware

from ._resolve import resolve
from ._table import short, table

_OWN = "serving."


def compile_serving(
    recipe: str, overrides: Sequence[str], hardware: Hardware, *, virtual: bool
) -> tuple[dict[str, Any], str]:
    """Returns the figures of a recipe that is served on hardware, and the same as text.

    Its mesh is one to serve on, unless an override sets it.
    """
    own = [text.removeprefix(_OWN) for text in overrides if text.startswith(_OWN)]
    others = [text for text in overrides if not text.startswith(_OWN)]
    run = resolve(recipe, others, on=hardware.name, devices=virtual, weights=False)
    from dovetail.plan import compiled_serving, serving_mesh
    from dovetail.serve import Serving

    is_set = any(split_override(text)[0].partition(".")[0] == "mesh" for text in others)
    cfg = run.cfg if is_set else run.cfg.set(mesh=serving_mesh(run.cfg, hardware))
    report = compiled_serving(cfg, override(Serving(), own), hardware)
    figures = {**report._asdict(), "steps": [{**step._asdict(), "least_ms": step.least_ms} for step in report.steps]}
    return figures, _text(recipe, report)


def _text(recipe: str, report: Any) -> str:
    mesh = ",".join(f"{axis}={size}" for axis, size in report.mesh.items()) or "one device"
    chips = "1 chip" if report.chips == 1 else f"{report.chips:,} chips"
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    limit = "" if report.hbm_limit_gib is None else f" of {report.hbm_limit_gib:.1f}"
    room = "" if report.room_gib is None else f", room for {report.room_gib:.2f}"
    lines = [
        f"{recipe} served on {report.hardware}: {chips}, mesh {mesh}, {report.dtype}, {report.parameters:,} parameters",
        f"with {versions}",
        f"{'fits' if report.fits else 'does not fit'}: weights {report.weights_gib:.2f}{limit} GiB per chip{room} of "
        f"state",
    ]
    if report.reason:
        return "\n".join([*lines, f"  {report.reason}"])
    row = f", {short(report.row_bytes)}B a sequence" if report.row_bytes else ""
    lines += [
        f"state: {report.state_gib:.2f} GiB per chip, {short(report.token_bytes)}B a token{row}",
        f"room: {report.slots:,} sequences at once, of {report.max_length:,} tokens at most; "
        f"{report.tokens:,} tokens of all together, in pages of {report.page}",
        "",
        *_steps(report),
        "",
        f"a token of each of {report.slots:,} sequences with {report.max_length:,} tokens: at least "
        f"{_ms(report.ms_per_token)}",
        f"the first token after a prompt of {report.prompt:,}: at least {_ms(report.ms_to_first_token)}",
        "",
        *_collectives(report),
        *_kernels(report),
    ]
    return "\n".join(lines)


def _steps(report: Any) -> list[str]:
    rows = []
    for step in report.steps:
        rows.append((
            f"{step.what} {step.rows:,} x {step.tokens:,}",
            f"{step.context:,}",
            f"{step.weight_bytes / 1e9:,.3f}",
            f"{step.state_bytes / 1e9:,.3f}",
            f"{step.flops / 1e9:,.1f}",
            _figure(step.memory_ms),
            _figure(step.compute_ms),
            _figure(step.links_ms),
            f"{step.hbm_per_chip_gib:,.2f}",
            f"{step.copied_gib:,.2f}",
            f"{step.compile_seconds:,.0f}",
        ))  # fmt: skip
    head = (
        "a step", "context", "weights GB", "state GB", "GFLOPs", "memory ms", "compute ms", "links ms", "HBM GiB",
        "copied GiB", "compile s",
    )  # fmt: skip
    return table(head, rows).splitlines()


def _collectives(report: Any) -> list[str]:
    found = [(step.what, each) for step in report.steps for each in step.collectives]
    if not found:
        return ["no collectives"]
    rows = [
        (f"{what}: {each['kind']}", each["axis"], each["count"], f"{each['bytes'] / 2**20:,.2f}", _yes(each["async"]))
        for what, each in found
    ]
    return table(("collectives of a step", "axis", "count", "MiB per chip", "beside other work"), rows).splitlines()


def _kernels(report: Any) -> list[str]:
    """Returns which kernels are used, those of equal layers once."""
    counts: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for each in report.kernels:
        counts.setdefault((each["kernel"], tuple(each["refused"].items())), []).append(each["path"])
    lines = ["", "kernels"]
    for (kernel, refused), paths in counts.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        lines.append(f"  {paths[0]}{more}: {kernel}")
        lines += [f"    instead of {other}: {reason}" for other, reason in refused]
    return lines if counts else []


def _ms(value: float | None) -> str:
    return "not known" if value is None else f"{_figure(value)} ms"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
