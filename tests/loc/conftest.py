# SPDX-License-Identifier: Apache-2.0
"""The module that tests of the checker put their statements into."""

from collections.abc import Callable

import pytest

BLOCK = """\
import functools
import jax
import jax.numpy as jnp
from . import kernels
from .point import Point

class Block(Module):
    class Config(Module.Config):
        dim: int = REQUIRED
        ffn: FeedForward.Config = DenseFeedForward.Config()
        maybe: FeedForward.Config | None = None
        layers: list[Layer.Config] = REQUIRED
        experts: dict[str, Layer.Config] = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.ffn = self.child("ffn", cfg.ffn.set(dim=cfg.dim))
        self.norm: Norm = self.child("norm", cfg.norm)
        self.layers = [self.child(f"layers[{i}]", c) for i, c in enumerate(cfg.layers)]
        self.experts = {k: self.child(f"experts[{k}]", c) for k, c in cfg.experts.items()}
        self.param("weight", (cfg.dim,), axes=("embed",))
        INIT

    def forward(self, x, i=0, cfg=None):
        FORWARD
"""


@pytest.fixture(scope="session")
def block() -> Callable[..., str]:
    """Returns a function that gives the source with statements put into `forward` and `__init__`."""
    return _block


@pytest.fixture(scope="session")
def first_line() -> int:
    """Returns the number of the line where the statements put into `Block.forward` start."""
    return _block("HERE").split("\n").index("        HERE") + 1


def _block(forward: str = "pass", init: str = "pass") -> str:
    indent = "\n" + 8 * " "
    return BLOCK.replace("INIT", init.replace("\n", indent)).replace("FORWARD", forward.replace("\n", indent))
