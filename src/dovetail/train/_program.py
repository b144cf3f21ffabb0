# SPDX-License-Identifier: Apache-2.0
"""The program of a run: model, learner and compiled step, as a config and the devices make them."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np

from dovetail.config import ConfigBase, ConfigError
from dovetail.data import BatchSpec, Input
from dovetail.module import Collected, Objective, call, init, init_run_state, modules, specs
from dovetail.nn import with_remat
from dovetail.ops import Choice, kernel_choices
from dovetail.optim import Learner
from dovetail.parallel import BatchShape, on_mesh
from dovetail.progress import phase

from ._batch import abstract_batch, batch_shape, largest
from ._device_sums import DeviceSums
from ._devices import Devices
from ._ends import LEFT, abstract_left
from ._fields import trace_loss
from ._hardware_check import HardwareCheck
from ._loss_scales import LossScales
from ._spikes import Spikes
from ._step import TrainState, eval_step, init_state, train_step

if TYPE_CHECKING:
    from ._evaluator import Evaluated
    from ._trainer import Trainer

DTYPES = {"float32": None, "bfloat16": jnp.bfloat16}
_OF_FILES = frozenset(("dump", "file", "files", "path", "paths", "dir", "directory"))  # Words in names of options.


class Program:
    """What a trainer runs. It needs no data, and with `devices` that are only described, it compiles all the same.

    With `trains=False` it is not for training steps: those need not fit on the mesh.
    """

    def __init__(self, cfg: "Trainer.Config", devices: Sequence[Any] | None = None, *, trains: bool = True) -> None:
        self.cfg = cfg
        self.model: Objective = on_mesh(with_remat(cfg.model, cfg.remat), cfg.mesh).build(path="model")
        self.batches: tuple[BatchSpec, ...] = cfg.input.batch_specs() if trains else ()
        step = batch_shape(self.batches, cfg.num_microbatches) if trains else BatchShape(rows=0)
        self.devices = Devices(cfg.mesh, self.model, step, devices)
        built = {"specs": specs(self.model), "steps": cfg.steps, "branches": self.devices.platform == "cpu"}
        self.learner: Learner = cfg.learner.build(path="learner", **built)
        if trains:
            self._check_split()
        self.dtype = DTYPES[cfg.compute_dtype]
        self.spikes: Spikes | None = cfg.spikes and cfg.spikes.build(path="spikes")
        if self.spikes:
            self.spikes.check(cfg.learner.skip)
        self.shardings = self.devices.state_shardings(self.learner, self.spikes)
        self._sums = self._gradient_sums(cfg.hardware_check) if cfg.hardware_check else None
        self.was_kept = False  # Whether the compiled step came from JAX's cache.
        self.fallbacks: list[Choice] = []  # Kernels that were not the first choice, known when the step is traced.
        self._scales = LossScales(cfg.loss_scales, cfg.steps) if cfg.loss_scales else None
        self._calls: dict[str, Callable[..., Any]] = {}

    def check_input(self, path: str, data: Input.Config) -> None:
        """Raises if an input does not give what the objective reads, in sizes that the mesh can split."""
        self.devices.check_lengths(path, data.batch_specs())
        for spec in data.batch_specs():
            found = trace_loss(self._on_one_device, spec, f"{path} ({_owner(data)})", dtype=self.dtype)
            if self._scales:
                self._scales.check(found.losses)

    @functools.cached_property
    def _on_one_device(self) -> Objective:
        """The model for batches of any size, those included that are filled up on a mesh."""
        return self.cfg.model.build(path="model")

    def compiled(self, state: TrainState, spec: BatchSpec) -> Callable[..., Any]:
        """Returns the step, `step(state, batch) -> state, metrics`, compiled; it takes the memory of the old state.

        With a hardware check it also returns sums over the gradients, of the steps that are checked.
        """
        batch = abstract_batch(spec, self.devices.batch_shardings(spec)) | abstract_left(self.devices)
        with _from_cache() as found:
            compiled = self.compile(jax.jit(self._step(spec), **self._options()), state, batch)
        self.was_kept = bool(found)
        return compiled

    def traced(self) -> Any:
        """Returns the step for state and batches of the right shapes (`jax.stages.Traced`); nothing is compiled yet.

        Of several shapes that batches may have, it is the one with the most to compute.
        """
        spec = largest(self.batches)
        inputs = self.abstract_state(), abstract_batch(spec, self.devices.batch_shardings(spec))
        with self.devices.ambient():
            return jax.jit(self._step(spec), **self._options()).trace(*inputs)

    def eval_step(self) -> Callable[..., Any]:
        """Returns `eval_step(params, batch, spec, step)`: the `Loss` of a batch, and its units by what its spec counts.

        It is compiled when there is the first batch of a shape.
        """
        loss = eval_step(self.model, dtype=self.dtype, layout=self.devices.layout)
        compiled: dict[Any, Callable[..., Any]] = {}

        def run(params: Any, batch: Mapping[str, Any], spec: BatchSpec, step: int) -> Any:
            shapes = tuple(value.shape for value in batch.values())
            if shapes not in compiled:
                both = jax.jit(
                    lambda *args: (loss(*args), jnp.asarray(spec.count(args[1]), jnp.float32)),
                    out_shardings=self.devices.everywhere,
                )
                compiled[shapes] = self.compile(both, params, batch, np.int32(step))
            return compiled[shapes](params, batch, np.int32(step))

        return run

    def call(self, at: "Evaluated", *inputs: Any, method: str = "loss") -> tuple[Any, Collected]:
        """Calls a method of the model, compiled, on the mesh and in the dtype of the run; see `dovetail.module.call`.

        `Collected` has what modules report: summaries and auxiliary losses.
        """
        if method not in self._calls:
            options = {"method": method, "dtype": self.dtype, "layout": self.devices.layout}

            def run(params: Any, step: Any, *inputs: Any) -> tuple[Any, Collected]:
                return call(self.model, params, *inputs, step=step, **options)

            self._calls[method] = self.devices.jit(run, out_shardings=self.devices.everywhere)
        return self._calls[method](at.params, np.int32(at.step), *inputs)

    def init(self, key: Any) -> TrainState:
        """Returns the state before the first step."""
        return init_state(init(self.model, key), self.learner, init_run_state(self.model), self.spikes)

    def abstract_state(self) -> Any:
        """Returns shapes, dtypes and places of the state."""
        state = jax.eval_shape(lambda: self.init(jax.random.key(0)))
        return state if self.shardings is None else jax.tree.map(_placed, state, self.shardings)

    def compile(self, jitted: Any, *inputs: Any) -> Callable[..., Any]:
        """Returns a jitted function, compiled for its inputs on the devices of the run."""
        with phase("tracing"), self.devices.ambient():
            lowered = jitted.lower(*inputs)
        with phase("compiling"):
            return lowered.compile()

    def _step(self, spec: BatchSpec) -> Callable[..., Any]:
        cfg, layout = self.cfg, self.devices.layout
        common: dict[str, Any] = {
            "seed": cfg.seed,
            "num_microbatches": cfg.num_microbatches,
            "dtype": self.dtype,
            "layout": layout,
        }
        common |= {"scales": self._scales, "spikes": self.spikes, "gradient_sums": self._sums}
        inner = train_step(self.model, self.learner, **common)

        def step(state: TrainState, batch: Mapping[str, Any]) -> tuple[Any, ...]:
            batch = dict(batch)
            left = {LEFT: batch.pop(LEFT).min()} if LEFT in batch else {}
            with kernel_choices() as choices:
                state, metrics, *sums = inner(state, batch)
            metrics |= left
            self.fallbacks = [choice for choice in choices if choice.is_fallback]
            metrics[f"{spec.unit}s"] = jnp.asarray(spec.count(batch), jnp.float32)
            return state, metrics | {f"fallback/{choice.path}": jnp.ones(()) for choice in self.fallbacks}, *sums

        return step

    def _gradient_sums(self, check: HardwareCheck) -> Callable[[Any, Any], Any]:
        params = None if self.shardings is None else jax.tree.leaves(self.shardings.params)
        sums = DeviceSums(self.devices.mesh, params)
        return lambda grads, step: sums.of(grads, (step + 1) % check.every == 0)

    def _options(self) -> dict[str, Any]:
        options = _checked(self.cfg.compiler_options.get(self.devices.platform, {})) or None
        places = (self.shardings, self.devices.everywhere)
        if self.cfg.hardware_check:
            places = (*places, self.devices.each_its_own)
        return {"donate_argnums": 0, "out_shardings": places, "compiler_options": options}

    def _check_split(self) -> None:
        """Raises if the batch is to be split, and the loss is not a sum over its rows."""
        whole = [m for m, _ in modules(self.model) if isinstance(m, Objective) and not m.sums_over_rows]
        layout = self.devices.layout
        pipelining = layout.pipelining if layout else None
        early = pipelining is not None and pipelining.schedule == "one_forward_one_backward"
        if whole and (self.cfg.num_microbatches > 1 or early):
            found = f"num_microbatches is {self.cfg.num_microbatches}"
            found = "mesh.schedule is one_forward_one_backward" if early else found
            raise ConfigError(
                f"{whole[0]!r}: its loss is not a sum over rows, so that a batch must not be split, but {found}.\n"
                "  Use num_microbatches=1 and mesh.schedule=forward_first; for less memory, remat=full or more devices."
            )


def _owner(cfg: ConfigBase) -> str:
    """Returns the class that a config builds, for errors."""
    return type(cfg).__qualname__.removesuffix(".Config")


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of the compiler, none of which names a file: a config from elsewhere may not ask for that."""
    for name in options:
        *_, last = words = name.split("_")
        if last in ("to", "from") or not _OF_FILES.isdisjoint(words):
            raise ConfigError(
                f"compiler_options: {name} makes the compiler read or write files, which a config may not ask for.\n"
                f"  Leave it out; to use it all the same, set XLA_FLAGS=--{name}=... in the environment."
            )
    return dict(options)


def _placed(x: Any, place: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)


@contextlib.contextmanager
def _from_cache() -> Iterator[list[str]]:
    """Yields a list that gets an entry for each program that JAX finds in its cache of compiled ones."""
    found: list[str] = []

    def listen(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            found.append(event)

    jax.monitoring.register_event_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_listener(listen)
