# SPDX-License-Identifier: Apache-2.0
"""The invocation context: what a module sees while one of its methods runs, and what it leaves behind.

`call` opens a `Frame`, which holds what the whole call shares. Each method call of a module runs in a `Scope` of its
own, which holds that module's part of the parameters. Both are plain Python objects that live during tracing only.
"""
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# What is private to a module is known in this package; the annotations of JAX are incomplete.

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import get_opaque_trace_state
from jax.typing import DTypeLike

from ._layout import Layout
from ._param import fold_path
from ._published import Published, after
from ._remat import Regather, Remat
from ._state import SizedState, StateSpecs
from ._tree import join

if TYPE_CHECKING:
    from ._module import Module

Params = Mapping[str, Any]
State = dict[str, Any]
scope_var: ContextVar["Scope | None"] = ContextVar("scope", default=None)


class ModuleError(RuntimeError):
    """A module was used against the rules; the text says which rule, and what to do."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Collected:
    """What a call leaves behind besides its outputs; keys are full paths.

    A summary or loss from inside `Repeat` has one entry for all layers, `decoder.layer[:].ffn.load`, with the layer as
    its first dimension; `per_layer` takes them apart. `state` is None if the call was made without state. `updates` is
    what modules handed in for state of the run, and `published` what layers published for later ones, by name.
    """

    summaries: dict[str, Array] = dataclasses.field(default_factory=dict[str, Array])
    losses: dict[str, Array] = dataclasses.field(default_factory=dict[str, Array])
    state: State | None = None
    updates: dict[str, Array] = dataclasses.field(default_factory=dict[str, Array])
    published: dict[str, Published] = dataclasses.field(default_factory=dict[str, Published])


@dataclasses.dataclass
class Frame:
    """What all scopes of one `call` share, and where they leave their results."""

    rng: Callable[[], Array] | None = None  # Lazy: a key nobody asks for costs no equation.
    train: bool = False
    dtype: DTypeLike | None = None
    step: Array | int | None = None  # Of training.
    state: State | None = None
    sizes: Mapping[str, int] | None = None  # While state is listed, not used: the sizes it will have.
    declared: StateSpecs = dataclasses.field(default_factory=dict[str, SizedState])  # Where it is listed.
    off: frozenset[str] = frozenset()  # Parts that are switched off.
    in_loop: bool = False  # Over layers, whether it is a scan or unrolled.
    apart: bool = False  # That loop is a scan, whose forward and backward pass no compiler merges.
    on_shards: bool = False
    layout: Layout | None = None
    tags: set[str] | None = None  # Names given inside a remat region; outside, names are not recorded.
    remats: dict[Remat | Regather, set[str]] = dataclasses.field(  # Names in their regions.
        default_factory=dict[Remat | Regather, set[str]]
    )
    summaries: dict[str, Array] = dataclasses.field(default_factory=dict[str, Array])
    losses: dict[str, Array] = dataclasses.field(default_factory=dict[str, Array])
    updates: dict[str, list[Array]] = dataclasses.field(default_factory=dict[str, list[Array]])
    published: dict[str, Published] = dataclasses.field(default_factory=dict[str, Published])
    trace: Any = dataclasses.field(default_factory=lambda: get_opaque_trace_state(convention="dovetail"))

    def inner(self, **changes: Any) -> "Frame":
        """A frame for a part of this call that JAX traces on its own; it starts without results."""
        names = (
            *("rng", "train", "dtype", "step", "sizes", "declared", "off"),
            *("in_loop", "apart", "on_shards", "layout", "tags", "remats"),
        )
        return Frame(**{**{name: getattr(self, name) for name in names}, **changes})

    def collected(self) -> Collected:
        """The results so far."""
        updates = {path: sum(values[1:], values[0]) / len(values) for path, values in self.updates.items()}
        return Collected(self.summaries, self.losses, self.state, updates, self.published)

    def take(self, inner: Collected) -> None:
        """Adds the results of an inner frame."""
        for old, new in ((self.summaries, inner.summaries), (self.losses, inner.losses)):
            if twice := old.keys() & new.keys():
                raise ModuleError(f"{sorted(twice)[0]} is reported twice in one call. Give the second another name.")
            old.update(new)
        if self.state is not None:
            self.state.update(inner.state or {})
        for path, value in inner.updates.items():
            self.updates.setdefault(path, []).append(value)
        self.published = after(self.published, inner.published)

    def check_trace(self, what: str, advice: str) -> None:
        """Raises if JAX traces something inside this call, where `what` would go wrong."""
        if get_opaque_trace_state(convention="dovetail") != self.trace:
            raise ModuleError(
                f"{what} inside a JAX transformation (scan, vmap, grad, jit, ...) that the method itself started.\n"
                f"  {advice},\n  or transform self.lift(method), and self.bring what it leaves."
            )

    def check_state(self, module: "Module") -> None:
        """Raises in `on_shards`, where nothing says which part of a state a device has."""
        if self.on_shards and self.state is not None:
            raise ModuleError(
                f"{module!r} uses state of a sequence inside on_shards, where a device has its own part of the\n"
                "  inputs alone. Read it before and pass it in; return what is new, and update the state after."
            )


@dataclasses.dataclass
class Scope:
    """One method call of one module."""

    frame: Frame
    module: "Module"
    params: Params
    path: str  # The module's path, with #2, #3, ... where a parent calls the same child again.
    calls: Counter[str] = dataclasses.field(default_factory=Counter[str])
    unbrought: list[str] = dataclasses.field(default_factory=list[str])  # Paths of what lifted methods left behind.


def current() -> Scope | None:
    """Returns the scope of the method that is running, if any."""
    return scope_var.get()


def own_scope(module: "Module", what: str) -> Scope:
    """Returns the scope of `module`, or raises if it is not the one that is running."""
    scope = scope_var.get()
    if scope is None:
        raise ModuleError(
            f"{module!r}: {what} outside of a call. A module holds no arrays: use call(module, params, inputs)."
        )
    if scope.module is not module:
        raise ModuleError(
            f"{scope.module!r} wants {what} of {module!r}. A module reads only what is its own.\n"
            f"  Give {type(module).__name__} a method that computes what is needed, and call that."
        )
    return scope


def read_state(scope: Scope, name: str) -> Array:
    """Returns a piece of state of a sequence, of this call of the module."""
    frame, path = scope.frame, join(scope.path, name)
    frame.check_state(scope.module)
    if frame.state is None:
        raise ModuleError(f"{path}: this call keeps no state. Test self.stateful, or pass state=make_state(...).")
    if frame.sizes is not None:  # State is listed, not used.
        try:
            frame.declared[path] = scope.module._state[name].sized(path, frame.sizes, frame.dtype)
        except ValueError as e:
            raise ModuleError(f"{e} Pass it: state_specs(..., sizes={{...}}).") from None
        return frame.declared[path].make(frame.layout)
    if path not in frame.state:
        raise ModuleError(
            f"{path}: not among the state that call(...) was given. Make it for this module, method and number of\n"
            "  calls: make_state(state_specs(module, params, *inputs, method=..., sizes={...}))."
        )
    value, spec = frame.state[path], scope.module._state[name]
    if not spec.fits(value):
        raise ModuleError(
            f"{path}: the state is {value.dtype}{list(value.shape)}, the module declares {spec.dtype or 'any float'}"
            f"{list(spec.shape)}."
        )
    return value


def write_state(scope: Scope, name: str, value: Any) -> None:
    """Replaces a piece of state of a sequence, of this call of the module."""
    old, path = read_state(scope, name), join(scope.path, name)
    if jnp.shape(value) != old.shape or value.dtype != old.dtype:
        raise ModuleError(
            f"{path}: the new state is {value.dtype}{list(value.shape)}, the declared one {old.dtype}{list(old.shape)}."
        )
    assert scope.frame.state is not None
    if scope.frame.sizes is None:
        scope.frame.state[path] = value


def random_key(scope: Scope, name: str) -> Array:
    """Returns a key for this scope and name; asking again gives another one."""
    if scope.frame.rng is None:
        raise ModuleError(f"{scope.module!r} needs random numbers. Pass rng=jax.random.key(...) to call(...).")
    scope.frame.check_trace(
        f"{scope.module!r} asks for random numbers",
        "All its steps would get the same. Ask before, jax.random.split the key, and give each step a key of its own",
    )
    scope.calls[f"rng {name}"] += 1
    return fold_path(scope.frame.rng(), f"{scope.path} {name} {scope.calls[f'rng {name}']}")


def per_layer(values: Mapping[str, Any]) -> dict[str, Any]:
    """Takes stacked entries apart: `layer[:].load` of shape [2] becomes `layer[0].load` and `layer[1].load`."""
    flat: dict[str, Any] = {}
    for path, value in values.items():
        head, stacked, tail = path.partition("[:]")
        if stacked:
            flat.update(per_layer({f"{head}[{i}]{tail}": value[i] for i in range(len(value))}))
        else:
            flat[path] = value
    return flat
