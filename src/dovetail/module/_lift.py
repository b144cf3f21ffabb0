# SPDX-License-Identifier: Apache-2.0
"""The lift: a method in its scope as a pure function, which JAX may transform, and the way back of what it leaves.

Whatever JAX traces on its own goes through here: loops over layers, remat, shards, stages of pipelines, and the
transformations that a method starts itself (`Module.lift`, `Module.bring`).
"""
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# What is private to a module is known in this package; the annotations of JAX are incomplete.

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._context import Collected, ModuleError, Params, Scope, State, random_key, scope_var
from ._remat import Regather, Remat
from ._tree import join

if TYPE_CHECKING:
    from ._module import Module

Key = Array | Callable[[], Array] | None  # A function, for a key that nobody may ask for.
Run = Callable[[Scope, Callable[..., Any], Any, Any], Any]
_REGATHER = Regather()


@dataclasses.dataclass(frozen=True)
class Lifted:
    """A method in its scope as a pure function: `lifted(params, state, key, *inputs) -> (outputs, Collected)`.

    `params`, `state` and `key` are what the method would find if it were called now; a transformation may give it
    others, such as those of one layer, or of one step.
    """

    scope: Scope
    function: Callable[..., Any]
    run: Run
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])  # Of the frame.
    calls: Counter[str] = dataclasses.field(default_factory=Counter[str])  # Made in this scope before.
    left: list[str] | None = None  # Gets the paths of what the method leaves behind.

    @property
    def params(self) -> Params:
        """The parameters that the method reads."""
        return self.scope.params

    @property
    def state(self) -> State | None:
        """The state of the module and of all below it, by path; None if this call keeps none."""
        state, path = self.scope.frame.state, self.scope.path
        return state and {k: v for k, v in state.items() if not path or k.startswith(f"{path}.")}

    @functools.cached_property
    def key(self) -> Array | None:
        """A key of its own for the method; None if this call has none."""
        return None if self.scope.frame.rng is None else random_key(self.scope, "lift")

    def keys(self, count: int) -> Array | None:
        """Keys for so many calls of the method, `[count]`; None if this call has none."""
        return None if self.key is None else jax.random.split(self.key, count)

    def __call__(self, params: Params, state: State | None, key: Key, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the method, and returns what it returns and what it leaves behind; nothing else changes."""
        rng = key if key is None or callable(key) else lambda: key
        frame = self.scope.frame.inner(rng=rng, state=None if state is None else dict(state), **self.changes)
        inner = dataclasses.replace(self.scope, frame=frame, params=params, calls=Counter(self.calls))
        out = self.run(inner, self.function, args, kwargs)
        self.scope.calls |= inner.calls  # The largest of each: JAX may trace this more than once.
        if self.left is not None:
            self.left.extend((*frame.losses, *frame.summaries, *frame.updates, *frame.published))
        return out, frame.collected()


def folded(key: Key, number: Callable[[], Array]) -> Key:
    """Returns another key for each number, if there is a key; nothing is computed until someone asks for it."""
    if key is None:
        return None
    return lambda: jax.random.fold_in(key() if callable(key) else key, number())


def lift(scope: Scope, function: Callable[..., Any], run: Run | None = None, **changes: Any) -> Lifted:
    """Returns a method, as it was written, as a pure function; `changes` are those of the frame inside."""
    return Lifted(scope, function, run or run_module, changes, Counter(scope.calls))


def lift_bound(scope: Scope, method: Any, drop: bool) -> Lifted:
    """See `Module.lift`."""
    owner = getattr(method, "__self__", method)
    function: Any = getattr(method, "__func__", None) or getattr(type(method), "forward", None)
    public = getattr(function, "unscoped", None)
    if owner is scope.module and function is not None:
        lifted = lift(scope, public or function, run_plain)
    elif getattr(owner, "_parent", None) is scope.module and public is not None:
        lifted = lift(child_scope(scope, owner), public)
    else:
        raise ModuleError(
            f"{scope.module!r} lifts {method!r}. Expected a method of its own, or a public one of its children."
        )
    return lifted if drop else dataclasses.replace(lifted, left=scope.unbrought)


def child_scope(scope: Scope, child: "Module") -> Scope:
    """Returns a new scope for a child of the module that is running."""
    scope.calls[child._name] += 1
    count = scope.calls[child._name]
    path = join(scope.path, child._name) + (f"#{count}" if count > 1 else "")
    return Scope(scope.frame, child, scope.params.get(child._name, {}), path)


def bring(scope: Scope, collected: Collected, *, stacked: bool) -> None:
    """See `Module.bring`."""
    scope.frame.check_trace(
        f"{scope.module!r} brings back results", "Return them from the transformed function, and bring them outside"
    )
    if stacked:
        updates = {path: jnp.mean(value, axis=0) for path, value in collected.updates.items()}
        last = jax.tree.map(_last, collected.published)
        collected = dataclasses.replace(mark_stacked(scope, collected), updates=updates, published=last)
    scope.frame.take(collected)
    scope.unbrought.clear()


def _last(leaf: Array) -> Array:
    return leaf[-1]


def mark_stacked(scope: Scope, collected: Collected) -> Collected:
    """Marks reports as those of many calls: those of a child become `path.child[:].name`, its own `path.name[:]`."""
    names = sorted(scope.module._children, key=len, reverse=True)
    start = f"{scope.path}." if scope.path else ""

    def marked(path: str) -> str:
        name = path.removeprefix(start)
        head = next((each for each in names if name.startswith((f"{each}.", f"{each}#"))), None)
        if head is None:
            return f"{path}[:]"
        call, _, rest = name[len(head) :].partition(".")
        return f"{start}{head}{call}[:].{rest}"

    def renamed(values: Mapping[str, Array]) -> dict[str, Array]:
        return {marked(path): value for path, value in values.items()}

    summaries, losses = renamed(collected.summaries), renamed(collected.losses)
    return dataclasses.replace(collected, summaries=summaries, losses=losses)


def run_module(scope: Scope, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Runs an unbound method in a scope, in a remat region if the module's config asks for one."""
    if scope.module._cfg.remat is not None:
        return _run_remat(scope, scope.module._cfg.remat, function, args, kwargs)
    return run_plain(scope, function, args, kwargs)


def run_layer(scope: Scope, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """As `run_module`, for a layer of a loop: it does not keep parameters that were gathered for it."""
    layout = scope.frame.layout
    if scope.module._cfg.remat is not None or layout is None or not layout.gathers:
        return run_module(scope, function, args, kwargs)
    return _run_remat(scope, _REGATHER, function, args, kwargs)


def run_plain(scope: Scope, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Runs an unbound method in a scope."""
    token = scope_var.set(scope)
    try:
        with jax.named_scope(scope.module._name or "module"):  # So that compilers' reports can name modules.
            out = function(scope.module, *args, **kwargs)
        if scope.unbrought:
            raise ModuleError(
                f"{scope.module!r} lifted a method that left {scope.unbrought[0]}, and nobody brought it back.\n"
                "  Call self.bring(collected) after the transformation, or self.lift(method, drop=True)."
            )
        return out
    except Exception as e:
        if not any(note.startswith("In module ") for note in getattr(e, "__notes__", ())):
            e.add_note(f"In module {scope.module!r}, method {function.__name__}({_shapes(args, kwargs)}).")
        raise
    finally:
        scope_var.reset(token)


def _run_remat(scope: Scope, remat: Remat | Regather, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    outer = scope.frame
    leaves, tree = jax.tree.flatten((args, kwargs))
    traced = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, (Array, np.ndarray))}
    tags: set[str] = set()
    lifted = lift(scope, function, run_plain, tags=tags)

    def pure(params: Params, traced: dict[int, Any], state: State | None) -> tuple[Any, Collected]:
        args, kwargs = jax.tree.unflatten(tree, [traced.get(i, leaf) for i, leaf in enumerate(leaves)])
        return lifted(params, state, outer.rng, *args, **kwargs)

    checkpointed: Any = jax.checkpoint(pure, policy=remat.policy, prevent_cse=not outer.apart)
    out, collected = checkpointed(scope.params, traced, outer.state)
    outer.remats.setdefault(remat, set()).update(tags)
    if outer.tags is not None:
        outer.tags.update(tags)
    outer.take(collected)
    return out


def _shapes(args: Any, kwargs: Any) -> str:
    def one(x: Any) -> str:
        return f"{x.dtype}{list(x.shape)}" if isinstance(x, Array) else type(x).__name__

    return ", ".join([*map(one, args), *(f"{name}={one(x)}" for name, x in kwargs.items())])
