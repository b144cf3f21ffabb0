# SPDX-License-Identifier: Apache-2.0
"""Layers and models in NumPy, in float64, written from their definitions: they share no code with `dovetail`.

Slow on purpose: attention is a loop over queries. Parameters are the trees of `dovetail.module.init`, as float64.

Shape letters: B batch, T queries, S keys, H query heads, G key heads, K head dim, D model dim, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.ops import EMPTY, And, Causal, Full, Mask, Or, Prefix, SameSegment, SlidingWindow, Written

# A token, as masks see it: place in the row, document (None: there is but one), whether it belongs to a prefix.
Token = tuple[int, int | None, bool]


def sees(mask: Mask, query: Token, key: Token) -> bool:
    """Says whether `query` may see `key`, by the words that define each mask."""
    match mask:
        case Full():
            return True
        case Causal():
            return key[0] <= query[0]
        case SlidingWindow(size):
            return key[0] > query[0] - size
        case SameSegment():
            return query[1] is None or key[1] is None or query[1] == key[1]
        case Prefix():
            return key[2]
        case Written():
            return key[0] != EMPTY
        case And(a, b):
            return sees(a, query, key) and sees(b, query, key)
        case Or(a, b):
            return sees(a, query, key) or sees(b, query, key)
    raise TypeError(mask)


def seen(mask: Mask, queries: Sequence[Token], keys: Sequence[Token]) -> np.ndarray:
    """Returns the table `[T, S]` of who sees whom in one row."""
    return np.array([[sees(mask, q, k) for k in keys] for q in queries], bool).reshape(len(queries), len(keys))


def rms_norm(x: Any, scale: Any, eps: float) -> Any:
    """Zhang and Sennrich, 2019, equation 4."""
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return y if scale is None else y * scale


def layer_norm(x: Any, scale: Any, bias: Any, eps: float) -> Any:
    """Ba, Kiros and Hinton, 2016, equation 4, with the mean of squares minus the square of the mean."""
    mean = x.mean(-1, keepdims=True)
    y = (x - mean) / np.sqrt((x * x).mean(-1, keepdims=True) - mean * mean + eps)
    y = y if scale is None else y * scale
    return y if bias is None else y + bias


def rotate(x: Any, positions: Any, theta: float, frequencies: Any = None) -> Any:
    """Su et al., 2021: dimensions i and i + K / 2 of `[B, T, H, K]` are a complex number, turned by its position."""
    half = x.shape[-1] // 2
    if frequencies is None:
        frequencies = np.array([theta ** (-2 * i / x.shape[-1]) for i in range(half)])
    turn = np.exp(1j * np.asarray(positions, np.float64)[..., None, None] * frequencies)
    turned = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)


def attend(
    q: Any,
    k: Any,
    v: Any,
    allowed: Any,
    scale: float,
    *,
    soft_cap: float | None = None,
    slopes: Any = None,
    sinks: Any = None,
) -> Any:
    """Attention, one query of one head at a time; `allowed` is `[B, T, S]`. Who sees nobody gets zeros.

    With slopes, the score falls by the slope of the head for each place between query and key.
    """
    batch, length, heads, _ = q.shape
    out = np.zeros((batch, length, heads, v.shape[-1]))
    group = heads // k.shape[2]
    for b in range(batch):
        for t in range(length):
            keys = np.flatnonzero(allowed[b, t])
            for h in range(heads if len(keys) else 0):
                scores = k[b, keys, h // group] @ q[b, t, h] * scale
                scores = scores if soft_cap is None else soft_cap * np.tanh(scores / soft_cap)
                scores = scores if slopes is None else scores - slopes[h] * abs(t - keys)
                weights = np.exp(scores - scores.max())
                total = weights.sum() + (0.0 if sinks is None else np.exp(sinks[h] - scores.max()))
                out[b, t, h] = weights @ v[b, keys, h // group] / total
    return out


def token_loss(logits: Any, targets: Any, weights: Any, z_loss: float = 0.0) -> tuple[float, float, float, float]:
    """Sums of cross-entropy, weight, weight of the hits and z-loss, one token at a time."""
    loss = correct = z = 0.0
    for row, target, weight in zip(logits, targets, weights, strict=True):
        log_z = math.log(sum(math.exp(value) for value in row))
        loss += weight * (log_z - row[target])
        z += weight * z_loss * log_z**2
        correct += weight * (np.argmax(row) == target)
    return loss, float(np.sum(weights)), correct, z


def gelu(x: Any) -> Any:
    """Hendrycks and Gimpel, 2016, section 2, by the tangent, as in GPT-2."""
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Any) -> Any:
    """Returns `x` times its sigmoid."""
    return x / (1 + np.exp(-x))


def linear(p: Any, x: Any, num_in: int = 1) -> Any:
    """Multiplies the last `num_in` dimensions of `x` by the weight, as matrices, and adds the bias if there is one."""
    weight = p["weight"]
    split = x.ndim - num_in
    y = x.reshape(math.prod(x.shape[:split]), -1) @ weight.reshape(math.prod(weight.shape[:num_in]), -1)
    return y.reshape(*x.shape[:split], *weight.shape[num_in:]) + p.get("bias", 0.0)


def norm(p: Any, x: Any, kind: str) -> Any:
    """Applies a norm layer with the eps that is its default."""
    return rms_norm(x, p["scale"], 1e-6) if kind == "rms" else layer_norm(x, p["scale"], p.get("bias"), 1e-5)


def feed_forward(p: Any, x: Any) -> Any:
    """Gated with silu if there is a gate, otherwise dense with gelu."""
    if "gate" in p:
        return linear(p["down"], silu(linear(p["gate"], x)) * linear(p["up"], x))
    return linear(p["down"], gelu(linear(p["up"], x)))


def causal_conv(p: Any, x: Any, segments: Any) -> Any:
    """The convolution layer: each channel with what it was a few positions before in the same document, then silu."""
    out, width = np.zeros(x.shape), len(p["weight"])
    for b, t in np.ndindex(*x.shape[:2]):
        for back in range(min(width, t + 1)):
            if segments[b, t - back] == segments[b, t]:
                out[b, t] += p["weight"][width - 1 - back] * x[b, t - back]
    return silu(out + p.get("bias", 0.0))


def qk_norm(p: Any, x: Any, each_head: bool) -> Any:
    """Normalises heads `[B, T, H, K]`, or all of them as one vector if there is a scale for each number of it."""
    if each_head:
        return rms_norm(x, p["scale"].reshape(x.shape[2:]), 1e-6)
    flat = x if p["scale"].size == x.shape[-1] else x.reshape(*x.shape[:2], -1)
    return rms_norm(flat, p["scale"], 1e-6).reshape(x.shape)


def attention(
    p: Any,
    x: Any,
    *,
    allowed: Any,
    positions: Any,
    theta: float | None = 1e4,
    scale: Any = None,
    each_head: bool = False,
    clip: float = math.inf,
    **scores: Any,
) -> Any:
    """The attention layer; the numbers of heads are those of the weights; `theta` None is without rotation."""
    q, k, v = (linear(p[name], x) for name in ("query", "key", "value"))
    q = qk_norm(p["query_norm"], q, each_head) if "query_norm" in p else q
    k = qk_norm(p["key_norm"], k, each_head) if "key_norm" in p else k
    q, k, v = (np.where(y > clip, clip, np.where(y < -clip, -clip, y)) for y in (q, k, v))
    if theta is not None:
        q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    attended = attend(q, k, v, allowed, scale, sinks=p.get("sink"), **scores)
    attended = attended / (1 + np.exp(-linear(p["gate"], x))) if "gate" in p else attended
    return linear(p["out"], attended, num_in=2)


def latent_attention(p: Any, x: Any, *, allowed: Any, positions: Any, theta: float = 1e4) -> Any:
    """DeepSeek-AI, 2024, equations 9 to 11 and 14 to 19: keys and values of each head, then plain attention."""
    c = x
    if "query_down" in p:
        c = rms_norm(linear(p["query_down"], x), p["query_norm"]["scale"], 1e-6)
    latent = rms_norm(linear(p["kv_down"], x), p["kv_norm"]["scale"], 1e-6)
    q, k, v = linear(p["query"], c), linear(p["key_up"], latent), linear(p["value_up"], latent)
    shared = rotate(linear(p["key_rope"], x), positions, theta)
    k = np.concatenate([k, np.repeat(shared, k.shape[2], axis=2)], axis=-1)
    nope = q.shape[-1] - shared.shape[-1]
    q = np.concatenate([q[..., :nope], rotate(q[..., nope:], positions, theta)], axis=-1)
    return linear(p["out"], attend(q, k, v, allowed, 1 / math.sqrt(q.shape[-1])), num_in=2)


def block(p: Any, x: Any, *, kind: str = "rms", **kwargs: Any) -> Any:
    """The pre-norm block."""
    x = x + attention(p["mixer"], norm(p["mixer_norm"], x, kind), **kwargs)
    return x + feed_forward(p["ffn"], norm(p["ffn_norm"], x, kind))


def stack(p: Any, x: Any, **kwargs: Any) -> Any:
    """Blocks one after the other, of stacked parameters."""
    for i in range(len(p["layer"]["mixer_norm"]["scale"])):
        x = block(at(p["layer"], i), x, **kwargs)
    return x


def at(tree: Any, i: int) -> Any:
    """Returns the parameters of layer `i` of a stack."""
    return {name: at(below, i) if isinstance(below, dict) else below[i] for name, below in tree.items()}


def causal_lm(p: Any, ids: Any, *, kind: str = "rms", theta: float | None = 1e4, segments: Any = None) -> Any:
    """The language model: ids `[B, T]` to logits `[B, T, V]`; positions are the places in the row."""
    batch, length = ids.shape
    places = np.arange(length)
    x = p["embedding"]["table"][ids]
    if "position" in p:
        x = x + p["position"]["table"][places]
    allowed = np.broadcast_to(places[:, None] >= places[None, :], (batch, length, length))
    if segments is not None:
        allowed = allowed & (segments[:, :, None] == segments[:, None, :])
    positions = np.broadcast_to(places, (batch, length))
    x = norm(p["norm"], stack(p["stack"], x, kind=kind, allowed=allowed, positions=positions, theta=theta), kind)
    return linear(p["head"], x) if "head" in p else x @ p["embedding"]["table"].T
