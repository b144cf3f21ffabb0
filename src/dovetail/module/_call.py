# SPDX-License-Identifier: Apache-2.0
"""Calls: of a module as a pure function, and of a child by its parent."""
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# What is private to a module is known in this package; the annotations of JAX are incomplete.

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
from jax import Array
from jax.typing import DTypeLike

from dovetail.config import did_you_mean

from ._context import Collected, Frame, ModuleError, Params, Scope, State, current
from ._layout import Layout
from ._lift import child_scope, lift, run_module
from ._state import StateSpecs
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
    step: Array | int | None = None,
    dtype: DTypeLike | None = None,
    layout: Layout | None = None,
    **named_inputs: Any,
) -> tuple[Any, Collected]:
    """Runs a method of `module` as a pure function, for jit, grad, scan, vmap, remat and shard_map to see.

    Args:
        params: parameters, and, if there is any, the state of the run, `merged` into one tree.
        rng: key for random numbers; each module gets its own, folded by path.
        state: of the sequences, as `make_state` made it, or as the call before returned it; the returned one replaces
            it. None: layers keep no state.
        step: of training, for modules that ask for it.
        dtype: what floating-point parameters are cast to when a module reads them; None leaves them as they are.
        layout: how arrays lie on the mesh in use (`jax.set_mesh`); None: as the compiler decides.
    """
    frame = Frame(
        rng=None if rng is None else lambda: rng,
        train=train,
        dtype=dtype,
        step=step,
        state=None if state is None else dict(state),
        layout=layout,
    )
    out = _run(frame, module, params, method, inputs, named_inputs)
    return out, frame.collected()


def state_specs(
    module: "Module",
    params: Params,
    *inputs: Any,
    sizes: Mapping[str, int],
    method: str = "forward",
    dtype: DTypeLike | None = None,
    layout: Layout | None = None,
    **named_inputs: Any,
) -> StateSpecs:
    """Lists the state of sequences that such a call needs, by path of the call, from one trace: nothing is computed.

    `make_state` allocates it. Arrays may be `jax.ShapeDtypeStruct`.

    Args:
        sizes: numbers for the names of sizes that modules declare, such as "batch" and "capacity".
    """
    leaves, tree = jax.tree.flatten((params, inputs, named_inputs))
    arrays = {i: leaf for i, leaf in enumerate(leaves) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")}
    declared: StateSpecs = {}

    def trace(arrays: dict[int, Any]) -> None:
        params, inputs, named = jax.tree.unflatten(tree, [arrays.get(i, leaf) for i, leaf in enumerate(leaves)])
        frame = Frame(dtype=dtype, step=0, state={}, sizes=sizes, declared=declared, layout=layout)
        _run(frame, module, params, method, inputs, named)

    jax.eval_shape(trace, arrays)
    return declared


def size_names(module: "Module", params: Params, *inputs: Any, sizes: Mapping[str, int], **options: Any) -> set[str]:
    """Returns the names of sizes in the state that such a call needs, whatever they are.

    Args:
        sizes: those that the inputs tell, such as "batch".
        options: of `state_specs`.
    """
    names = _AnySize(sizes)
    state_specs(module, params, *inputs, sizes=names, **options)
    return names.asked


class _AnySize(dict[str, int]):
    """A number for every name, and which were asked for. Nothing is allocated: there is room for any input."""

    def __init__(self, known: Mapping[str, int]) -> None:
        super().__init__(known)
        self.asked: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> int:
        self.asked.add(name)
        return self.get(name, 2**16)


def _run(frame: Frame, module: "Module", params: Params, method: str, inputs: Any, named_inputs: Any) -> Any:
    function = unscoped(module, method)
    wrong = check_params(module, params)
    if wrong:
        raise ModuleError(wrong)
    out = run_module(Scope(frame, module, params, module._path), function, inputs, named_inputs)
    for remat, tags in frame.remats.items():
        remat.check(tags)
    return out


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
    if module._is_frozen and not outer.module._is_frozen:
        return run_without_gradient(outer, child_scope(outer, module), function, args, kwargs)
    return run_module(child_scope(outer, module), function, args, kwargs)


def run_without_gradient(
    outer: Scope, scope: Scope, function: Callable[..., Any], args: Any, kwargs: Any, off: frozenset[str] = frozenset()
) -> Any:
    """Runs a method in evaluation mode, so that no gradient reaches its parameters; its losses count for nothing.

    Gradients of what it is given pass, so that it can be a critic of another model.
    """
    frame = outer.frame
    lifted = lift(scope, function, train=False, off=frame.off | off)
    out, found = lifted(jax.lax.stop_gradient(scope.params), frame.state, frame.rng, *args, **kwargs)
    frame.take(Collected(found.summaries, {}, found.state, {}, found.published))
    return out


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
