# SPDX-License-Identifier: Apache-2.0
"""Calls: of a module as a pure function, and of a child by its parent."""
# pyright: reportPrivateUsage=false
# What is private to a module is known in this package.

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jax import Array
from jax.typing import DTypeLike

from dovetail.config import did_you_mean

from ._context import Collected, Frame, ModuleError, Params, Scope, State, current
from ._layout import Layout
from ._lift import child_scope, run_module
from ._tree import check_params

if TYPE_CHECKING:
    from ._module import Module


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
    out = run_module(scope, function, inputs, named_inputs)
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
    outer = current()
    if outer is None:
        raise ModuleError(f"{module!r}: called outside of a call. Use call(module, params, inputs).")
    if module._parent is not outer.module:
        raise ModuleError(f"{outer.module!r} calls {module!r}, {_relation(outer.module, module)}")
    return run_module(child_scope(outer, module), function, args, kwargs)


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
