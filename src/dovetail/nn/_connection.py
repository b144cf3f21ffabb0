# SPDX-License-Identifier: Apache-2.0
"""Connections: how what a branch makes joins the stream that goes through all layers."""

import abc

from jax import Array

from dovetail.config import REQUIRED
from dovetail.module import Module
from dovetail.ops import is_native, native_add

from ._context import Context


class Connection(Module, abc.ABC):
    """The interface between the stream and one branch of a block.

    What the stream `h` is, is a matter of the connections alone, as long as all of a model agree: `[B, T, dim]`, or
    several such streams. Blocks and loops pass it on as it is.
    """

    class Config(Module.Config):
        dim: int = REQUIRED

    @abc.abstractmethod
    def read(self, h: Array, context: Context) -> Array:
        """Returns what the branch is given, `[B, T, dim]`."""

    @abc.abstractmethod
    def write(self, h: Array, y: Array, context: Context) -> Array:
        """Returns the stream with `y`, `[B, T, dim]`, which the branch made; of the shape and dtype of `h`."""


class Add(Connection):
    """The residual connection: `h + y`."""

    def read(self, h: Array, context: Context) -> Array:
        return h

    def write(self, h: Array, y: Array, context: Context) -> Array:
        return native_add(h, y) if h.shape == y.shape and is_native(h, y) else h + y
