# SPDX-License-Identifier: Apache-2.0
"""A run for people: the tree of its parts as it is built, and what each part takes."""

import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.config import Outlined, built_configs, missing_fields, outline
from dovetail.progress import phase

from ._table import operations, printable, short, size, table

if TYPE_CHECKING:
    from dovetail.plan import Estimate
    from dovetail.train import Trainer

_AXES = (
    "axes",
    "axis",
    "in_axes",
    "out_axes",
    "in_axis",
    "out_axis",
)  # Not shown: `show --mesh` says what they lead to.


_LONG = 60  # Characters of a value; `show --full` has all of them.


def print_summary(name: str, cfg: "Trainer.Config", memory: "Estimate | None" = None) -> None:
    """Prints what the config of a trainer is made of: in colours in a terminal, else as plain text.

    Args:
        memory: on hardware, an estimate of what a chip needs.
    """
    from dovetail.plan import row_activations

    with phase("measuring the model"):
        (nodes, own), activations = parts_in_print(cfg), row_activations(cfg)
    missing = missing_fields(cfg)
    rows = [
        (_label(node, paths), node.kind, *_figures(paths, own), _settings(node, missing))
        for node, paths in _merged(nodes)
    ]
    head = ("part", "made by", "parameters", f"FLOPs/{_step(cfg).unit}", "memory", "settings")
    if sys.stdout.isatty():
        _print_in_colours(head, rows)
    else:
        print(table(head, rows))
    print("\n".join(["", *_totals(name, cfg, own, activations), *_on_hardware(cfg, memory)]))
    if missing:
        print(f"to be set: {' '.join(f'{path}=...' for path in missing)}")


def parts_in_print(cfg: "Trainer.Config") -> tuple[list[Outlined], dict[str, Any]]:
    """Returns the parts of a run as they are built, and by path what each takes by itself."""
    from dovetail.module import specs
    from dovetail.train import parts_of

    with built_configs() as built:
        model = cfg.model.build(path="model")
        cfg.learner.build(path="learner", specs=specs(model), steps=cfg.steps)
    own = parts_of(cfg)
    return outline(cfg, built, keep={*own, *(path for path in built if path.startswith("learner."))}), own


def _merged(nodes: Sequence[Outlined]) -> list[tuple[Outlined, list[str]]]:
    """Returns the nodes with their paths; neighbours in a list that are alike are one node with several paths."""
    found: list[tuple[Outlined, list[str]]] = []
    blocks = _blocks(nodes)
    while blocks:
        first, *inside = blocks.pop(0)
        paths = [first.path]
        while blocks and first.path.endswith("]") and _alike([first, *inside], blocks[0]):
            paths.append(blocks.pop(0)[0].path)
        found.append((first, paths))
        for node, inner in _merged(inside):
            found.append((node, [path + each[len(first.path) :] for path in paths for each in inner]))
    return found


def _blocks(nodes: Sequence[Outlined]) -> list[list[Outlined]]:
    """Returns each of the outermost nodes together with those inside of it."""
    blocks: list[list[Outlined]] = []
    for node in nodes:
        if not blocks or node.depth <= blocks[0][0].depth:
            blocks.append([])
        blocks[-1].append(node)
    return blocks


def _alike(a: Sequence[Outlined], b: Sequence[Outlined]) -> bool:
    same_list = a[0].path.rpartition("[")[0] == b[0].path.rpartition("[")[0]
    return same_list and [_below(node, a[0]) for node in a] == [_below(node, b[0]) for node in b]


def _below(node: Outlined, first: Outlined) -> tuple[Any, ...]:
    return node.path[len(first.path) :], node.kind, node.settings


def _label(node: Outlined, paths: Sequence[str]) -> str:
    last = node.path.rpartition(".")[2] or "(run)"
    if last.endswith("]") and len(paths) > 1:
        name, _, index = last.rpartition("[")
        last = f"{name}[{index[:-1]}-{paths[-1].rpartition('[')[2]}"
    return "  " * max(0, node.depth - 1) + last


def _figures(paths: Sequence[str], own: Any) -> tuple[str, str, str]:
    """Returns the figures of a part with all that is inside of it; empty: none."""
    starts = tuple(start for path in paths for start in (f"{path}.", f"{path}["))
    inside = [part for place, part in own.items() if paths == [""] or f"{place}.".startswith(starts)]
    parameters = sum(part.parameters for part in inside)
    flops = sum(part.flops_per_unit for part in inside)
    memory = sum(part.parameter_bytes + part.optimizer_bytes for part in inside)
    return (
        short(parameters) if parameters else "",
        operations(flops) if flops else "",
        size(memory) if memory else "",
    )


def _settings(node: Outlined, missing: Sequence[str]) -> str:
    given = {name: value for name, value in node.settings.items() if name not in _AXES and value != "REQUIRED"}
    values = {name: printable(str(value)).replace("\n", "\\n") for name, value in given.items()}
    shown = [f"{name}={text if len(text) <= _LONG else text[: _LONG - 3] + '...'}" for name, text in values.items()]
    unset = [path.removeprefix(f"{node.path}.") for path in missing if path.rpartition(".")[0] == node.path]
    return " ".join([*shown, *(f"{name}=?" for name in unset)])


def _step(cfg: "Trainer.Config") -> Any:
    """Returns what a batch of the run is, the largest if they differ."""
    from dovetail.train import largest

    return largest(cfg.input.batch_specs())


def _totals(name: str, cfg: "Trainer.Config", own: Any, activations: int) -> Iterable[str]:
    step = _step(cfg)
    lengths = [step.rows, *step.lengths().values()]
    made = " x ".join(f"{length:,}" for length in lengths) + " = " if math.prod(lengths) == step.num_units else ""
    parameters, weights, optimizer, flops, full = (sum(each) for each in zip(*own.values(), strict=True))
    yield f"{name}: {parameters:,} parameters"
    yield f"a step: {made}{step.num_units:,} {step.unit}s, {operations(flops * step.num_units)} FLOPs"
    yield f"a {step.unit}: {operations(flops)} FLOPs to train ({operations(full)} with all scores of attention)"
    state = f"parameters {size(weights)}, gradients {size(weights)}, optimizer {size(optimizer)}"
    yield f"memory of the state: {state}"
    kept = f"{size(activations * step.rows / step.num_units)} a {step.unit}, {size(activations)} a row"
    yield f"memory of activations for the backward pass: {kept} (remat {cfg.remat or 'as the model says'})"


def _on_hardware(cfg: "Trainer.Config", memory: "Estimate | None") -> Iterable[str]:
    if cfg.mesh.num_devices > 1:
        yield f"mesh: {cfg.mesh.text()}, {cfg.mesh.num_devices:,} devices"
    if memory is not None:
        limit = "" if memory.limit_gib is None else f" of {memory.limit_gib:,.1f}"
        parts = f"state {memory.state_gib:,.1f}, activations {memory.activations_gib:,.1f}"
        yield f"memory per chip, by an estimate: {memory.total_gib:,.1f}{limit} GiB ({parts})"


def _print_in_colours(heads: Sequence[str], rows: Iterable[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    styles = ("bold", "cyan", "", "", "", "dim")
    for head, style in zip(heads, styles, strict=True):
        number = head in heads[2:5]
        shown.add_column(head, style=style, justify="right" if number else "left", no_wrap=head != "settings")
    for row in rows:
        shown.add_row(*map(Text, row))
    Console().print(shown)
