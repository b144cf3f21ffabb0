# SPDX-License-Identifier: Apache-2.0
"""Direct preference optimisation: a model learns to prefer one of two answers, measured against where it started.

Reference: Rafailov et al., Direct Preference Optimization, 2023 (arXiv:2305.18290).

    dovetail train llama3-tiny directory=runs/base
    dovetail train examples/dpo.py:run

Pairs of your own: `JsonLines.Config(files=[...], field=("chosen", "rejected"), prompt="prompt")` in place of `Pairs`.

Shape letters: B pairs, T time.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED
from dovetail.data import Document, GroupPacker, ShippedCorpus, Source, TextDataset
from dovetail.models import CausalLM
from dovetail.module import Loss, Objective
from dovetail.train import InitFrom
from dovetail.zoo import recipe


class DPO(Objective):
    """Trains a policy. The reference is a frozen model; None: the policy itself without its adapters."""

    class Config(Objective.Config):
        policy: CausalLM.Config = REQUIRED
        reference: CausalLM.Config | None = None
        beta: float = 0.1

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.policy = self.child("policy", cfg.policy)
        self.reference = self.child("reference", cfg.reference, frozen=True) if cfg.reference else None

    def loss(self, batch: Mapping[str, Array]) -> Loss:
        """Returns the loss of pairs: the fields of a batch are `[B, 2, T]`, the better answer first."""
        answers = {name: values.reshape(-1, values.shape[-1]) for name, values in batch.items()}
        if self.reference is None:
            start = self.without_gradient(self.policy.log_probs, answers, off=["lora"])
        else:
            start = self.reference.log_probs(answers)
        gain = jnp.sum(self.policy.log_probs(answers) - start, axis=1).reshape(-1, 2)
        margin = self.cfg.beta * (gain[:, 0] - gain[:, 1])
        counts = jnp.any(batch["weights"] > 0, axis=(1, 2)).astype(jnp.float32)
        total = jnp.sum(counts)
        metrics = {
            "accuracy": (jnp.sum(jnp.where(margin > 0, counts, 0)), total),
            "margin": (jnp.sum(counts * margin), total),
        }
        return Loss(-jnp.sum(counts * jax.nn.log_sigmoid(margin)), total, metrics)


class Pairs(Source):
    """A line of Moby Dick, better than the same line backwards."""

    def __init__(self, cfg: Source.Config, **kwargs):
        super().__init__(cfg, **kwargs)
        corpus = ShippedCorpus.Config().build()
        lines = [line for i in range(len(corpus)) for line in str(corpus[i].content).splitlines()]
        self._lines = [line for line in lines if len(line) > 32]

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Document:
        return Document(self._lines[index], others=(self._lines[index][::-1],))

    def place(self, index: int) -> str:
        return f"line {index}"

    def size(self) -> int:
        return sum(map(len, self._lines))

    @property
    def group(self) -> int:
        return 2


def with_dpo(cfg, base: str):
    """Returns a run that goes on from the weights of the run in `base`, by preferences."""
    model = DPO.Config(policy=cfg.model, reference=cfg.model)
    sources = tuple(InitFrom(path=base, to=f"model.{part}") for part in ("policy", "reference"))
    pairs = cfg.input.set(dataset=TextDataset.Config(source=Pairs.Config(), packer=GroupPacker.Config()))
    return cfg.set(model=model, input=pairs, init_from=sources, evaluators={})


def run():
    return with_dpo(recipe("llama3-tiny"), "runs/base").set(directory="runs/dpo")
