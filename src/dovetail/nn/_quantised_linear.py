# SPDX-License-Identifier: Apache-2.0
"""Linear maps whose weights are kept in few bits, to use models that have been trained.

Such weights do not learn: they are made of those of another model, by `quantised_params`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigError
from dovetail.module import Module, ModuleError, ParamSpec, constant, specs
from dovetail.ops import Quantised

from ._linear import Linear

Bits = Literal[4, 8]
# The deviation of numbers that are all as likely, by dtype: for initial values.
_DEVIATIONS = {jnp.dtype(jnp.int8): math.sqrt((2**16 - 1) / 12), jnp.dtype(jnp.uint8): math.sqrt((2**8 - 1) / 12)}


class Dims(NamedTuple):
    """Some dimensions of a weight."""

    shape: tuple[int, ...] = ()
    axes: tuple[str | None, ...] = ()


def declare_quantised(module: Module, outer: Dims, ins: Dims, outs: Dims, *, bits: Bits, group: int) -> None:
    """Declares the parameters `weight` and `scale`, and `offset` with 4 bits, of `outer` maps from `ins` to `outs`."""

    def declare(name: str, ins: Dims, init: Any, dtype: Any) -> None:
        at = -len(outs.shape)
        module.param(
            name,
            outer.shape + ins.shape + outs.shape,
            axes=outer.axes + ins.axes + outs.axes,
            init=init,
            dtype=dtype,
            in_dims=tuple(range(at - len(ins.shape), at)),
            out_dims=tuple(range(at, 0)),
            cast=False,
        )

    fan_in = math.prod(ins.shape)
    if bits == 8:
        step = fan_in**-0.5 / _DEVIATIONS[jnp.dtype(jnp.int8)]
        declare("weight", ins, _Random(), jnp.int8)
        return declare("scale", Dims(), constant(step), jnp.float32)
    *before, last = ins.shape
    size = math.gcd(last, group)  # Groups lie within the last dimension, so that each device has whole ones.
    if size % 2:
        raise ConfigError(
            f"{module!r}: inputs {ins.shape} have no groups of an even size that divides both {last} and {group}.\n"
            "  Use another group, or bits=8."
        )
    step = fan_in**-0.5 / _DEVIATIONS[jnp.dtype(jnp.uint8)]
    declare("weight", Dims((*before, last // 2), ins.axes), _Random(), jnp.uint8)
    declare("scale", Dims((*before, last // size), ins.axes), constant(step), jnp.bfloat16)
    return declare("offset", Dims((*before, last // size), ins.axes), constant(-7.5 * step), jnp.bfloat16)


class QuantisedLinear(Linear):
    """Multiplies by a weight in few bits, with a scale for each output, or for groups of inputs of each output.

    `replace_all(DenseLinear.Config, QuantisedLinear.Config(bits=8), drop=("init",))` takes over the bias. Sums are in
    float32; with 8 bits, scales are applied to the sums.
    """

    class Config(Linear.Config):
        bits: Bits = 8
        group: int = 32  # With 4 bits: inputs that share a scale; fewer, if that does not divide the last dimension.
        bias: bool = False

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        ins, outs = Dims(cfg.in_shape, cfg.in_axes), Dims(cfg.out_shape, cfg.out_axes)
        declare_quantised(self, Dims(), ins, outs, bits=cfg.bits, group=cfg.group)
        if cfg.bias:
            self.param("bias", cfg.out_shape, axes=cfg.out_axes, init=constant(0.0), in_dims=(), out_dims=())

    def forward(self, x: Array) -> Array:
        cfg = self.cfg
        batch = x.shape[: x.ndim - len(cfg.in_shape)]
        flat = x.reshape(math.prod(batch), math.prod(cfg.in_shape))
        y = self._stored().matmul(flat).reshape(*batch, *cfg.out_shape)
        return y + self.bias if cfg.bias else y

    def matrix(self) -> Array:
        if self.cfg.bias:
            raise ModuleError(f"{self!r} is asked for its matrix, but it also adds a bias. Set bias=False.")
        made = self._stored().array(self.compute_dtype or jnp.float32)
        return made.reshape(*self.cfg.in_shape, *self.cfg.out_shape)

    def _stored(self) -> Quantised:
        outs = math.prod(self.cfg.out_shape)
        if self.cfg.bits == 8:
            return Quantised(self.weight.reshape(-1, outs), self.scale.reshape(outs))
        return Quantised(*(each.reshape(-1, outs) for each in (self.weight, self.scale, self.offset)))


def quantised_params(module: Module, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of the same model without few bits as those of `module`, rounded to nearest.

    One weight after the other is rounded; all else, and what is in few bits already, is left as it is. The state of a
    run may be among the parameters.
    """
    return _converted(specs(module), params)


def _converted(tree: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    # Parts without parameters, such as what is inside of a cache, are only in the new tree.
    made = {name: _converted(below, {}) for name, below in tree.items() if isinstance(below, Mapping)}
    for name, value in params.items():
        below = tree.get(name)
        made[name] = _converted(below, value) if isinstance(below, Mapping) else value
    weight: Any = tree.get("weight")
    if isinstance(weight, ParamSpec) and jnp.issubdtype(weight.dtype, jnp.integer):
        found: Any = params.get("weight")
        if found is not None and jnp.issubdtype(found.dtype, jnp.floating):
            parts = _rounding(weight, tree["scale"])(found)._asdict()
            parts["weight"] = parts.pop("values")
            made |= {name: part.reshape(tree[name].shape) for name, part in parts.items() if part is not None}
    return made


@functools.cache
def _rounding(weight: ParamSpec, scale: ParamSpec) -> Callable[[Array], Quantised]:
    """Returns what rounds a weight to one of such a spec, compiled once for all that are alike."""
    outer = weight.shape[: len(weight.shape) - len(weight.in_dims) - len(weight.out_dims)]
    # Bytes of 4-bit numbers hold two.
    ins, outs = weight.fan_in * (1 if weight.dtype == jnp.int8 else 2), weight.fan_out

    def rounded(value: Array) -> Quantised:
        flat = value.reshape(*outer, ins, outs)
        return Quantised.columns(flat) if weight.dtype == jnp.int8 else Quantised.groups(flat, ins // scale.fan_in)

    return jax.jit(rounded)


@dataclasses.dataclass(frozen=True)
class _Random:
    """Fills a parameter with numbers that are all as likely."""

    def __call__(self, key: Array, spec: ParamSpec) -> Array:
        return jax.lax.bitcast_convert_type(jax.random.bits(key, spec.shape, jnp.uint8), spec.dtype)
