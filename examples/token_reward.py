# SPDX-License-Identifier: Apache-2.0
"""A reward for each token, as one more field of the batch: the model learns more from what is rewarded more.

dovetail train examples/token_reward.py:run
"""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail.config import REQUIRED
from dovetail.data import BatchSpec, Field, NumberedInput, ShippedCorpus
from dovetail.models import CausalLM
from dovetail.module import Loss, Objective
from dovetail.zoo import recipe


class Rewarded(Objective):
    """Minimises minus the sum of `reward * log p(token)`."""

    class Config(Objective.Config):
        model: CausalLM.Config = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.model = self.child("model", cfg.model)

    def loss(self, batch: Mapping[str, Array]) -> Loss:
        """Returns the loss of `tokens`, `targets` and `rewards`, all `[B, T]`."""
        scores, rewards = self.model.log_probs({name: batch[name] for name in ("tokens", "targets")}), batch["rewards"]
        gained = jnp.sum(rewards * scores)
        return Loss(-gained, jnp.asarray(float(rewards.size)), {"reward": (gained, jnp.sum(rewards))})


class RewardedText(NumberedInput):
    """Moby Dick as bytes; vowels are worth twice as much as other letters, and spaces nothing."""

    class Config(NumberedInput.Config):
        length: int = 64

        def batch_specs(self) -> tuple[BatchSpec, ...]:
            shape, axes = (self.batch_size, self.length), ("batch", "seq")
            dtypes = {"tokens": "int32", "targets": "int32", "rewards": "float32"}
            fields = {name: Field(shape, dtype, axes) for name, dtype in dtypes.items()}
            return (BatchSpec(fields, unit="token", units=self.batch_size * self.length),)

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        corpus = ShippedCorpus.Config().build()
        text = "\n".join(str(corpus[i].content) for i in range(len(corpus)))
        self._text = np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def row(self, number: int) -> dict[str, np.ndarray]:
        start = number * self.cfg.length % (len(self._text) - self.cfg.length - 1)
        tokens, targets = (self._text[start + i : start + i + self.cfg.length] for i in range(2))
        rewards = np.where(np.isin(targets, list(b"aeiou")), 2.0, np.where(targets == ord(" "), 0.0, 1.0))
        return {"tokens": tokens, "targets": targets, "rewards": rewards}


def with_rewards(cfg):
    return cfg.set(model=Rewarded.Config(model=cfg.model), input=RewardedText.Config(batch_size=8), evaluators={})


def run():
    return with_rewards(recipe("llama3-tiny"))
