# SPDX-License-Identifier: Apache-2.0
"""The residual block: branches, each with its norms, joined to one stream.

Shape letters: B batch, T time, D model dim.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from jax import Array

from dovetail.config import ConfigError

from ._attention import Attention
from ._connection import Add, Connection
from ._context import Context
from ._dropout import Dropout
from ._feed_forward import FeedForward, GatedFeedForward
from ._layer import Layer
from ._mixer import Mixer
from ._norm import Norm, RMSNorm


class _Branch(NamedTuple):
    norm: Norm | None
    inner: Layer
    out_norm: Norm | None
    connection: Connection


class Block(Layer):
    """Branches of one stream: a mixer, a mixer that attends elsewhere, a feed-forward; each may be left out.

    A branch adds `out_norm(inner(norm(x)))` to the stream, unless its connection says otherwise.

    | block | fields |
    | --- | --- |
    | pre-norm, as in Llama | the defaults |
    | post-norm, as in OLMo 2 (arXiv:2501.00656) | as sandwich, and `mixer_norm=None, ffn_norm=None` |
    | sandwich, as in Gemma 2 (arXiv:2408.00118) | `mixer_out_norm=..., ffn_out_norm=...` |
    | parallel, as in GPT-NeoX | `order="parallel"` |
    | parallel with one norm, as in PaLM | `order="parallel", norm=..., mixer_norm=None, ffn_norm=None` |
    | without a feed-forward, as in Mamba | `ffn=None, ffn_norm=None` |
    | cross-attending, as in T5's decoder | `cross=CrossAttention.Config(...), cross_norm=...` |
    """

    class Config(Layer.Config):
        renamed: ClassVar[Mapping[str, str]] = {"added_scale": "residual_scale"}
        norm: Norm.Config | None = None  # The same for all branches, before the norm of each.
        mixer_norm: Norm.Config | None = RMSNorm.Config()
        mixer: Mixer.Config | None = Attention.Config()
        mixer_out_norm: Norm.Config | None = None
        mixer_connection: Connection.Config = Add.Config()
        cross_norm: Norm.Config | None = None
        cross: Mixer.Config | None = None
        cross_out_norm: Norm.Config | None = None
        cross_connection: Connection.Config = Add.Config()
        ffn_norm: Norm.Config | None = RMSNorm.Config()
        ffn: FeedForward.Config | None = GatedFeedForward.Config()
        ffn_out_norm: Norm.Config | None = None
        ffn_connection: Connection.Config = Add.Config()
        order: Literal["sequence", "parallel"] = "sequence"  # In parallel, all branches read the same stream.
        dropout: Dropout.Config = Dropout.Config()  # Of what a branch makes.
        residual_scale: float = 1.0  # Times what a branch makes, as in Granite.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)

        def child(name: str) -> Any:
            part = getattr(cfg, name)
            return self.child(name, part.set(dim=cfg.dim)) if part else None

        self.norm = child("norm")
        self.branches: list[_Branch] = []
        for name in ("mixer", "cross", "ffn"):
            if getattr(cfg, name):
                parts = (f"{name}_norm", name, f"{name}_out_norm", f"{name}_connection")
                self.branches.append(_Branch(*map(child, parts)))
                continue
            for norm in (f"{name}_norm", f"{name}_out_norm"):
                if getattr(cfg, norm):
                    raise ConfigError(f"{self!r}: {norm} is given, but there is no {name}. Set {norm}=None.")
        if not self.branches:
            raise ConfigError(f"{self!r}: has no branch. Set mixer, cross or ffn.")
        self.dropout = self.child("dropout", cfg.dropout)

    def forward(self, x: Array, context: Context) -> Array:
        """Takes the stream, `[B, T, D]` or as its connections have it, through all branches."""
        if self.cfg.order == "parallel":
            made = [self._made(branch, x, context) for branch in self.branches]
            for branch, y in zip(self.branches, made, strict=True):
                x = branch.connection.write(x, y, context)
            return x
        for branch in self.branches:
            x = branch.connection.write(x, self._made(branch, x, context), context)
            context = context.later(self.published)
        return x

    def _made(self, branch: _Branch, x: Array, context: Context) -> Array:
        y = branch.connection.read(x, context)
        for part in (self.norm, branch.norm, branch.inner, branch.out_norm):
            y = y if part is None else part(y, context)
        y = self.dropout(y)
        return y if self.cfg.residual_scale == 1.0 else y * self.cfg.residual_scale
