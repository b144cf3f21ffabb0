# SPDX-License-Identifier: Apache-2.0
"""What a run costs, as a whole and by its parts, known from its config alone."""

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from dovetail.aot import config_path, training_flops_by_scope
from dovetail.config import replace_all
from dovetail.data import BatchSpec
from dovetail.module import abstract, specs
from dovetail.nn import Dispatch, Dropless
from dovetail.optim import Learner

from ._batch import abstract_batch, largest
from ._step import loss_function

if TYPE_CHECKING:
    from ._trainer import Trainer


class Size(NamedTuple):
    """The size of a run."""

    parameters: int
    unit: str  # In which the input counts, in the singular.
    units: int  # In a step.
    flops_per_unit: float  # Of training, by the rule of `count_training_flops`: attention as far as the mask lets it.
    full_flops_per_unit: float  # The same with all scores of attention, as others count.

    def named(self) -> dict[str, float]:
        """Returns the figures by names with the unit in them, as in `flops_per_token`."""
        name = f"flops_per_{self.unit}"
        return {"parameters": self.parameters, name: self.flops_per_unit, f"full_{name}": self.full_flops_per_unit}


class Part(NamedTuple):
    """What a module takes by itself, without those inside it."""

    parameters: int
    parameter_bytes: int
    optimizer_bytes: int  # The state that the learner keeps for its parameters.
    flops_per_unit: float  # As in `Size`.
    full_flops_per_unit: float


def size_of(cfg: "Trainer.Config", spec: BatchSpec | None = None) -> Size:
    """Returns the size of the run that the config of a trainer describes; nothing is made or compiled.

    `spec` is one of those of its input; by default, the one that has the most units.
    """
    spec = spec or largest(cfg.input.batch_specs())
    parts = parts_of(cfg, spec).values()
    return Size(
        sum(part.parameters for part in parts),
        spec.unit,
        spec.num_units,
        sum(part.flops_per_unit for part in parts),
        sum(part.full_flops_per_unit for part in parts),
    )


def parts_of(cfg: "Trainer.Config", spec: BatchSpec | None = None) -> dict[str, Part]:
    """Returns what each module with parameters or work of its own takes, by path; nothing is made or compiled.

    The state of the learner that belongs to no parameter is at `learner`.
    """
    spec = spec or largest(cfg.input.batch_specs())
    # All goes to every expert that is chosen for it, and none is a row more.
    model = replace_all(Dispatch.Config, lambda _: Dropless.Config(), missing="ok")(cfg.model).build(path="model")
    tree, params = specs(model), abstract(model)
    learner = cfg.learner.build(path="learner", specs=tree, steps=cfg.steps)
    assert isinstance(learner, Learner)
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(Part._fields))
    owners = jax.tree_util.tree_map_with_path(_owner, params)
    for owner, leaf in zip(jax.tree.leaves(owners), jax.tree.leaves(params), strict=True):
        found[owner][0] += leaf.size
        found[owner][1] += _bytes(leaf)
    state = jax.eval_shape(learner.init, params)
    for owner, leaf in zip(
        jax.tree.leaves(learner.like_params(params, owners, "learner")), jax.tree.leaves(state), strict=True
    ):
        found[owner][2] += _bytes(leaf)
    key = jax.eval_shape(lambda: jax.random.key(0))
    inputs = (params, learner.trainable, abstract_batch(spec), key)
    for scope, work in training_flops_by_scope(loss_function(model, dtype=None), *inputs).items():
        place = found[config_path([scope], tree) or "model"]
        place[3] += work.flops / spec.num_units
        place[4] += work.full / spec.num_units
    return {path: Part(*map(int, values[:3]), *values[3:]) for path, values in found.items()}


def _owner(keys: tuple[Any, ...], leaf: Any) -> str:
    """Returns the path of the module that a parameter belongs to."""
    return ".".join(["model", *(key.key for key in keys[:-1])])


def _bytes(leaf: Any) -> int:
    return leaf.size * leaf.dtype.itemsize
