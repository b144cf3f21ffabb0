# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts in NumPy, in float64, one token at a time; they share no code with `dovetail`.

Parameters are the trees of `dovetail.module.init`, as float64.

Shape letters: N tokens, k experts of each token, E experts, D model dim.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from support.reference import feed_forward


def route(
    p: Any,
    x: Any,
    *,
    top_k: int = 2,
    score: str = "softmax",
    normalize: bool = True,
    scale: float = 1.0,
    num_groups: int = 1,
    top_groups: int = 1,
    group_score: str = "top_two",
) -> tuple[Any, Any]:
    """Returns weights `[N, k]` and experts `[N, k]`, from the words that define each field."""
    weights, experts = [], []
    for token in x:
        scores = scored(p, token, score)
        biased = scores + p.get("selection_bias", 0.0)
        order = [e for _, e in sorted((-s, e) for e, s in enumerate(biased))]
        members = np.arange(len(scores)).reshape(num_groups, -1)
        best = [sum(sorted(biased[group])[-1 if group_score == "max" else -2 :]) for group in members]
        groups = [g for _, g in sorted((-s, g) for g, s in enumerate(best))][:top_groups]
        chosen = [e for e in order if any(e in members[g] for g in groups)][:top_k]
        own = scores[chosen]
        weights.append(scale * own / own.sum() if normalize else scale * own)
        experts.append(chosen)
    return np.array(weights), np.array(experts)


def scored(p: Any, token: Any, score: str) -> Any:
    """Returns the scores `[E]` of one token."""
    logits = token @ p["weight"] + p.get("bias", 0.0)
    return np.exp(logits) / np.exp(logits).sum() if score == "softmax" else 1 / (1 + np.exp(-logits))


def expert(p: Any, row: Any, e: int, function: Callable[[Any, Any], Any] = feed_forward) -> Any:
    """Applies expert `e` to one row."""
    return function({name: {key: value[e] for key, value in below.items()} for name, below in p.items()}, row)


def mixture(p: Any, x: Any, function: Callable[[Any, Any], Any] = feed_forward, **fields: Any) -> Any:
    """Maps `[B, T, D]`: for each token the weighted sum of its experts, plus the shared one if there is one."""
    tokens = x.reshape(-1, x.shape[-1])
    weights, experts = route(p["router"], tokens, **fields)
    out, own = np.zeros_like(tokens), {name: p[name] for name in ("gate", "up", "down") if name in p}
    for n, token in enumerate(tokens):
        for weight, e in zip(weights[n], experts[n], strict=True):
            out[n] += weight * expert(own, token, e, function)
    return out.reshape(x.shape) + (feed_forward(p["shared"], x) if "shared" in p else 0.0)
