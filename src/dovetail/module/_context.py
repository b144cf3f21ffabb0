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
import numpy as np
from jax import Array
from jax.extend.core import get_opaque_trace_state
from jax.typing import DTypeLike

from dovetail.config import did_you_mean

from ._layout import Layout
from ._param import fold_path
from ._remat import Regather, Remat
from ._tree import check_params, join

if TYPE_CHECKING:
    from ._module import Module

Params = Mapping[str, Any]
State = dict[str, Any]
_scope: ContextVar["Scope | None"] = ContextVar("scope", default=None)
_REGATHER = Regather()


class ModuleError(RuntimeError):
    """A module was used against the rules; the text says which rule, and what to do."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Collected:
    """What a call leaves behind besides its outputs; keys are full paths.

    A summary or loss from inside `Repeat` has one entry for all layers, `decoder.layer[:].ffn.load`, with the layer as
    its first dimension; `per_layer` takes them apart. `state` is None if the call was made without state.
    """

    summaries: dict[str, Array]
    losses: dict[str, Array]
    state: State | None


@dataclasses.dataclass
class Frame:
    """What all scopes of one `call` share, and where they leave their results."""

    rng: Callable[[], Array] | None = None  # Lazy: a key nobody asks for costs no equation.
    train: bool = False
    dtype: DTypeLike | None = None
    state: State | None = None
    capacity: int | None = None
    in_scan: bool = False  # In a loop over layers, whether it is a scan or unrolled.
    apart: bool = False  # That loop is a scan, whose forward and backward pass no compiler merges.
    on_shards: bool = False
    layout: Layout | None = None
    tags: set[str] | None = None  # Names given inside a remat region; outside, names are not recorded.
    remats: dict[Remat | Regather, set[str]] = dataclasses.field(  # Names in their regions.
        default_factory=dict[Remat | Regather, set[str]]
    )
    summaries: dict[str, Array] = dataclasses.field(default_factory=dict[str, Array])
    losses: dict[str, Array] = dataclasses.field(default_factory=dict[str, Array])
    trace: Any = dataclasses.field(default_factory=lambda: get_opaque_trace_state(convention="dovetail"))

    def inner(self, **changes: Any) -> "Frame":
        """A frame for a part of this call that JAX traces on its own; it starts without results."""
        names = ("rng", "train", "dtype", "capacity", "in_scan", "apart", "on_shards", "layout", "tags", "remats")
        return Frame(**{**{name: getattr(self, name) for name in names}, **changes})

    def collected(self) -> Collected:
        """The results so far."""
        return Collected(self.summaries, self.losses, self.state)

    def take(self, inner: Collected) -> None:
        """Adds the results of an inner frame."""
        self.summaries.update(inner.summaries)
        self.losses.update(inner.losses)
        if self.state is not None:
            self.state.update(inner.state or {})

    def check_trace(self, what: str, advice: str) -> None:
        """Raises if JAX traces something inside this call, where `what` would go wrong."""
        if get_opaque_trace_state(convention="dovetail") != self.trace:
            raise ModuleError(
                f"{what} inside a JAX transformation (scan, vmap, grad, jit, ...) that the method itself started.\n"
                f"  {advice},\n  or let Repeat do the loop."
            )

    def check_state(self, module: "Module") -> None:
        """Raises in `on_shards`, where nothing says which part of a state a device has."""
        if self.on_shards and self.state is not None:
            raise ModuleError(
                f"{module!r} uses decode state inside on_shards, where a device has its own part of the inputs alone.\n"
                "  Read it before and pass it as an input; return what is new, and update the state afterwards."
            )


@dataclasses.dataclass
class Scope:
    """One method call of one module."""

    frame: Frame
    module: "Module"
    params: Params
    path: str  # The module's path, with #2, #3, ... where a parent calls the same child again.
    calls: Counter[str] = dataclasses.field(default_factory=Counter[str])


def current() -> Scope | None:
    """Returns the scope of the method that is running, if any."""
    return _scope.get()


def own_scope(module: "Module", what: str) -> Scope:
    """Returns the scope of `module`, or raises if it is not the one that is running."""
    scope = _scope.get()
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


def call(
    module: "Module",
    params: Params,
    *inputs: Any,
    method: str = "forward",
    rng: Array | None = None,
    train: bool = False,
    state: State | None = None,
    capacity: int | None = None,
    dtype: DTypeLike | None = None,
    layout: Layout | None = None,
    **named_inputs: Any,
) -> tuple[Any, Collected]:
    """Runs a method of `module` as a pure function, for jit, grad, scan, vmap, remat and shard_map to see.

    Args:
        rng: key for random numbers; each module gets its own, folded by path.
        state: decode state by path, `{}` to start with; the returned one replaces it. None: layers keep no state.
        capacity: positions that decode state must have room for, in the call that starts it.
        dtype: what floating-point parameters are cast to when a module reads them; None leaves them as they are.
        layout: how arrays lie on the mesh in use (`jax.set_mesh`); None: as the compiler decides.
    """
    function = unscoped(module, method)
    wrong = check_params(module, params)
    if wrong:
        raise ModuleError(wrong)
    frame = Frame(
        rng=None if rng is None else lambda: rng,
        train=train,
        dtype=dtype,
        state=None if state is None else dict(state),
        capacity=capacity,
        layout=layout,
    )
    scope = Scope(frame, module, params, module._path)
    out = run(scope, function, inputs, named_inputs)
    for remat, tags in frame.remats.items():
        remat.check(tags)
    return out, frame.collected()


def unscoped(module: "Module", method: str) -> Callable[..., Any]:
    """Returns a public method as it was written, for a caller that makes the scope itself."""
    function = getattr(getattr(type(module), method, None), "unscoped", None)
    if function is None:
        public = [name for name in dir(type(module)) if hasattr(getattr(type(module), name), "unscoped")]
        raise ModuleError(f"{module!r} has no method {method!r}.{did_you_mean(method, public)} It has: {public}.")
    return function


def call_child(module: "Module", function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Runs a method of `module` for the module that is running, which must be its parent."""
    outer = _scope.get()
    if outer is None:
        raise ModuleError(f"{module!r}: called outside of a call. Use call(module, params, inputs).")
    if module._parent is not outer.module:
        raise ModuleError(f"{outer.module!r} calls {module!r}, {_relation(outer.module, module)}")
    outer.calls[module._name] += 1
    count = outer.calls[module._name]
    path = join(outer.path, module._name) + (f"#{count}" if count > 1 else "")
    scope = Scope(outer.frame, module, outer.params.get(module._name, {}), path)
    return run(scope, function, args, kwargs)


def run(scope: Scope, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Runs an unbound method in a scope, in a remat region if the module's config asks for one."""
    if scope.module._cfg.remat is not None:
        return _run_remat(scope, scope.module._cfg.remat, function, args, kwargs)
    return run_plain(scope, function, args, kwargs)


def run_layer(scope: Scope, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """As `run`, for a layer of a loop: it does not keep parameters that were gathered for it."""
    layout = scope.frame.layout
    if scope.module._cfg.remat is not None or layout is None or not layout.gathers:
        return run(scope, function, args, kwargs)
    return _run_remat(scope, _REGATHER, function, args, kwargs)


def run_plain(scope: Scope, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Runs an unbound method in a scope."""
    token = _scope.set(scope)
    try:
        with jax.named_scope(scope.module._name or "module"):  # So that compilers' reports can name modules.
            return function(scope.module, *args, **kwargs)
    except Exception as e:
        if not any(note.startswith("In module ") for note in getattr(e, "__notes__", ())):
            e.add_note(f"In module {scope.module!r}, method {function.__name__}({_shapes(args, kwargs)}).")
        raise
    finally:
        _scope.reset(token)


def _run_remat(scope: Scope, remat: Remat | Regather, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    outer = scope.frame
    leaves, tree = jax.tree.flatten((args, kwargs))
    traced = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, (Array, np.ndarray))}
    tags: set[str] = set()

    def pure(params: Params, traced: dict[int, Any], state: State | None) -> tuple[Any, Collected]:
        frame = outer.inner(state=state, tags=tags)
        args, kwargs = jax.tree.unflatten(tree, [traced.get(i, leaf) for i, leaf in enumerate(leaves)])
        out = run_plain(dataclasses.replace(scope, frame=frame, params=params), function, args, kwargs)
        return out, frame.collected()

    checkpointed: Any = jax.checkpoint(pure, policy=remat.policy, prevent_cse=not outer.apart)
    out, collected = checkpointed(scope.params, traced, None if outer.state is None else dict(outer.state))
    outer.remats.setdefault(remat, set()).update(tags)
    if outer.tags is not None:
        outer.tags.update(tags)
    outer.take(collected)
    return out


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


def _relation(caller: "Module", other: "Module") -> str:
    steps, ancestor = 0, other
    while ancestor._parent is not None and ancestor is not caller:
        steps, ancestor = steps + 1, ancestor._parent
    if ancestor is caller and steps:
        return (
            f"which is {steps - 1} level{'s' * (steps > 2)} below its children. A module calls only its own children.\n"
            f"  Add a method to the child in between and call that."
        )
    if other is caller._parent:
        return "its parent. A module calls only its own children: pass what is needed as an argument."
    return (
        "which is not its child. A module calls only its own children.\n"
        "  Declare it with self.child(...), or let the common parent call it and pass the result."
    )


def _shapes(args: Any, kwargs: Any) -> str:
    def one(x: Any) -> str:
        return f"{x.dtype}{list(x.shape)}" if isinstance(x, Array) else type(x).__name__

    return ", ".join([*map(one, args), *(f"{name}={one(x)}" for name, x in kwargs.items())])
