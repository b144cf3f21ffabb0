# SPDX-License-Identifier: Apache-2.0
"""Routers: which experts a token goes to, and with what weights.

Shape letters: N tokens (any number of dimensions), k experts of each token, E experts.
"""

import abc
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, ConfigError, FunctionConfig, config_for
from dovetail.module import Init, Module, UpdateRule, constant, variance_scaling


class Routing(NamedTuple):
    """Where tokens go; no token goes to the same expert twice."""

    weights: Array  # `[*N, k]`, float32.
    experts: Array  # `[*N, k]`, integers below E.


class Router(Module, abc.ABC):
    """The interface: chooses experts for each token."""

    class Config(Module.Config):
        dim: int = REQUIRED
        num_experts: int = REQUIRED

    @abc.abstractmethod
    def forward(self, x: Array) -> Routing:
        """Maps tokens `[*N, dim]` to their experts, the best first."""


class TopKRouter(Router):
    """The experts with the highest scores, weighted by these. Parameters and scores are in float32.

    | model | fields that differ from the defaults |
    | --- | --- |
    | Mixtral, Qwen3-MoE | `top_k` |
    | Switch | `top_k=1, normalize=False` |
    | gpt-oss (softmax after the choice: the same numbers) | `top_k=4, bias=True` |
    | DeepSeek-V2 | `top_k=6, normalize=False, scale=16, num_groups=8, top_groups=3, group_score="max"` |
    | DeepSeek-V3 | `top_k=8, score="sigmoid", scale=2.5, num_groups=8, top_groups=4, selection_rate=1e-3` |

    Experts are kept busy by a loss, `balance_loss * E * sum(load * score)`, where `load` is the share of all choices
    that fell on an expert and `score` its mean score as a share of all: 1 if both are even (Hugging Face's is `top_k`
    times this). Or without a loss: a bias that counts in the choice but not in the weights, and that each training
    step moves by `selection_rate`, up for an expert with less than its share and down for one with more.

    Summaries: the lowest and highest load, 1 being an even one, and the entropy of the load.

    References: Fedus et al., Switch Transformers, 2021 (arXiv:2101.03961), for the balance loss; Zoph et al., ST-MoE,
    2022 (arXiv:2202.08906), for the z-loss; Wang et al., Auxiliary-Loss-Free Load Balancing, 2024 (arXiv:2408.15664),
    for the bias; DeepSeek-AI, DeepSeek-V3, 2024 (arXiv:2412.19437), for the groups.
    """

    class Config(Router.Config):
        top_k: int = 2
        score: Literal["softmax", "sigmoid"] = "softmax"
        normalize: bool = True  # The weights of a token have the sum `scale`.
        scale: float = 1.0
        bias: bool = False  # Of the logits.
        num_groups: int = 1  # Groups of experts are chosen before experts.
        top_groups: int = 1
        group_score: Literal["top_two", "max"] = "top_two"  # Of a group: the sum of its two highest, or its highest.
        selection_rate: float | None = None  # None: there is no such bias.
        balance_loss: float = 0.01
        z_loss: float = 0.0  # Weight of the mean squared logarithm of the sum of all exponentiated logits.
        init: FunctionConfig[Init] = config_for(variance_scaling)

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        _check(self, cfg)
        count = cfg.num_experts
        self.param("weight", (cfg.dim, count), axes=("embed", None), init=cfg.init.build(), cast=False)
        if cfg.bias:
            self.param("bias", (count,), axes=(None,), init=constant(0.0), cast=False)
        if cfg.selection_rate is not None:
            rule = _by_sign(cfg.selection_rate)
            self.state("selection_bias", (count,), axes=(None,), lifetime="run", update_rule=rule)

    def forward(self, x: Array) -> Routing:
        cfg = self.cfg
        logits = jnp.dot(x.astype(jnp.float32), self.weight, precision=jax.lax.Precision.HIGHEST)
        logits = logits + self.bias if cfg.bias else logits
        scores = jax.nn.softmax(logits) if cfg.score == "softmax" else jax.nn.sigmoid(logits)
        # A compiler would bring the scores of all tokens together to choose.
        axes = ("batch", "seq", None)
        experts = self.on_shards(self._chosen, jax.lax.stop_gradient(scores), in_axes=(axes,), out_axes=axes)
        weights = jnp.take_along_axis(scores, experts, axis=-1)
        self._account(logits, scores, experts)
        if cfg.normalize:
            weights = _shares(weights)
        return Routing(weights * cfg.scale, experts)

    def _chosen(self, scores: Array) -> Array:
        cfg = self.cfg
        if cfg.selection_rate is not None:
            scores = scores + self.selection_bias
        if cfg.num_groups > 1:
            grouped = scores.reshape(*scores.shape[:-1], cfg.num_groups, -1)
            counted = 1 if cfg.group_score == "max" else min(2, grouped.shape[-1])
            best = jnp.sum(jax.lax.top_k(grouped, counted)[0], axis=-1)
            chosen = jax.lax.top_k(best, cfg.top_groups)[1]
            allowed = jnp.any(chosen[..., None] == jnp.arange(cfg.num_groups), axis=-2)
            scores = jnp.where(allowed[..., None], grouped, -jnp.inf).reshape(scores.shape)
        return jax.lax.top_k(scores, cfg.top_k)[1]

    def _account(self, logits: Array, scores: Array, experts: Array) -> None:
        """Adds losses and summaries, of all tokens, over whose dimensions a mesh may split them."""
        cfg, count, tokens = self.cfg, self.cfg.num_experts, tuple(range(scores.ndim - 1))
        chosen = jnp.sum(experts[..., None] == jnp.arange(count), axis=tuple(range(experts.ndim)))
        share = chosen.astype(jnp.float32) / max(experts.size, 1)
        load = share * count
        self.summary("load_min", jnp.min(load))
        self.summary("load_max", jnp.max(load))
        self.summary("load_entropy", jnp.sum(jax.scipy.special.entr(share)))
        mean = jnp.mean(_shares(scores), axis=tokens)
        if cfg.selection_rate is not None:
            self.update("selection_bias", load)
        if cfg.balance_loss:
            self.add_loss("balance", cfg.balance_loss * jnp.sum(load * mean))
        if cfg.z_loss:
            self.add_loss("z", cfg.z_loss * jnp.mean(jnp.square(jax.nn.logsumexp(logits, axis=-1))))


def _shares(scores: Array) -> Array:
    """Divides the scores of each token by their sum, which sigmoids may make as small as they like."""
    return scores / (jnp.sum(scores, axis=-1, keepdims=True) + 1e-20)


def _by_sign(rate: float) -> UpdateRule:
    return lambda bias, load: bias - rate * jnp.sign(load - 1)


def _check(router: TopKRouter, cfg: TopKRouter.Config) -> None:
    def expect(ok: bool, field: str, expected: str) -> None:
        if not ok:
            raise ConfigError(f"{router!r}: {field} is {getattr(cfg, field)}, expected {expected}.")

    count = cfg.num_experts
    expect(count >= 1, "num_experts", "at least 1")
    expect(1 <= cfg.num_groups <= count and count % cfg.num_groups == 0, "num_groups", f"a divisor of {count} experts")
    expect(1 <= cfg.top_groups <= cfg.num_groups, "top_groups", f"1 to num_groups ({cfg.num_groups})")
    room = count // cfg.num_groups * cfg.top_groups
    expect(1 <= cfg.top_k <= room, "top_k", f"1 to {room}, the experts of {cfg.top_groups} of {cfg.num_groups} groups")
    expect(0 < cfg.scale < math.inf, "scale", "a positive number")
    for field in ("balance_loss", "z_loss"):
        expect(0 <= getattr(cfg, field) < math.inf, field, "at least 0")
    rate = cfg.selection_rate
    expect(rate is None or 0 <= rate < math.inf, "selection_rate", "at least 0, or None")
    if cfg.top_k == 1 and cfg.normalize and count > 1:
        raise ConfigError(
            f"{router!r}: with top_k 1 and normalize, every weight is {cfg.scale}, whatever the router does: it would\n"
            "  not learn. Use normalize=False."
        )
