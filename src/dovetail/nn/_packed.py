# SPDX-License-Identifier: Apache-2.0
"""Linear maps and embeddings whose weights lie in panels, as native kernels read them, to serve on a CPU.

Such weights do not learn: they are made of those of another model, by `packed_params`.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError, FunctionConfig, config_for
from dovetail.module import Init, Module, ModuleError, constant, specs, variance_scaling
from dovetail.ops import (
    Choice,
    Support,
    from_panels,
    in_panels,
    is_counted,
    multiplies,
    native_support,
    note_choice,
    packed_product,
    packs,
    panel_shape,
)

from ._embedding import Embedding
from ._linear import Linear

Kept = Literal["float32", "bfloat16", "int8"]
_PLAIN: tuple[Kept, ...] = ("float32", "bfloat16")  # What is no integer has no scale.
_PANELS = "panels"


class PackedLinear(Linear):
    """A `DenseLinear` whose weight lies in panels, and which a native kernel multiplies by.

    `replace_all(DenseLinear.Config, PackedLinear.Config())` takes over bias and initial values. A weight that is too
    small stays as it is. Integers have a scale for each output, as `quantised_params` makes it.
    """

    class Config(Linear.Config):
        kept: Kept = "float32"
        bias: bool = False
        init: FunctionConfig[Init] = config_for(variance_scaling)

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self._ins, self._outs = math.prod(cfg.in_shape), math.prod(cfg.out_shape)
        self._scaled = cfg.kept not in _PLAIN
        self._packs = native_support() if self._scaled else packs(self._ins, self._outs)
        if self._packs:
            _declare_panels(self, self._ins, self._outs, cfg.init.build(), cfg.kept)
        else:
            if self._scaled:
                raise ConfigError(
                    f"{self!r}: {cfg.kept} is for native kernels, and there are none: {self._packs.reason}."
                )
            num_in, num_out = len(cfg.in_shape), len(cfg.out_shape)
            self.param(
                "weight",
                cfg.in_shape + cfg.out_shape,
                axes=cfg.in_axes + cfg.out_axes,
                init=cfg.init.build(),
                in_dims=tuple(range(-num_in - num_out, -num_out)),
                out_dims=tuple(range(-num_out, 0)),
            )
        if cfg.bias:
            self.param("bias", cfg.out_shape, axes=cfg.out_axes, init=constant(0.0), in_dims=(), out_dims=())

    def forward(self, x: Array) -> Array:
        cfg = self.cfg
        batch = x.shape[: x.ndim - len(cfg.in_shape)]
        flat = x.reshape(*batch, self._ins)
        if self._packs:
            scale = self.scale if self._scaled else None
            y = _multiplied(self, flat, self.panels, self._outs, scale)
        else:
            note_choice(_by_xla(self, self._packs))
            y = flat @ self.weight.reshape(self._ins, self._outs)
        y = y.reshape(*batch, *cfg.out_shape)
        return y + self.bias if cfg.bias else y

    def matrix(self) -> Array:
        if self.cfg.bias:
            raise ModuleError(f"{self!r} is asked for its matrix, but it also adds a bias. Set bias=False.")
        if not self._packs:
            return self.weight
        note_choice(_by_xla(self, Support("its matrix is asked for")))
        made = from_panels(self.panels, self._outs).astype(self.compute_dtype or jnp.float32)
        made = made * self.scale if self._scaled else made
        return made.reshape(*self.cfg.in_shape, *self.cfg.out_shape)


class PackedEmbedding(Embedding):
    """An `Embedding` whose table lies in panels, each a part of the words: for tied models."""

    class Config(Embedding.Config):
        kept: Literal["float32", "bfloat16"] = "float32"

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self._packs = packs(cfg.dim, cfg.vocab_size)

    def _declare_table(self) -> None:
        cfg = self.cfg
        if packs(cfg.dim, cfg.vocab_size):
            _declare_panels(self, cfg.dim, cfg.vocab_size, cfg.init.build(), cfg.kept)
        else:
            super()._declare_table()

    def forward(self, ids: Array) -> Array:
        if not self._packs:
            return super().forward(ids)
        panel, known = self.panels.shape[-1], (ids >= 0) & (ids < self.cfg.vocab_size)
        place = jnp.where(known, ids, 0)
        found = self.panels[place // panel, :, place % panel].astype(self.compute_dtype or jnp.float32)
        return jnp.where(known[..., None], found, jnp.nan)

    def logits(self, x: Array) -> Array:
        if not self._packs:
            note_choice(_by_xla(self, self._packs))
            return super().logits(x)
        return _multiplied(self, x, self.panels, self.cfg.vocab_size)


def packed_params(module: Module, params: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters of the same model without panels as those of `module`: one after the other is packed.

    All else is left as it is. The state of a run may be among the parameters.

    Args:
        params: emptied on the way, so that one weight at a time is there twice.
    """
    return _converted(specs(module), params)


def _converted(tree: Mapping[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in list(params):
        value, below = params.pop(name), tree.get(name)
        if isinstance(value, dict):
            made[name] = _converted(below if isinstance(below, Mapping) else {}, value)
        elif _PANELS in tree and name in ("weight", "table"):
            *outer, _, ins, _ = tree[_PANELS].shape
            flat = value if name == "table" else value.reshape(*outer, ins, -1)
            made[_PANELS] = _packing(name == "table", tree[_PANELS].dtype)(flat).block_until_ready()
        elif _PANELS in tree and name == "scale":
            made[name] = value.reshape(tree[name].shape)
        else:
            made[name] = value
    return made


@functools.cache
def _packing(transposed: bool, dtype: Any) -> Any:
    def packed(weight: Array) -> Array:
        matrix = (weight.mT if transposed else weight).astype(dtype)
        pack: Any = in_panels
        for _ in range(matrix.ndim - 2):
            pack = jax.vmap(pack)
        return pack(matrix)

    return jax.jit(packed)


def _declare_panels(module: Module, ins: int, outs: int, init: Init, kept: Kept) -> None:
    how: dict[str, Any] = {} if kept == "float32" else {"dtype": kept, "cast": False}
    start = constant(0.0) if kept not in _PLAIN else init
    shape = panel_shape(ins, outs)
    module.param(_PANELS, shape, axes=(None, None, None), init=start, in_dims=(-2,), out_dims=(-3, -1), **how)
    if kept not in _PLAIN:
        module.param("scale", (outs,), axes=(None,), init=constant(1.0), in_dims=(), out_dims=(-1,), cast=False)


def _multiplied(module: Module, x: Array, panels: Array, outs: int, scale: Array | None = None) -> Array:
    support = multiplies(x)
    if support and not is_counted():
        note_choice(Choice(module.path, "PackedProduct"))
        return packed_product(x, panels, outs, scale)
    note_choice(_by_xla(module, support))
    y = x @ from_panels(panels, outs).astype(x.dtype)
    return y if scale is None else y * scale


def _by_xla(module: Module, support: Support) -> Choice:
    return Choice(module.path, "XLA", () if support else (("PackedProduct", support.reason),))
