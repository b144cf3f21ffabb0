# SPDX-License-Identifier: Apache-2.0
"""Hyper-connections: several residual streams, which each branch of each block reads, mixes and writes in its own way.

Reference: Zhu et al., Hyper-Connections, 2024 (arXiv:2409.19606), the dynamic ones.

    dovetail train examples/hyper_connections.py:run

Shape letters: B batch, T time, N streams, D model dim.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail.config import REQUIRED, replace_all
from dovetail.module import constant
from dovetail.nn import Add, Connection, Context, Layer
from dovetail.ops import rms_norm
from dovetail.zoo import recipe


class HyperConnection(Connection):
    """A branch reads a weighted sum of the streams, and writes to all of them; the weights depend on the token."""

    class Config(Connection.Config):
        streams: int = 4
        start: int = 0  # The stream that a new branch reads.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        n = cfg.streams
        first = np.eye(n)[cfg.start % n]
        self.param("reads", (n,), axes=(None,), init=lambda key, spec: jnp.asarray(first, spec.dtype))
        self.param("mixes", (n, n), axes=(None, None), init=lambda key, spec: jnp.eye(n, dtype=spec.dtype))
        self.param("writes", (n,), axes=(None,), init=constant(1.0))
        self.param("dynamic", (cfg.dim, n + 2), axes=("embed", None), init=constant(0.0))
        self.param("scale", (), axes=(), init=constant(0.01))

    def read(self, h: Array, context: Context) -> Array:
        reads, _, _ = self._weights(h)
        return jnp.einsum("btn,btnd->btd", reads, h)

    def write(self, h: Array, y: Array, context: Context) -> Array:
        _, mixes, writes = self._weights(h)
        return jnp.einsum("btnm,btnd->btmd", mixes, h) + writes[..., None] * y[:, :, None]

    def _weights(self, h: Array) -> tuple[Array, Array, Array]:
        """Returns what is read `[B, T, N]`, mixed `[B, T, N, N]` and written `[B, T, N]`."""
        change = jnp.tanh(rms_norm(h, None, eps=1e-6) @ self.dynamic) * self.scale
        return self.reads + change[..., 0], self.mixes + change[..., 2:], self.writes + change[..., 1]


class Streams(Layer):
    """Gives layers as many copies of the stream as their connections expect, and returns the sum of what comes out."""

    class Config(Layer.Config):
        inner: Layer.Config = REQUIRED
        streams: int = 4

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.inner = self.child("inner", cfg.inner.set(dim=cfg.dim))

    def forward(self, x: Array, context: Context) -> Array:
        copies = jnp.broadcast_to(x[:, :, None], (*x.shape[:2], self.cfg.streams, x.shape[2]))
        return jnp.sum(self.inner(copies, context), axis=2)


def with_hyper_connections(cfg, streams: int = 4):
    cfg = replace_all(Add.Config, HyperConnection.Config(streams=streams), at="model.stack.*")(cfg)
    return cfg.set_in("model.stack", Streams.Config(inner=cfg.model.stack, streams=streams))


def run():
    return with_hyper_connections(recipe("llama3-tiny"))
