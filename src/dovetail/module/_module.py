# SPDX-License-Identifier: Apache-2.0
"""`Module`: a component that declares children and parameters, and computes with them inside a call."""
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# A parent places its child in the tree; JAX's own annotations are incomplete.

import functools
import re
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from dovetail.config import Component, ConfigBase, ConfigError, Incomplete, did_you_mean, fields_of

from ._call import call_child
from ._context import Collected, ModuleError, Scope, current, own_scope, random_key
from ._layout import Axes, Exchange
from ._lift import Lifted, bring, lift_bound
from ._param import Init, ParamSpec, Rule, variance_scaling
from ._remat import Remat
from ._shards import run_on_shards
from ._tree import describe, join

_T = TypeVar("_T")
_LEAVES = "The value could not leave it. Return it from the transformed function and report it outside"
_NAME = re.compile(r"([A-Za-z]\w*)(\[\d+\]|\.[A-Za-z]\w*)?\Z")  # As in config paths: ffn, layers[0], heads.left.


class Module(Component):
    """A part of a model. It holds no arrays; it declares what it needs and finds it in the invocation context.

    In `__init__`, `self.child` and `self.param` (and `self.state_var`) declare. In public methods, which only run
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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in list(vars(cls).items()):
            if isinstance(value, types.FunctionType) and not name.startswith("_"):
                setattr(cls, name, _scoped(value))

    # Declarations, in __init__.

    def child(self, name: str, cfg: ConfigBase, *, stack: int = 0) -> Any:
        """Declares and builds a child. With `stack`, its parameters are those of so many layers in one array."""
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
        rule: Rule | None = None,
        cast: bool = True,
    ) -> None:
        """Declares a parameter, which methods read as `self.<name>`.

        Args:
            axes: a logical name (or None) for each dimension, from which the sharding follows.
            init: how it is filled; by default normal with variance 1 / fan_in, for two dimensions or more.
            in_dims, out_dims: dimensions summed over, and produced, counted from the end; by default -2 and -1.
            rule: changes the parameter in each step, from its value and gradient, in place of optimizer and decay.
            cast: to the compute dtype, when it is read.
        """
        self._declare(name, "parameter")
        where = join(self.path, name)
        if len(axes) != len(shape):
            raise ConfigError(
                f"{where}: {len(axes)} axes {axes} for {len(shape)} dimensions {shape}. Name each, or None."
            )
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
            rule=rule,
            cast=cast,
        )

    def state_var(self, name: str) -> None:
        """Declares a piece of decode state, which methods read as `self.<name>` and write by `self.update`."""
        self._declare(name, "state")

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
        """Whether this call keeps decode state."""
        frame = self._scope("the mode").frame
        frame.check_state(self)
        return frame.state is not None

    @property
    def capacity(self) -> int:
        """How many positions new decode state must have room for."""
        capacity = self._scope("the capacity").frame.capacity
        if capacity is None:
            raise ModuleError(f"{self!r} starts its decode state. Say how many positions: call(..., capacity=n).")
        return capacity

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

    def lay(self, value: Array, *axes: str | None) -> Array:
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
        """Writes decode state; reading it later in this call, or in the next, gives the new value."""
        scope = self._scope(f"to update {name!r}")
        if self._declared.get(name) != "state":
            raise ModuleError(f"{self!r} has no state {name!r}. Declare it in __init__: self.state_var({name!r}).")
        if scope.frame.state is None:
            raise ModuleError(
                f"{self!r} updates {name!r}, but this call keeps no state. Test self.stateful, or pass state={{}}."
            )
        scope.frame.check_state(self)
        scope.frame.check_trace(f"{self!r} updates the state {name!r}", _LEAVES)
        scope.frame.state[join(self.path, name)] = value

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
            return self._read_state(name, own_scope(self, f"the state {name!r}"))
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

    def _read_state(self, name: str, scope: Scope) -> Any:
        scope.frame.check_state(self)
        where, state = join(self.path, name), scope.frame.state
        if state is None or where not in state:
            raise ModuleError(f"{where}: there is no such state yet. Test self.has_state({name!r}) before reading it.")
        return state[where]

    def has_state(self, name: str) -> bool:
        """Whether this piece of decode state has been written."""
        frame = self._scope(f"the state {name!r}").frame
        frame.check_state(self)
        return join(self.path, name) in (frame.state or {})

    def __setattr__(self, name: str, value: Any) -> None:
        if "_sealed" in self.__dict__:
            raise ModuleError(
                f"{self!r}: self.{name} cannot be set, a module is fixed once built.\n"
                "  Return the value, report it with self.summary, or declare it with self.state_var and self.update it."
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
