# SPDX-License-Identifier: Apache-2.0
"""The way of tokens to their experts and back.

A token that goes to k experts is k rows. Both ways here sort the rows by expert; rows of one expert keep the order of
their tokens: by place in the batch, then in the sequence.

Shape letters: N tokens, k experts of each token, M = N k rows, E experts, C rows of each expert, D model dim.
"""

import abc
import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Exchange, Module
from dovetail.ops import permute_rows


class Sent(NamedTuple):
    """Rows grouped by expert, and how they go back."""

    rows: Array  # `[M, D]` sorted by expert, or `[E, C, D]`.
    sizes: Array | None  # `[E]`, how many rows each expert has; None: `rows` has a dimension for the experts.
    source: Array  # For each row in `rows`, where it came from: token * k + choice; M or more: it is empty.
    target: Array  # `[M]`: for each choice of each token, its row; beyond the last: it was dropped.
    exchange: Exchange | None = None  # With the devices that hold the experts; None: they are all here.

    def through(self, experts: Callable[[Array, Array | None], Array]) -> Array:
        """Returns what the experts, a function of rows and sizes, make of the rows, wherever they are."""
        return experts(self.rows, self.sizes) if self.exchange is None else self.exchange(experts, self.rows)


class Dispatch(Module, abc.ABC):
    """The interface: sends tokens to experts, and combines what they return."""

    class Config(Module.Config):
        num_experts: int = REQUIRED

    @staticmethod
    @abc.abstractmethod
    def is_local() -> bool:
        """Whether a device can send its tokens without knowing those of others."""

    @abc.abstractmethod
    def send(self, x: Array, experts: Array) -> Sent:
        """Groups copies of the tokens `[*N, D]` by their experts `[*N, k]`."""

    @abc.abstractmethod
    def combine(self, y: Array, weights: Array, sent: Sent) -> Array:
        """Returns `[*N, D]`: for each token the sum of what its experts made, `y`, times the weights `[*N, k]`."""


class Dropless(Dispatch):
    """Every expert gets all rows that were sent to it, however many there are.

    On a mesh, each device sends its own tokens to the devices of their experts, in as many rounds as it takes.
    Summaries say how many these were (`rounds`), and, as a mean over devices, how many bytes of rows went to other
    devices and came back in the forward pass (`sent_bytes`), and how many with empty places (`padded_bytes`).
    """

    class Config(Dispatch.Config):
        room: float = (
            1.25  # Rows between two devices in one round, divided by what it takes if all experts get the same.
        )

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        _expect_positive(self, "room", cfg.room)

    @staticmethod
    def is_local() -> bool:
        return True

    def send(self, x: Array, experts: Array) -> Sent:
        order, place, sizes = _sorted(experts, self.cfg.num_experts)
        rows = permute_rows(_copies(x, experts), order, place)
        return Sent(rows, sizes, order, place, self._exchange(rows, sizes))

    def combine(self, y: Array, weights: Array, sent: Sent) -> Array:
        return _weighted(permute_rows(y, sent.target, sent.source), weights)

    def _exchange(self, rows: Array, sizes: Array) -> Exchange | None:
        """Agrees on an exchange with the devices of the experts, if they are on several, and reports what it takes."""
        plan = self.exchange("expert", sizes, len(rows), room=self.cfg.room)
        if plan is None:
            return None
        there_and_back = 2.0 * rows.shape[1] * rows.dtype.itemsize
        self.summary("rounds", plan.rounds.astype(jnp.float32))
        self.summary("sent_bytes", plan.sent_rows().astype(jnp.float32) * there_and_back)
        self.summary("padded_bytes", plan.padded_rows().astype(jnp.float32) * there_and_back)
        return plan


class Capacity(Dispatch):
    """Every expert gets as many rows, its first ones; further rows are dropped, and count as zeros.

    Work and memory are the same in each step, whatever the router does. A token may lose its place to those before it,
    in its own sequence and in the sequences before, but never to a later one.

    Which tokens are dropped depends on all others, so that the result is the same on every mesh, but devices tell each
    other about all tokens: it is there for comparison, not for large meshes.

    Reference: Fedus et al., Switch Transformers, 2021 (arXiv:2101.03961), section 2.2.
    """

    class Config(Dispatch.Config):
        factor: float = 1.25  # Room for each expert, divided by what it would get if all got the same.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        _expect_positive(self, "factor", cfg.factor)

    @staticmethod
    def is_local() -> bool:
        return False

    def send(self, x: Array, experts: Array) -> Sent:
        count, (num_rows, dim) = self.cfg.num_experts, (experts.size, x.shape[-1])
        room = min(max(1, math.ceil(self.cfg.factor * num_rows / count)), num_rows)
        order, place, sizes = _sorted(experts, count)
        starts, flat = jnp.cumsum(sizes) - sizes, experts.reshape(-1)
        rank = place - starts[flat]
        target = jnp.where(rank < room, flat * room + rank, count * room)
        slot = jnp.arange(room, dtype=order.dtype)
        first = order.at[starts[:, None] + slot].get(mode="fill", fill_value=num_rows)
        source = jnp.where(slot < sizes[:, None], first, num_rows).reshape(-1)
        self.summary("dropped", jnp.mean((rank >= room).astype(jnp.float32)))
        rows = permute_rows(_copies(x, experts), source, target).reshape(count, room, dim)
        return Sent(self.constrain(rows, "expert", None, None), None, source, target)

    def combine(self, y: Array, weights: Array, sent: Sent) -> Array:
        return _weighted(permute_rows(y.reshape(-1, y.shape[-1]), sent.target, sent.source), weights)


def _expect_positive(dispatch: Dispatch, field: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"{dispatch!r}: {field} is {value}, expected a positive number.")


def _sorted(experts: Array, count: int) -> tuple[Array, Array, Array]:
    """Returns the rows in the order of their experts, the place of each row in it, and how many each expert has."""
    flat = experts.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    return order, jnp.argsort(order), jnp.bincount(flat, length=count)


def _copies(x: Array, experts: Array) -> Array:
    return jnp.repeat(x.reshape(-1, x.shape[-1]), experts.shape[-1], axis=0)


def _weighted(rows: Array, weights: Array) -> Array:
    """Sums the rows of each token, in float32. Not a matrix product: it is not counted as work of one."""
    each = rows.reshape(*weights.shape, -1).astype(jnp.float32)
    return jnp.sum(each * weights[..., None], axis=-2).astype(rows.dtype)
