# SPDX-License-Identifier: Apache-2.0
"""The features of `examples/`, each on a dense, a MoE and a hybrid model, as small as they can be."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dovetail.config import fields_of, modify
from dovetail.module import init
from dovetail.nn import Repeat
from dovetail.optim import ConstantSchedule
from dovetail.parallel import Mesh
from dovetail.train import JsonLines, Program, Trainer, gradients_of
from dovetail.zoo import recipe
from examples import (
    annealed_loss,
    carried_state,
    dpo,
    hyper_connections,
    logit_lens,
    mixture_of_depths,
    ngpt,
    per_layer_embeddings,
    shared_kv,
    token_reward,
    value_residual,
)
from sharding_cases import TOLERANCE

KINDS = {"dense": "llama3-tiny", "moe": "mixtral-tiny", "hybrid": "hybrid-tiny"}
FEATURES: dict[str, Callable[[Trainer.Config], Trainer.Config]] = {
    "value_residual": value_residual.with_value_residual,
    "shared_kv": modify(Repeat.Config, shared_kv.with_shared_kv),
    "per_layer_embeddings": per_layer_embeddings.with_layer_embeddings,
    "hyper_connections": hyper_connections.with_hyper_connections,
    "ngpt": ngpt.with_ngpt,
    "mixture_of_depths": mixture_of_depths.with_mixture_of_depths,
    "annealed_loss": annealed_loss.with_annealed_losses,
    "carried_state": carried_state.with_carried_state,
    "dpo": lambda cfg: dpo.with_dpo(cfg, "nowhere").set(init_from=None),
    "token_reward": token_reward.with_rewards,
    "logit_lens": logit_lens.with_logit_lens,
}
ROWS, LENGTH = 8, 16
ALONE = Mesh()


def small(kind: str, layers: int = 2) -> Trainer.Config:
    """Returns a small run of one kind of model; of layers, or pairs of them in a hybrid, so many."""
    cfg = recipe(KINDS[kind]).set_in("input.seq_len", LENGTH).set_in("input.batch_size", ROWS)
    if kind == "hybrid":  # A state-space layer and attention, in turn.
        cfg = cfg.set_in("model.stack.layer", cfg.get_in("model.stack.layer")[:2])
    return cfg.set_in("model.stack.num_layers", 2 * layers if kind == "hybrid" else layers)


def applied(feature: str, kind: str) -> Trainer.Config:
    """Returns a small run of one kind of model with a feature."""
    layers = 4 if feature == "shared_kv" else 2  # Of which two make one: a pipeline wants two of these.
    cfg = FEATURES[feature](small(kind, layers))
    return cfg.set_in("input.length", LENGTH) if "length" in fields_of(cfg.input) else cfg


def unrolled(cfg: Trainer.Config) -> Trainer.Config:
    """Returns the same run with loops over layers written out."""
    return modify(Repeat.Config, lambda old: old.set(loop="unroll"))(cfg)


def language_model(feature: str, tree: Any) -> Any:
    """Returns what decodes, of the config of a model with a feature, or of its parameters: it, or a child of it."""
    name = {"dpo": "policy", "token_reward": "model", "carried_state": "model"}.get(feature)
    if name is None:
        return tree
    return tree[name] if isinstance(tree, dict) else getattr(tree, name)


def shortened(cfg: Trainer.Config, directory: Path, steps: int = 4) -> Trainer.Config:
    """Returns the same run for a few steps, with a rate at which that many show."""
    learner = cfg.learner.set(schedule=ConstantSchedule.Config(peak=1e-2))
    return cfg.set(learner=learner, steps=steps, directory=str(directory), observers=(JsonLines.Config(),), log_every=1)


def reported(cfg: Trainer.Config) -> list[dict[str, Any]]:
    """Returns all that a run has reported so far."""
    return [json.loads(line) for line in (Path(cfg.directory) / "metrics.jsonl").read_text("utf-8").splitlines()]


def initial(cfg: Trainer.Config) -> Any:
    """Returns the parameters that a run starts from, as it computes them."""
    return jax.jit(functools.partial(init, cfg.model.build(path="model")))(jax.random.key(cfg.seed))


class Gradients(NamedTuple):
    """What a run computes of its first batch, for some parameters."""

    loss: float
    gradients: Any

    @property
    def norm(self) -> float:
        return float(
            np.sqrt(sum(np.sum(np.square(leaf, dtype=np.float64)) for leaf in jax.tree.leaves(self.gradients)))
        )

    def error(self, want: "Gradients") -> tuple[float, str]:
        """Returns the largest error, by the measure of the sharding contract, and where it is."""

        def one(got: Any, want: Any) -> float:
            return float(np.max(np.abs(got - want)) / max(np.max(np.abs(want)), 1e-6))

        leaves = zip(jax.tree_util.tree_leaves_with_path(self.gradients), jax.tree.leaves(want.gradients), strict=True)
        errors = [(one(got, want), jax.tree_util.keystr(keys)) for (keys, got), want in leaves]
        return max([*errors, (one(self.loss, want.loss), "loss")])


def gradients_on(cfg: Trainer.Config, mesh: Mesh = ALONE, parts: int = 1) -> Callable[[Any], Gradients]:
    """Returns the function from parameters to what a run computes on a mesh, the batch in so many microbatches."""
    program = Program(cfg.set(mesh=mesh))
    options = {"num_microbatches": parts, "dtype": None, "layout": program.devices.layout}
    places = None if program.shardings is None else (None, program.shardings.params)
    run = program.devices.jit(gradients_of(program.model, **options), out_shardings=places)
    batch = next(iter(program.devices.batches(cfg.input.build())))

    def compute(params: Any) -> Gradients:
        params = params if places is None else jax.device_put(params, places[1])
        (loss, _, _), gradients = run(params, batch, jax.random.key(0), np.int32(1))
        return Gradients(float(loss), jax.device_get(gradients))

    return compute


def allowed_error(run: Callable[[Any], Gradients], params: Any) -> float:
    """Returns how far a mesh may be from one device, which computes by `run`: see tools/sharding_cases.py."""
    rng, want = np.random.default_rng(0), run(params)

    def rounded(x: Any) -> Any:
        return (x * (1 + rng.choice([-1.0, 1.0], np.shape(x)) * 2.0**-24)).astype(x.dtype)

    noise = [run(jax.tree.map(rounded, params)).error(want)[0] for _ in range(4)]
    return max(TOLERANCE, 4 * max(noise))
