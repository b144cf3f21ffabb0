# SPDX-License-Identifier: Apache-2.0
"""Writes features into the two classical designs, checks that the programs work, and counts what was written.

A program is the source of `classical/flat.py` or `classical/subclass.py` with N models, and then with M kinds of a
feature for each of them. Both are executed. The lines that the second has and the first has not are the cost.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .classical import flat, kinds, subclass
from .meter import added_lines


class Kind(NamedTuple):
    """A variant of a feature: the function that implements it, and the numbers that are its own."""

    name: str
    function: Callable[..., Any]
    fields: dict[str, float]

    def call(self, owner: str, arguments: str, *, own: bool) -> str:
        """Returns the call of the function; the values of its numbers are fields of the owner, or stand there."""
        values = {f: f"{owner}.{self.name}_{f}" if own else repr(value) for f, value in self.fields.items()}
        return f"kinds.{self.function.__name__}({', '.join([arguments, *(f'{f}={v}' for f, v in values.items())])})"


def _kinds(*found: tuple[str, Callable[..., Any], dict[str, float]]) -> tuple[Kind, ...]:
    return tuple(Kind(*each) for each in found)


KINDS = {
    "rope": _kinds(
        ("plain", kinds.plain, {}),
        ("linear", kinds.linear, {"factor": 4.0}),
        ("ntk", kinds.ntk, {"factor": 4.0}),
        ("low", kinds.low, {"factor": 8.0, "length": 8192}),
        ("partial", kinds.partial, {"share": 0.5}),
        ("wide", kinds.ntk, {"factor": 16.0}),
        ("long", kinds.linear, {"factor": 16.0}),
        ("quarter", kinds.partial, {"share": 0.25}),
    ),
    "moe": _kinds(
        ("eight", kinds.experts, {"count": 8}),
        ("many", kinds.experts, {"count": 64}),
        ("biased", kinds.biased, {"count": 8}),
        ("shared", kinds.shared, {"count": 8, "shared_dim": 256}),
        ("grouped", kinds.grouped, {"count": 16, "groups": 4}),
        ("few", kinds.experts, {"count": 2}),
        ("sharing", kinds.shared, {"count": 64, "shared_dim": 512}),
        ("groups", kinds.grouped, {"count": 64, "groups": 8}),
    ),
}
# Feature: the method or branch that it is in, the field of the flat config, and what is handed to it.
_PLACES = {"rope": ("frequencies", "rope", "{0}.dim // {0}.num_heads, {0}.theta")}
_PLACES["moe"] = ("feed_forward", "ffn", "{0}.dim, {0}.hidden_dim")


def sizes(model: int) -> dict[str, int]:
    """Returns the sizes of the n-th model; no two are alike."""
    heads = 2 + model % 7
    return {
        "vocab_size": 1000 + model,
        "dim": 16 * heads,
        "num_layers": 2 + model % 5,
        "num_heads": heads,
        "hidden_dim": 48 * heads,
    }


def flat_program(models: Sequence[int], feature: str, chosen: Sequence[Kind]) -> str:
    """Returns the flat design with these models and these kinds of a feature: new fields, and a branch for each."""
    _, field, arguments = _PLACES[feature]
    fields = [f"    {k.name}_{f}: {type(v).__name__} = {v}" for k in chosen for f, v in k.fields.items()]
    branches = [
        f"    if cfg.{field} == {kind.name!r}:\n        return {kind.call('cfg', arguments.format('cfg'), own=True)}"
        for kind in chosen
    ]
    rows = [f"    'M{n}': Config({', '.join(f'{f}={v}' for f, v in sizes(n).items())})," for n in models]
    edits = {"FIELDS": fields, feature.upper(): branches, "MODELS": rows}
    return _edited(inspect.getsource(flat), edits)


def subclass_program(models: Sequence[int], feature: str, chosen: Sequence[Kind]) -> str:
    """Returns the design of subclasses with these models, and a subclass of each for each kind of a feature."""
    method, _, arguments = _PLACES[feature]
    bases = [
        "\n".join([f"class M{n}(Transformer):", *(f"    {field} = {value}" for field, value in sizes(n).items())])
        for n in models
    ]
    more = [
        f"class M{n}_{kind.name}(M{n}):\n    def {method}(self):\n"
        f"        return {kind.call('self', arguments.format('self'), own=False)}"
        for n in models
        for kind in chosen
    ]
    return _edited(inspect.getsource(subclass), {"MODELS": bases, "SUBCLASSES": more})


PROGRAMS = {"flat": flat_program, "subclass": subclass_program}


def lines(design: str, feature: str, models: Sequence[int], chosen: Sequence[Kind]) -> int:
    """Returns how many lines it took to give each model each kind of a feature; raises if one does not work."""
    program = PROGRAMS[design]
    before, after = program(models, feature, ()), program(models, feature, chosen)
    check(after, feature, models, chosen)
    return len(added_lines(before, after))


def check(program: str, feature: str, models: Sequence[int], chosen: Sequence[Kind]) -> None:
    """Raises unless each model of a program, with each kind, has the frequencies and parameters that it must have."""
    found: dict[str, Any] = {"__name__": "reference"}
    exec(compile(program, "<reference>", "exec"), found)
    for model in models:
        for kind in chosen:
            frequencies, shapes = found["build"](f"M{model}", _PLACES[feature][1], kind.name)
            size = sum(map(math.prod, shapes.values()))
            expected = _expected(feature, kind, **sizes(model))
            if (frequencies, size) != expected:
                raise AssertionError(f"M{model}, {kind.name}: {size} parameters, expected {expected[1]}.")


def _expected(
    feature: str, kind: Kind, *, vocab_size: int, dim: int, num_layers: int, num_heads: int, hidden_dim: int
) -> tuple[list[float], int]:
    """Returns frequencies and number of parameters, by formula."""
    weights, own = 3 * dim * hidden_dim, kind.fields
    if feature == "rope":
        frequencies = kind.function(dim // num_heads, 10_000.0, **own)
    else:
        frequencies, count = [], int(own["count"])
        router = count * (dim + (kind.function is kinds.biased)) + dim * int(own.get("groups", 0))
        weights = count * weights + router + 3 * dim * int(own.get("shared_dim", 0))
    return frequencies, vocab_size * dim + num_layers * (4 * dim * dim + weights)


def _edited(source: str, edits: dict[str, list[str]]) -> str:
    """Returns a source with lines put in the place of the comments that mark it."""
    return "\n".join(
        "\n".join(edits[mark]) if (mark := line.strip().removeprefix("# ")) in edits else line
        for line in source.split("\n")
    )
