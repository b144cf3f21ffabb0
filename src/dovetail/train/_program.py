# SPDX-License-Identifier: Apache-2.0
"""The program of a run: model, learner and compiled step, as a config and the devices make them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError
from dovetail.models import CausalLM, Sampling, generate
from dovetail.module import init, specs
from dovetail.nn import with_remat
from dovetail.ops import Choice, kernel_choices
from dovetail.optim import Learner
from dovetail.parallel import Batch as BatchSize
from dovetail.parallel import decoding_layout, on_mesh
from dovetail.progress import phase

from ._devices import Devices
from ._step import Batch, Metrics, TrainState, abstract_batch, eval_step, init_state, train_step

DTYPES = {"float32": None, "bfloat16": jnp.bfloat16}
_OF_FILES = frozenset(("dump", "file", "files", "path", "paths", "dir", "directory"))  # Words in names of options.


class Program:
    """What a trainer runs. It needs no data, and with `devices` that are only described, it compiles all the same.

    `batch` is what the mesh must be able to divide, by default that of a training step.
    """

    def __init__(self, cfg: Any, devices: Sequence[Any] | None = None, *, batch: BatchSize | None = None) -> None:
        self._cfg = cfg
        self.model: CausalLM = on_mesh(with_remat(cfg.model, cfg.remat), cfg.mesh).build(path="model")
        step = BatchSize(cfg.input.batch_size, cfg.input.seq_len, cfg.num_microbatches)
        self.devices = Devices(cfg.mesh, self.model, batch or step, devices)
        built = {"specs": specs(self.model), "steps": cfg.steps, "branches": self.devices.platform == "cpu"}
        self.learner: Learner = cfg.learner.build(path="learner", **built)
        if batch is None and cfg.eval_input is not None and cfg.eval_input.seq_len is not REQUIRED:
            self.devices.check_length("eval_input.seq_len", cfg.eval_input.seq_len)
        self.dtype = DTYPES[cfg.compute_dtype]
        self.shardings = self.devices.state_shardings(self.learner)
        self.was_kept = False  # Whether the compiled step came from JAX's cache.
        self.fallbacks: list[Choice] = []  # Kernels that were not the first choice, known when the step is traced.

    def compiled(self, state: TrainState, batch: Batch) -> Callable[..., Any]:
        """Returns the step, `step(state, batch) -> state, metrics`, compiled; it takes the memory of the old state."""
        with _from_cache() as found:
            compiled = self._compile(jax.jit(self._step(), **self._options()), state, batch)
        self.was_kept = bool(found)
        return compiled

    def traced(self) -> Any:
        """Returns the step for state and batches of the right shapes (`jax.stages.Traced`); nothing is compiled yet."""
        size = self._cfg.input.batch_size, self._cfg.input.seq_len
        inputs = self.abstract_state(), abstract_batch(*size, self.devices.batch_sharding)
        with self.devices.ambient():
            return jax.jit(self._step(), **self._options()).trace(*inputs)

    def eval_step(self) -> Callable[..., Any]:
        """Returns `eval_step(params, batch)`: sums of loss, weight and hits; compiled when it is first called."""
        step = eval_step(self.model, dtype=self.dtype, layout=self.devices.layout)
        jitted = jax.jit(step, out_shardings=self.devices.everywhere)
        compiled: list[Callable[..., Any]] = []  # One: all batches of an input have one shape.

        def run(params: Any, batch: Batch) -> Any:
            if not compiled:
                compiled.append(self._compile(jitted, params, batch))
            return compiled[0](params, batch)

        return run

    def generate(self, max_new: int, sampling: Sampling, inputs: Any = None) -> Callable[..., Any]:
        """Returns the compiled `generate(params, prompts, lengths, key)`: new tokens.

        Given inputs, it is compiled for their shapes at once, else when it is first called.
        """
        layout = decoding_layout(self._cfg.mesh)
        options = {"max_new": max_new, "sampling": sampling, "dtype": self.dtype, "layout": layout}
        parts = 1 if layout is None else layout.shards(layout.activation_axes("batch"))

        def run(params: Any, prompts: Any, lengths: Any, key: Any) -> Any:
            count = len(lengths)
            more = -count % parts  # The mesh splits rows: as many as it takes are there several times.
            prompts, lengths = jnp.pad(prompts, ((0, more), (0, 0)), "edge"), jnp.pad(lengths, (0, more), "edge")
            return generate(self.model, params, prompts, lengths, key=key, **options)[:count]

        if inputs is None:
            return self.devices.jit(run, out_shardings=self.devices.everywhere)
        return self._compile(jax.jit(run, out_shardings=self.devices.everywhere), *inputs)

    def init(self, key: Any) -> TrainState:
        """Returns the state before the first step."""
        return init_state(init(self.model, key), self.learner)

    def abstract_state(self) -> Any:
        """Returns shapes, dtypes and places of the state."""
        state = jax.eval_shape(lambda: self.init(jax.random.key(0)))
        return state if self.shardings is None else jax.tree.map(_placed, state, self.shardings)

    def _compile(self, jitted: Any, *inputs: Any) -> Callable[..., Any]:
        with phase("tracing"), self.devices.ambient():
            lowered = jitted.lower(*inputs)
        with phase("compiling"):
            return lowered.compile()

    def _step(self) -> Callable[..., Any]:
        cfg, layout = self._cfg, self.devices.layout
        common = {"seed": cfg.seed, "num_microbatches": cfg.num_microbatches, "dtype": self.dtype, "layout": layout}
        inner = train_step(self.model, self.learner, **common)

        def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
            with kernel_choices() as choices:
                state, metrics = inner(state, batch)
            self.fallbacks = [choice for choice in choices if choice.is_fallback]
            return state, metrics | {f"fallback/{choice.path}": jnp.ones(()) for choice in self.fallbacks}

        return step

    def _options(self) -> dict[str, Any]:
        options = _checked(self._cfg.compiler_options.get(self.devices.platform, {})) or None
        places = (self.shardings, self.devices.everywhere)
        return {"donate_argnums": 0, "out_shardings": places, "compiler_options": options}


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
