# SPDX-License-Identifier: Apache-2.0
"""`Remat`: which activations of a module are kept, offloaded or computed again, by the names layers give them."""
# pyright: reportUnknownVariableType=false
# JAX's own annotations are incomplete.

import fnmatch
import functools
from typing import Any

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from dovetail.config import ConfigBase, ConfigError, did_you_mean

_policies = jax.checkpoint_policies
_OF_KERNELS = "<kernel>."  # In place of a path: kernels are in no module, and no module is called that.


class Remat(ConfigBase):
    """Makes a module compute its activations again in the backward pass, except for those named here.

    A pattern is matched against the end of the path of what a layer gave to `self.tag`, `*` standing for any
    characters: `qkv`, `attention.*`, `decoder.layer.ffn.hidden`.
    """

    save: tuple[str, ...] = ()  # Kept in device memory.
    offload: tuple[str, ...] = ()  # Kept in host memory.
    save_dots: bool = False  # Keep the results of matrix products without batch dimensions, and of kernels.

    def policy(self, prim: Any, *args: Any, **params: Any) -> Any:
        """Decides for one equation, as `jax.checkpoint` asks."""
        if prim.name == "name":
            return _for_name(params["name"], self)(prim, *args, **params)
        base = _policies.dots_with_no_batch_dims_saveable if self.save_dots else _policies.nothing_saveable
        return base(prim, *args, **params)

    def check(self, tags: set[str]) -> None:
        """Raises if a pattern fits none of the activations that were tagged in all the modules with this config."""
        short = sorted({tag.rpartition(".")[2] for tag in tags})
        for pattern in (*self.save, *self.offload):
            if not any(_fits(tag, (pattern,)) for tag in tags):
                there = f" There are: {', '.join(short)}." if short else " There are none."
                raise ConfigError(f"{self}: no activation is called {pattern!r}.{did_you_mean(pattern, short)}{there}")


_MOVES = {
    *("name", "sharding_constraint", "pvary"),
    *("convert_element_type", "reshape", "transpose", "squeeze", "broadcast_in_dim"),
}


class Regather:
    """Keeps all activations, but no parameter that was gathered: the backward pass gathers it again.

    Without this, a loop over layers would keep all parameters whole, which is what splitting them should prevent.
    """

    def policy(self, prim: Any, *args: Any, **params: Any) -> Any:
        """Decides for one equation: what only moves or casts numbers is done again, gathering among it."""
        inside = params.get("call_jaxpr")  # Of a function with a derivative of its own.
        names = [prim.name] if inside is None else [equation.primitive.name for equation in inside.eqns]
        return not set(names) <= _MOVES

    def check(self, tags: set[str]) -> None:
        """Does nothing: it names no activations."""


def kernel_result(name: str, value: Array) -> Array:
    """Names what the backward pass of a kernel needs of its forward pass; a policy chooses it as it does a `tag`.

    What keeps the results of matrix products keeps it, too: else the kernel would run again.
    """
    return checkpoint_name(value, _OF_KERNELS + name)


@functools.cache
def _for_name(name: str, remat: Remat) -> Any:
    offload = [name] if _fits(name, remat.offload) else []
    save = _fits(name, remat.save) or (remat.save_dots and name.startswith(_OF_KERNELS))
    save = [name] if save and not offload else []
    return _policies.save_and_offload_only_these_names(
        names_which_can_be_saved=save,
        names_which_can_be_offloaded=offload,
        offload_src="device",
        offload_dst="pinned_host",
    )


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(f".{name}", pattern) for p in patterns for pattern in (p, f"*.{p}"))
