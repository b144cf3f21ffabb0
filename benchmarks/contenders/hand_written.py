# SPDX-License-Identifier: Apache-2.0
"""The training step in JAX and optax without a framework: functions of arrays, as fast as we know to write it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _problem import Problem, problem, serve

BLOCK = 256  # Queries of a causal block; each block sees only keys up to its end.


def rms_norm(x: Any, scale: Any, eps: float) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(q: Any, k: Any, v: Any) -> Any:
    length, out = q.shape[1], []
    for start in range(0, length, BLOCK):
        stop = min(start + BLOCK, length)
        scores = jnp.einsum("bthk,bshk->bhts", q[:, start:stop], k[:, :stop]) * q.shape[-1] ** -0.5
        allowed = np.arange(start, stop)[:, None] >= np.arange(stop)[None, :]
        weights = jax.nn.softmax(jnp.where(allowed, scores, -1e30), axis=-1)
        out.append(jnp.einsum("bhts,bshk->bthk", weights, v[:, :stop]))
    return jnp.concatenate(out, axis=1)


def loss_fn(params: Any, tokens: Any, targets: Any, data: Problem) -> Any:
    frequencies = data.theta ** (-np.arange(0, data.head_dim, 2, dtype=np.float32) / data.head_dim)
    angles = np.arange(data.seq_len, dtype=np.float32)[:, None, None] * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    x = params["embedding"][tokens]
    heads = (*tokens.shape, data.num_heads, data.head_dim)
    for layer in params["layers"]:
        h = rms_norm(x, layer["attention_norm"], data.rms_eps)
        q = rotate((h @ layer["query"]).reshape(heads), cos, sin)
        k = rotate((h @ layer["key"]).reshape(heads), cos, sin)
        v = (h @ layer["value"]).reshape(heads)
        x = x + attention(q, k, v).reshape(x.shape) @ layer["out"]
        h = rms_norm(x, layer["ffn_norm"], data.rms_eps)
        x = x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"]
    logits = rms_norm(x, params["norm"], data.rms_eps) @ params["embedding"].T
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))


def main() -> None:
    jax.config.update("jax_numpy_dtype_promotion", "standard")  # As optax wants it, whatever the environment says.
    data = problem()
    weights = {name: jnp.asarray(value) for name, value in data.weights().items()}
    alone = {name: weights.pop(name) for name in ("embedding", "norm")}
    params = {**alone, "layers": [{name: w[i] for name, w in weights.items()} for i in range(data.num_layers)]}
    del weights, alone
    optimizer = optax.chain(
        optax.clip_by_global_norm(data.clip_norm),
        optax.adamw(
            data.learning_rate,
            data.b1,
            data.b2,
            data.adam_eps,
            weight_decay=data.weight_decay,
            mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params),
        ),
    )

    def step(params: Any, slots: Any, tokens: Any, targets: Any) -> tuple[Any, Any, Any]:
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens, targets, data)
        updates, slots = optimizer.update(grads, slots, params)
        return optax.apply_updates(params, updates), slots, loss

    state = params, optimizer.init(params)
    del params
    shape = jax.ShapeDtypeStruct((data.batch_size, data.seq_len), jnp.int32)
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*state, shape, shape).compile()
    memory: Any = compiled.memory_analysis()

    def run(tokens: np.ndarray, targets: np.ndarray) -> float:
        nonlocal state
        params, slots, loss = compiled(*state, tokens, targets)
        state = params, slots
        return float(jax.block_until_ready((loss, params))[0])

    serve(run, data, versions={"jax": jax.__version__}, temporary_bytes=memory.temp_size_in_bytes)


if __name__ == "__main__":
    main()
