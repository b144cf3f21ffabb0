# SPDX-License-Identifier: Apache-2.0
"""Whether a model with a feature works, as far as shapes tell: nothing is computed, so models of any size are fine."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax

from dovetail.aot import count_flops
from dovetail.config import ConfigError, from_json, to_json
from dovetail.module import Module, Objective, ParamSpec, abstract, abstract_run_state, merged, specs
from dovetail.parallel import BatchShape, check_fit, parse_mesh
from dovetail.train import eval_step

from ._trials import Specs, Trial

ROWS, TOKENS = 8, 16
_MESHES = ("fsdp=8", "fsdp=4,tensor=2", "data=2,fsdp=2,expert=2")
_MATRICES = (".weight", ".lora_a", ".lora_b")
_INPUTS = {"tokens": "int32", "targets": "int32", "weights": "float32", "segments": "int32", "positions": "int32"}


@dataclass(frozen=True)
class Built:
    """A model: its config, the module, and the specs of its parameters, as a tree and by path."""

    cfg: Module.Config
    module: Objective
    tree: Any
    specs: Specs

    @property
    def size(self) -> int:
        """How many parameters it has."""
        return sum(spec.size for spec in self.specs.values())

    @functools.cached_property
    def products(self) -> float:
        """How many products of numbers a forward pass takes per token, counted in the traced program."""
        inputs = {name: jax.ShapeDtypeStruct((ROWS, TOKENS), dtype) for name, dtype in _INPUTS.items()}
        params = merged(abstract(self.module), abstract_run_state(self.module))
        return count_flops(eval_step(self.module, dtype=None), params, inputs) / (2 * ROWS * TOKENS)


def built(cfg: Module.Config) -> Built:
    """Builds the model of a config."""
    module = cfg.build(path="model")
    tree = specs(module)
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    return Built(cfg, module, tree, {".".join(key.key for key in keys): spec for keys, spec in leaves})


def size_problems(trial: Trial, variant: Any, before: Built, after: Built) -> Iterator[str]:
    """Yields where the model `after`, made of `before` by the modifier, lacks the feature or is of a wrong size."""
    places = trial.places(before.cfg, variant)
    missed = [path for path in places if not trial.shows(after.cfg.get_in(path), variant)]
    if missed:
        yield f"the feature is not at {missed[0]}, nor at {len(missed) - 1} other places"
    expected = before.size + trial.added(before.specs, variant)
    if after.size != expected:
        yield f"it has {after.size:,} parameters, expected {expected:,}"


def other_problems(before: Built, after: Built) -> Iterator[str]:
    """Yields what else is wrong with the model `after`."""
    if from_json(to_json(after.cfg)) != after.cfg:
        yield "its config is another one after a round trip through JSON"
    yield from _products_problems(before, after)
    yield from _mesh_problems(before.tree, after.tree)


def _products_problems(before: Built, after: Built) -> Iterator[str]:
    """Each token meets every matrix, and attention adds to that; only what the feature has added may add to it.

    Of experts a token meets one or more, and to send it there may take as much again.
    """
    least = sum(_met(spec)[0] for path, spec in before.specs.items() if path.endswith(_MATRICES))
    if before.products < least:
        yield f"even without the feature, {before.products:,.0f} products per token, expected {least:,} or more"
    low = high = before.products
    for path in before.specs.keys() | after.specs.keys():
        old, new = before.specs.get(path), after.specs.get(path)
        if path.endswith(_MATRICES) and (old is None or new is None or old.shape != new.shape):
            (old_fewest, old_most), (fewest, most) = _met(old), _met(new)
            low, high = low + fewest - old_most, high + most - old_fewest
    if not low <= after.products <= high:
        expected = f"{low:,.0f}" if low == high else f"between {low:,.0f} and {high:,.0f}"
        yield f"{after.products:,.0f} products per token, expected {expected}"


def _met(spec: ParamSpec | None) -> tuple[int, int]:
    """Returns how many products per token a matrix takes, at least and at most."""
    if spec is None:
        return 0, 0
    experts = _experts(spec)
    return (spec.size // experts, 2 * spec.size) if experts > 1 else (spec.size, spec.size)


def _experts(spec: ParamSpec) -> int:
    return math.prod(count for count, axis in zip(spec.shape, spec.axes, strict=True) if axis == "expert")


def _mesh_problems(old: Any, new: Any) -> Iterator[str]:
    """Whatever mesh the model fitted on before, it must fit on with the feature."""
    fitted = [mesh for mesh in _MESHES if not _misfit(mesh, old)]
    if not fitted:
        yield f"even without the feature it fits on none of the meshes {'; '.join(_MESHES)}"
    for mesh in fitted:
        if why := _misfit(mesh, new):
            yield why


def _misfit(mesh: str, tree: Any) -> str:
    try:
        check_fit(parse_mesh(mesh), tree, BatchShape(ROWS, {"seq": TOKENS}))
    except ConfigError as e:
        return str(e)
    return ""
