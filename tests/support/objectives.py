# SPDX-License-Identifier: Apache-2.0
"""Objectives and inputs as a user would write them: pairs of answers with a reference model, images with captions."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail.config import REQUIRED
from dovetail.data import BatchSpec, Field, NumberedInput
from dovetail.models import CausalLM
from dovetail.module import Loss, Objective
from dovetail.nn import DenseLinear, Linear

WORDS = 11  # As `support.models.lm` has them.


class Pairs(NumberedInput):
    """Two answers in each row, the better one first."""

    class Config(NumberedInput.Config):
        seq_len: int = 6
        num_pairs: int | None = None
        seed: int = 0

        def batch_specs(self):
            shape, axes = (self.batch_size, 2, self.seq_len), ("batch", None, "seq")
            fields = {name: Field(shape, "int32", axes) for name in ("tokens", "targets")}
            fields["weights"] = Field(shape, "float32", axes, padding=0)
            return (BatchSpec(fields, unit="pair"),)

    @property
    def num_rows(self) -> int | None:
        return self.cfg.num_pairs

    def bounds(self) -> Mapping[str, int]:
        return {"tokens": WORDS, "targets": WORDS}

    def row(self, number: int) -> Mapping[str, Any]:
        rng, length = np.random.default_rng((self.cfg.seed, number)), self.cfg.seq_len
        ids = rng.integers(0, WORDS, (2, length + 1))
        real = np.arange(length) < rng.integers(1, length + 1, (2, 1))
        return {"tokens": ids[:, :-1], "targets": ids[:, 1:], "weights": real}


class Preference(Objective):
    """Direct preference optimisation: the better answer becomes more likely, measured by a reference that stays."""

    class Config(Objective.Config):
        values_below: ClassVar[Mapping[str, str]] = {"tokens": "policy.vocab_size"}
        policy: CausalLM.Config = REQUIRED
        reference: CausalLM.Config = REQUIRED
        beta: float = 0.5

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.policy = self.child("policy", cfg.policy)
        self.reference = self.child("reference", cfg.reference, frozen=True)

    def loss(self, batch: Mapping[str, Array]) -> Loss:
        flat = {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in ("tokens", "targets", "weights")}
        gain = self.policy.log_probs(flat) - self.reference.log_probs(flat)
        better, worse = jnp.sum(gain.reshape(batch["weights"].shape), axis=-1).T
        counts = jnp.any(batch["weights"] > 0, axis=(1, 2)).astype(jnp.float32)
        losses = -jax.nn.log_sigmoid(self.cfg.beta * (better - worse))
        right = (better > worse).astype(jnp.float32)
        return Loss(jnp.sum(losses * counts), jnp.sum(counts), {"right": (jnp.sum(right * counts), jnp.sum(counts))})


class Captions(NumberedInput):
    """Images and what is said about them, as numbers; the last ones are few."""

    class Config(NumberedInput.Config):
        num_images: int | None = None
        seed: int = 0

        def batch_specs(self):
            rows = self.batch_size
            fields = {
                "image": Field((rows, 4, 4, 3), "float32", ("batch", None, None, None)),
                "caption": Field((rows, 5), "float32", ("batch", None)),
                "weight": Field((rows,), "float32", ("batch",), padding=0),
            }
            return (BatchSpec(fields, unit="image", counted="weight"),)

    @property
    def num_rows(self) -> int | None:
        return self.cfg.num_images

    def row(self, number: int) -> Mapping[str, Any]:
        rng = np.random.default_rng((self.cfg.seed, number))
        return {"image": rng.normal(size=(4, 4, 3)), "caption": rng.normal(size=5), "weight": 1.0}


class Matching(Objective):
    """Maps images and captions to points; with `contrast`, an image must be nearest to its own of all captions."""

    class Config(Objective.Config):
        dim: int = 8
        image: Linear.Config = DenseLinear.Config()
        caption: Linear.Config = DenseLinear.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        out = {"out_shape": (cfg.dim,), "out_axes": ("embed",)}
        self.image = self.child("image", cfg.image.set(in_shape=(4, 4, 3), in_axes=(None, None, None), **out))
        self.caption = self.child("caption", cfg.caption.set(in_shape=(5,), in_axes=(None,), **out))

    def points(self, batch: Mapping[str, Array]) -> tuple[Array, Array]:
        """Returns the points of images and captions, `[B, dim]` each."""
        return self.image(batch["image"]), self.caption(batch["caption"])

    def loss(self, batch: Mapping[str, Array]) -> Loss:
        image, caption = self.points(batch)
        apart = jnp.sum(jnp.square(image - caption), axis=-1)
        self.summary("apart", jnp.mean(apart))
        self.add_loss("size", 0.1 * jnp.mean(jnp.square(image)))
        near = (apart < 5).astype(jnp.float32) * batch["weight"]
        first = batch["weight"] * batch["caption"][:, 0] ** 2  # A metric with a weight of its own.
        sums = {"near": (jnp.sum(near), jnp.sum(batch["weight"])), "first": (jnp.sum(near * first), jnp.sum(first))}
        return Loss(jnp.sum(apart * batch["weight"]), jnp.sum(batch["weight"]), sums)


class Contrast(Objective):
    """Each image must be nearest to its own of all captions of the batch."""

    sums_over_rows: ClassVar[bool] = False

    class Config(Objective.Config):
        pairs: Matching.Config = Matching.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.pairs = self.child("pairs", cfg.pairs)

    def loss(self, batch: Mapping[str, Array]) -> Loss:
        image, caption = self.pairs.points(batch)
        weight = batch["weight"]
        scores = jnp.where(weight[None] > 0, image @ caption.T, -1e9)
        losses = jax.nn.logsumexp(scores, axis=-1) - jnp.diagonal(scores)
        return Loss(jnp.sum(losses * weight), jnp.sum(weight))
