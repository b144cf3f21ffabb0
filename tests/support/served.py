# SPDX-License-Identifier: Apache-2.0
"""Small models behind a real engine, and what their answers must be."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.module import call
from dovetail.parallel import Mesh
from dovetail.serve import Progress, Request, Serving
from dovetail.train import Program, Trained
from dovetail.zoo import recipe
from support.models import random_values

SMALL = Serving(slots=3, page=4, max_length=48, rows=(1,), chunks=(4, 12), snapshots=3, max_logprobs=3)


def trained(name: str, mesh: Mesh | None = None) -> Trained:
    """Returns a recipe's model with random parameters: not as at the start of training, so that every part counts."""
    cfg = recipe(name)
    program = Program(cfg if mesh is None else cfg.set(mesh=mesh), trains=False)
    params = random_values(program.model)
    if program.shardings is not None:
        params = jax.device_put(params, program.devices.everywhere)
    return Trained(program, params, 0)


class Reference:
    """The model without state, on one device: each row from its first token, by itself."""

    def __init__(self, model: Trained, length: int) -> None:
        self._model, self._length = model.program.cfg.model.build(), length
        self._params = jax.tree.map(np.asarray, model.params)
        self._run = jax.jit(lambda params, ids: jax.nn.log_softmax(call(self._model, params, ids)[0][0], axis=-1))

    def logprobs(self, tokens: Sequence[int]) -> np.ndarray:
        """Returns the log-probabilities of the token after each, `[T, V]`."""
        padded = jnp.zeros((1, self._length), jnp.int32).at[0, : len(tokens)].set(jnp.asarray(tokens, jnp.int32))
        return np.asarray(self._run(self._params, padded))[: len(tokens)]


def check_answer(reference: Reference, request: Request, answer: Progress) -> None:
    """Raises unless a greedy answer is what the model says without state: tokens, and their log-probabilities."""
    ids = [token.id for token in answer.tokens]
    found = reference.logprobs([*request.tokens, *ids])[len(request.tokens) - 1 : -1]
    best = found.max(axis=-1)
    chosen = found[np.arange(len(ids)), ids]
    np.testing.assert_allclose(chosen, best, atol=1e-5)  # The most likely token, or one of equals.
    if request.logprobs is not None:
        given = np.array([token.logprob for token in answer.tokens])
        np.testing.assert_allclose(given, chosen, atol=1e-5)
        tops = np.array([[logprob for _, logprob in token.top] for token in answer.tokens])
        np.testing.assert_allclose(tops, -np.sort(-found, axis=-1)[:, : tops.shape[1]], atol=1e-5)


def prompts(rng: Any, count: int, vocab_size: int, longest: int) -> list[tuple[int, ...]]:
    """Returns prompts of random lengths; some begin as others do."""
    made: list[tuple[int, ...]] = []
    for _ in range(count):
        fresh = tuple(map(int, rng.integers(0, vocab_size, rng.integers(1, longest))))
        if made and rng.random() < 0.5:
            other = made[rng.integers(len(made))]
            fresh = (*other[: rng.integers(1, len(other) + 1)], *fresh)[:longest]
        made.append(fresh)
    return made
