# SPDX-License-Identifier: Apache-2.0
"""`Module`: a component that declares children and parameters, and computes with them inside a call."""
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# A parent places its child in the tree; JAX's own annotations are incomplete.

import functools
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from dovetail.config import Component, ConfigBase, ConfigError, Incomplete, did_you_mean, fields_of

from ._call import call_child, run_without_gradient
from ._context import Collected, ModuleError, Scope, current, own_scope, random_key, read_state, write_state
from ._html import html_of
from ._layout import Axes, Exchange
from ._lift import Lifted, bring, child_scope, lift_bound
from ._param import Init, ParamSpec, UpdateRule, variance_scaling
from ._published import Keep, Published, after, published
from ._remat import Remat
from ._shards import run_on_shards
from ._state import Lifetime, Size, StateSpec, run_spec
from ._tree import describe, join, modules

_T = TypeVar("_T")
_LEAVES = "The value could not leave it. Return it from the transformed function and report it outside"
_NAME = re.compile(r"([A-Za-z]\w*)(\[\d+\]|\.[A-Za-z]\w*)?\Z")  # As in config paths: ffn, layers[0], heads.left.


class Module(Component):
    """A part of a model. It holds no arrays; it declares what it needs and finds it in the invocation context.

    In `__init__`, `self.child`, `self.param` and `self.state` declare. In public methods, which only run
    inside `call`, `self.ffn(x)` calls a child and `self.weight` reads a parameter. A module calls public methods of
    its own children and reads nothing else of them.
    """

    class Config(Component.Config):
        remat: Remat | None = None  # Compute activations of this module again in the backward pass.

        def build(self, *, path: str = "", **kwargs: Any) -> Any:
            """Makes the module, which is fixed from then on."""
            module = super().build(path=path, **kwargs)
            module.__dict__["_sealed"] = True
            return module

    def __init__(self, cfg: Config, *, path: str = "") -> None:
        self._declared: dict[str, str] = {}  # Every name in use, and as what.
        super().__init__(cfg, path=path)
        self._name = path.rpartition(".")[2]
        self._parent: Module | None = None
        self._children: dict[str, tuple[Module, int]] = {}
        self._params: dict[str, ParamSpec] = {}
        self._state: dict[str, StateSpec] = {}
        self._run_state: dict[str, ParamSpec] = {}
        self._is_frozen = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in list(vars(cls).items()):
            if isinstance(value, types.FunctionType) and not name.startswith("_"):
                setattr(cls, name, _scoped(value))

    # Declarations, in __init__.

    def child(self, name: str, cfg: ConfigBase, *, stack: int = 0, frozen: bool = False) -> Any:
        """Declares and builds a child.

        Args:
            stack: its parameters are those of so many layers in one array.
            frozen: it is not trained: it runs in evaluation mode, and no gradient reaches its parameters.
        """
        if not isinstance(cfg, Module.Config):
            raise ConfigError(f"{join(self.path, name)}: expected a Module.Config, found {cfg!r}.")
        self._declare(name, "child")
        fields = fields_of(self._cfg)
        if _NAME.sub(r"\1", name) not in fields:
            raise ConfigError(
                f"{self!r}: child {name!r} has no field of that name in its config, which has: {', '.join(fields)}.\n"
                "  Declare one: config tree and module tree share their names, and replace_all looks into fields."
            )
        try:
            module: Module = cfg.build(path=join(self.path, name))
        except Incomplete:
            return None  # The outermost build() goes on to find what else is missing, then reports all of it.
        module.__dict__.update(_name=name, _parent=self)
        for each, _ in modules(module) if frozen else ():
            each.__dict__["_is_frozen"] = True
        self._children[name] = (module, stack)
        return module

    def param(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        axes: tuple[str | None, ...],
        init: Init | None = None,
        dtype: DTypeLike = jnp.float32,
        in_dims: tuple[int, ...] | None = None,
        out_dims: tuple[int, ...] | None = None,
        cast: bool = True,
    ) -> None:
        """Declares a parameter, which methods read as `self.<name>`.

        Args:
            axes: a logical name (or None) for each dimension, from which the sharding follows.
            init: how it is filled; by default normal with variance 1 / fan_in, for two dimensions or more.
            in_dims, out_dims: dimensions summed over, and produced, counted from the end; by default -2 and -1.
            cast: to the compute dtype, when it is read.
        """
        self._declare(name, "parameter")
        where = join(self.path, name)
        _check_axes(where, axes, shape)
        if init is None and len(shape) < 2:
            raise ConfigError(f"{where}: a parameter of shape {shape} has no default initial value. Pass init=...")
        fans = ((-2,), (-1,)) if len(shape) > 1 else ((), ())
        self._params[name] = ParamSpec(
            shape=tuple(shape),
            axes=tuple(axes),
            init=init or variance_scaling(),
            dtype=dtype,
            in_dims=fans[0] if in_dims is None else in_dims,
            out_dims=fans[1] if out_dims is None else out_dims,
            cast=cast,
        )

    def state(
        self,
        name: str,
        shape: tuple[Size, ...],
        *,
        axes: Axes,
        dtype: DTypeLike | None = None,
        init: Any = 0,
        lifetime: Lifetime = "sequence",
        update_rule: UpdateRule | None = None,
    ) -> None:
        """Declares an array that is kept from call to call; methods read `self.<name>` and write by `self.update`.

        State of a sequence belongs to a call: its path is that of the call. State of a run belongs to the module: a
        step of training reads it as it was before, and changes it at its end, by what was handed to `update`.

        Args:
            shape: numbers, or names of sizes that are known when state is made: "batch", "capacity", "pages", ...
            axes: a logical name (or None) for each dimension, from which the sharding follows.
            dtype: None: that of the computation; float32 for state of a run.
            init: the value at the start, or a function of the shape (`Init` for state of a run).
            update_rule: of state of a run: from the value, and the mean over the batch of what was handed in, to the
                next value; by default the latter.
        """
        self._declare(name, "state")
        where = join(self.path, name)
        _check_axes(where, axes, shape)
        if lifetime == "sequence":
            if update_rule is not None:
                raise ConfigError(
                    f"{where}: has an update_rule, which is for state of a run. Set lifetime='run', or leave it out."
                )
            self._state[name] = StateSpec(tuple(shape), tuple(axes), dtype, init)
            return
        numbers = tuple(size for size in shape if isinstance(size, int))
        if len(numbers) < len(shape):
            raise ConfigError(f"{where}: state of a run has numbers as sizes, found {shape}.")
        self._run_state[name] = run_spec(numbers, tuple(axes), dtype or jnp.float32, init, update_rule)

    def _declare(self, name: str, kind: str) -> None:
        where = f"{self!r}: {kind} {name!r}"
        if not _NAME.match(name):
            raise ConfigError(
                f"{where} is not a name. Use letters, digits and _, as in 'ffn', 'layers[0]', 'heads.left'."
            )
        if name in self._declared:
            raise ConfigError(f"{where} is declared twice; the name is already that of a {self._declared[name]}.")
        if hasattr(Module, name):
            raise ConfigError(f"{where} has a name that Module itself uses. Choose another one.")
        self._declared[name] = kind

    # The context, in methods.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs `forward`."""
        return cast(Any, self).forward(*args, **kwargs)

    @property
    def path(self) -> str:
        """The place in the tree: the same in configs, modules, parameters, summaries and errors."""
        return self._path

    @property
    def cfg(self) -> Any:
        """The config this module was built from; its own business, not its parent's."""
        scope = current()
        if scope is not None and scope.module is not self:
            own_scope(self, "the config")
        return self._cfg

    @property
    def training(self) -> bool:
        """Whether this call trains, as opposed to evaluating."""
        return self._scope("the mode").frame.train

    @property
    def stateful(self) -> bool:
        """Whether this call keeps the state of sequences."""
        frame = self._scope("the mode").frame
        frame.check_state(self)
        return frame.state is not None

    @property
    def step(self) -> Array | int:
        """The step of training that this call belongs to: how many were made before."""
        step = self._scope("the step").frame.step
        if step is None:
            raise ModuleError(f"{self!r} asks for the step of training. Say which it is: call(..., step=0).")
        return step

    def enabled(self, part: str) -> bool:
        """Whether a part, such as "lora", is on in this call; `without_gradient(..., off=...)` switches it off."""
        return part not in self._scope("what is on").frame.off

    @property
    def published(self) -> Mapping[str, Published]:
        """What this module and its children have published in this call so far, for who tells later layers."""
        return self._scope("what is published").frame.published

    def publish(self, name: str, value: Any, *, keep: Keep = "last") -> None:
        """Hands arrays `[B, ...]` to all layers that come later, which find them by name in their context.

        Args:
            keep: which publication of this name later layers see.
        """
        scope = self._scope(f"to publish {name!r}")
        scope.frame.check_trace(f"{self!r} publishes {name!r}", _LEAVES)
        if scope.frame.on_shards:
            raise ModuleError(f"{self!r} publishes {name!r} inside on_shards. Return it, and publish it outside.")
        try:
            new = published(value, keep)
        except ValueError as e:
            raise ModuleError(f"{self!r} publishes {name!r}: {e}, found {jax.tree.map(jnp.shape, value)}.") from None
        scope.frame.published = after(scope.frame.published, {name: new})

    def without_gradient(self, method: Any, *inputs: Any, off: Sequence[str] = (), **named_inputs: Any) -> Any:
        """Runs a public method of a child in evaluation mode, with parameters that no gradient reaches.

        `self.without_gradient(self.policy.log_probs, batch, off=["lora"])` is what it computes without its adapters.

        Args:
            off: parts that are switched off in this call; see `enabled`.
        """
        scope = self._scope("to run a method")
        owner: Any = getattr(method, "__self__", method)
        kind: Any = type(owner)
        public = getattr(getattr(method, "__func__", None) or getattr(kind, "forward", None), "unscoped", None)
        if getattr(owner, "_parent", None) is not self or public is None:
            raise ModuleError(f"{self!r} runs {method!r} without gradient. Expected a public method of its children.")
        inner = child_scope(scope, owner)
        return run_without_gradient(scope, inner, public, inputs, named_inputs, frozenset(off))

    @property
    def compute_dtype(self) -> DTypeLike | None:
        """What parameters are cast to when read; None: they are left as they are."""
        return self._scope("the dtype").frame.dtype

    def rng(self, name: str = "") -> Array:
        """Returns a random key of this module's own; each time another one. In `on_shards`, each part has its own."""
        return random_key(self._scope("random numbers"), name)

    def tag(self, name: str, value: _T) -> _T:
        """Names an activation, so that `Remat` can choose it. Costs nothing outside a remat region."""
        scope = self._scope(f"to tag {name!r}")
        if scope.frame.tags is None:
            return value
        full = join(scope.path, name)
        scope.frame.tags.add(full)
        named: Any = functools.partial(checkpoint_name, name=full)
        return jax.tree.map(named, value)

    def constrain(self, value: Array, *axes: str | None) -> Array:
        """Says what the dimensions of an activation are, from which follows how it lies on the mesh, if there is one.

        Costs nothing on one device.
        """
        layout = self._scope("the layout").frame.layout
        return value if layout is None else layout.constrain(value, axes)

    def group(self, axis: str, size: int | None = None) -> tuple[str, ...]:
        """Returns the mesh axes over which a logical axis of parameters is split, for collectives in `on_shards`."""
        layout = self._scope("the layout").frame.layout
        return () if layout is None else layout.parameter_axes(axis, size)

    def exchange(self, axis: str, sizes: Array, num_rows: int, *, room: float) -> Exchange | None:
        """Returns an exchange of rows with the devices that hold the parts of a logical axis of parameters.

        For methods in `on_shards`; see `Layout.exchange`. None: all of the axis is here.
        """
        layout = self._scope("the layout").frame.layout
        return None if layout is None else layout.exchange(axis, sizes, num_rows, room=room)

    def on_shards(
        self,
        method: Callable[..., Any],
        *inputs: Array,
        in_axes: Sequence[Axes],
        out_axes: Axes | None,
        keep: Sequence[str] = (),
    ) -> Any:
        """Runs a method of this module on each device's own part of the inputs, where these are split over a mesh.

        Parameters arrive whole, except along the axes in `keep`: there, each device has its part. What the method
        reports is averaged over the parts. Without a mesh, this is a plain call. Random numbers are other ones in each
        part, so they depend on the mesh; drawn before and passed as an input, they do not. Decode state stays outside.

        Args:
            in_axes: the logical axes of each input.
            out_axes: those of the result; None: the results, a tree of arrays, are summed over all parts.
        """
        return run_on_shards(self._scope("its shards"), method, inputs, in_axes, out_axes, keep)

    def lift(self, method: Any, *, drop: bool = False) -> Lifted:
        """Returns a method of its own, or a child or a public method of it, as a pure function that JAX may transform.

        `pure(params, state, key, *inputs)` returns the outputs and a `Collected`, which `bring` takes when the
        transformation is over. `pure.params`, `pure.state` and `pure.key` are what the method would find if it were
        called now, and `pure.keys(n)` has a key for each of n calls:

            step = self.lift(self.cell)

            def body(x, key):
                return step(step.params, None, key, x)

            x, collected = jax.lax.scan(body, x, step.keys(n), length=n)
            self.bring(collected, stacked=True)

        Args:
            drop: summaries and losses of the method are not wanted; else a method that does not bring them is an error.
        """
        return lift_bound(self._scope("to lift a method"), method, drop)

    def bring(self, collected: Collected, *, stacked: bool = False) -> None:
        """Reports what lifted methods left behind: summaries and losses leave this call, the state replaces the old.

        Args:
            stacked: the results have a first dimension of their own, as those of a scan; `per_layer` takes them apart.
        """
        bring(self._scope("to bring back results"), collected, stacked=stacked)

    def summary(self, name: str, value: Array | float) -> None:
        """Reports a value; it leaves the call in `Collected.summaries` under this module's path."""
        scope = self._scope(f"to report {name!r}")
        self._report(scope, scope.frame.summaries, name, value, "summary")

    def add_loss(self, name: str, value: Array) -> None:
        """Adds an auxiliary loss; it leaves the call in `Collected.losses` under this module's path."""
        scope = self._scope(f"to add the loss {name!r}")
        self._report(scope, scope.frame.losses, name, value, "loss")

    def update(self, name: str, value: Any) -> None:
        """Writes state. Of a sequence: reading it later in this call, or in the next, gives the new value.

        Of a run: what is handed in, in all calls of a step, is averaged over the parts of the batch; at the end of the
        step, `update_rule` makes the next value of it.
        """
        scope = self._scope(f"to update {name!r}")
        scope.frame.check_trace(f"{self!r} updates the state {name!r}", _LEAVES)
        if name in self._run_state:
            value = jax.lax.stop_gradient(jnp.asarray(value))
            if value.dtype in (jnp.bfloat16, jnp.float16):  # Means are in float32, and rules get what is.
                value = value.astype(jnp.float32)
            scope.frame.updates.setdefault(join(self.path, name), []).append(value)
        elif name in self._state:
            write_state(scope, name, value)
        else:
            raise ModuleError(f"{self!r} has no state {name!r}. Declare it in __init__: self.state({name!r}, ...).")

    def _report(self, scope: Scope, values: dict[str, Array], name: str, value: Any, kind: str) -> None:
        scope.frame.check_trace(f"{self!r} reports the {kind} {name!r}", _LEAVES)
        full = join(scope.path, name)
        if full in values:
            raise ModuleError(f"{self!r} reports the {kind} {name!r} twice in one call. Give the second another name.")
        values[full] = jnp.asarray(value)

    def _scope(self, what: str) -> Scope:
        return own_scope(self, what)

    def __getattr__(self, name: str) -> Any:
        declared = self.__dict__.get("_declared")
        if declared is None:
            raise AttributeError(f"{type(self).__name__}.__init__ must first call super().__init__(cfg, **kwargs).")
        if declared.get(name) == "parameter":
            return self._read_param(name, own_scope(self, f"the parameter {name!r}"))
        if declared.get(name) == "state":
            scope = own_scope(self, f"the state {name!r}")
            return self._read_run_state(name, scope) if name in self._run_state else read_state(scope, name)
        if declared.get(name) == "child":
            raise AttributeError(f"{self!r}: assign the child, self.{name} = self.child({name!r}, ...).")
        hint = did_you_mean(name, [*declared, *vars(self)]) or f" It has declared: {', '.join(declared) or 'nothing'}."
        raise AttributeError(f"{self!r} has no attribute {name!r}.{hint}", name=name, obj=self)

    def _read_param(self, name: str, scope: Scope) -> Array:
        where, spec = join(self.path, name), self._params[name]
        value = scope.params.get(name)
        if value is None:
            raise ModuleError(
                f"{where}: not among the parameters that call(...) was given. They hold: {list(scope.params)}."
            )
        value = spec.as_read(value, scope.frame.dtype)
        layout = scope.frame.layout
        return value if layout is None else layout.gather(value, spec)

    def _read_run_state(self, name: str, scope: Scope) -> Array:
        if name not in scope.params:
            raise ModuleError(
                f"{join(self.path, name)}: state of the run, which call(...) was not given.\n"
                "  Pass merged(params, run_state), where run_state is that of the run, or init_run_state(module)."
            )
        return jax.lax.stop_gradient(scope.params[name])

    def __setattr__(self, name: str, value: Any) -> None:
        if "_sealed" in self.__dict__:
            raise ModuleError(
                f"{self!r}: self.{name} cannot be set, a module is fixed once built.\n"
                "  Return the value, report it with self.summary, or declare it with self.state and self.update it."
            )
        if isinstance(value, Array):
            raise ModuleError(f"{self!r}: self.{name} is an array. A module holds none: declare it with self.param.")
        if self.__dict__.get("_declared", {}).get(name) in ("parameter", "state"):
            raise ModuleError(f"{self!r}: self.{name} would hide the {self._declared[name]} of that name.")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"{self.__dict__.get('_path') or '(root)'} ({type(self).__name__})"

    def __str__(self) -> str:
        return describe(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return html_of(self)


def _check_axes(where: str, axes: Axes, shape: tuple[Size, ...]) -> None:
    if len(axes) != len(shape):
        raise ConfigError(f"{where}: {len(axes)} axes {axes} for {len(shape)} dimensions {shape}. Name each, or None.")


def _scoped(function: Any) -> Any:
    """Makes a public method enter the scope of its module, if it is not already there."""

    @functools.wraps(function)
    def run(self: Module, *args: Any, **kwargs: Any) -> Any:
        scope = current()
        if scope is not None and scope.module is self:
            return function(self, *args, **kwargs)
        return call_child(self, function, args, kwargs)

    run.__dict__["unscoped"] = function  # For `call` and `Repeat`, which make the scope themselves.
    return run
