# SPDX-License-Identifier: Apache-2.0
"""Whether a model with a feature works, as far as shapes tell: nothing is computed, so models of any size are fine."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from dovetail.aot import count_flops
from dovetail.config import ConfigError, from_json, to_json
from dovetail.module import Module, ParamSpec, abstract, specs
from dovetail.parallel import Batch, check_fit, parse_mesh
from dovetail.train import eval_step

from ._trials import Specs, Trial

ROWS, TOKENS = 8, 16
_MESHES = ("fsdp=8", "fsdp=4,tensor=2", "data=2,fsdp=2,expert=2")
_INPUTS = {"tokens": "int32", "targets": "int32", "weights": "float32", "segments": "int32", "positions": "int32"}


class Built(NamedTuple):
    """A model: its config, the module, and the specs of its parameters, as a tree and by path."""

    cfg: Any
    module: Module
    tree: Any
    specs: Specs

    @property
    def size(self) -> int:
        """How many parameters it has."""
        return sum(spec.size for spec in self.specs.values())


def built(cfg: Any) -> Built:
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
    yield from _flops_problems(after.module, after.specs)
    yield from _mesh_problems(before.tree, after.tree)


def _flops_problems(model: Module, new: Specs) -> Iterator[str]:
    """Each token meets every matrix but those of experts, of which it meets one or more, and attention adds to that."""
    inputs = {name: jax.ShapeDtypeStruct((ROWS, TOKENS), dtype) for name, dtype in _INPUTS.items()}
    flops = count_flops(eval_step(model, dtype=None), abstract(model), inputs)
    matrices = [spec for path, spec in new.items() if path.endswith((".weight", ".lora_a", ".lora_b"))]
    tied = not any(path.startswith("head.") for path in new)
    table = new["embedding.table"].size if tied else 0
    low = table + sum(spec.size // _experts(spec) for spec in matrices)
    high = table + sum(spec.size for spec in matrices)
    per_token = flops / (2 * ROWS * TOKENS)
    if not low <= per_token <= 2 * high:
        yield f"{per_token:,.0f} products per token, expected between {low:,} and {2 * high:,}"


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
        check_fit(parse_mesh(mesh), tree, Batch(ROWS, TOKENS))
    except ConfigError as e:
        return str(e)
    return ""
