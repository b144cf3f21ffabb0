# SPDX-License-Identifier: Apache-2.0
"""The loop: it decides when; the compiled step decides what. Effects (clock, disk, signals) are here alone."""

import contextlib
import signal
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.aot import count_flops
from dovetail.checkpoint import Checkpointer
from dovetail.config import REQUIRED, Component, ConfigError, to_text
from dovetail.data import Input
from dovetail.models import CausalLM, Sampling, generate
from dovetail.module import abstract, init, specs
from dovetail.optim import Learner

from ._observers import JsonLines, Observer, TensorBoard, Terminal
from ._step import TrainState, eval_step, init_state, train_step

_DTYPES = {"float32": None, "bfloat16": jnp.bfloat16}


class Trainer(Component):
    """Trains a language model: `Trainer.Config(...).build().run()`.

    A run lives in a directory: its config, metrics and checkpoints. Running again with the same directory goes on where
    the last checkpoint left off, bit for bit.
    """

    class Config(Component.Config):
        model: CausalLM.Config = REQUIRED
        learner: Learner.Config = REQUIRED
        input: Input.Config = REQUIRED
        eval_input: Input.Config | None = None
        steps: int = REQUIRED
        directory: str = REQUIRED
        checkpoint: Checkpointer.Config = Checkpointer.Config()  # Its directory is set by the run.
        observers: tuple[Observer.Config, ...] = (Terminal.Config(), JsonLines.Config(), TensorBoard.Config())
        num_microbatches: int = 1
        compute_dtype: Literal["float32", "bfloat16"] = "float32"
        seed: int = 0
        log_every: int = 10
        eval_every: int = 500
        save_every: int = 500
        sample_prompt: str = ""  # Continued at each evaluation, if there is one.
        sample_tokens: int = 200
        sampling: Sampling = Sampling(temperature=0.8)

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        for name in ("steps", "log_every", "eval_every", "save_every"):
            if getattr(cfg, name) < 1:
                raise ConfigError(f"{name} is {getattr(cfg, name)}, expected at least 1.")
        self.model: CausalLM = cfg.model.build(path="model")
        self.learner: Learner = cfg.learner.build(path="learner", specs=specs(self.model))
        self.input: Input = cfg.input.build(path="input")
        self.eval_input: Input | None = cfg.eval_input.build(path="eval_input") if cfg.eval_input else None
        self.observers: list[Observer] = [observer.build() for observer in cfg.observers]
        if self.input.vocab_size > cfg.model.vocab_size:
            raise ConfigError(
                f"model.vocab_size is {cfg.model.vocab_size}, but the tokenizer of the input has "
                f"{self.input.vocab_size} tokens. Set it to at least that."
            )
        dtype = _DTYPES[cfg.compute_dtype]
        step = train_step(self.model, self.learner, seed=cfg.seed, num_microbatches=cfg.num_microbatches, dtype=dtype)
        self._step = jax.jit(step, donate_argnums=0)
        self._eval_step = jax.jit(eval_step(self.model, dtype=dtype))
        self._generate = jax.jit(
            lambda params, prompt, length, key: generate(
                self.model, params, prompt, length, key=key, max_new=cfg.sample_tokens, sampling=cfg.sampling
            )
        )

    def run(self) -> TrainState:
        """Trains until `steps`, or until interrupted; returns the last state."""
        directory = _made(Path(self.cfg.directory))
        (directory / "config.txt").write_text(to_text(self.cfg), encoding="utf-8")
        checkpointer: Checkpointer = self.cfg.checkpoint.set(directory=str(directory / "checkpoints")).build()
        with checkpointer, _interruptible() as interrupted:
            state, batches = self._restored(checkpointer)
            done = int(state.step)
            if done:
                print(f"Going on after step {done}, from {self.cfg.directory}.")
            for observer in self.observers:
                observer.start(directory, done + 1, self.cfg.steps)
            try:
                state = self._loop(state, batches, done, checkpointer, interrupted)
            finally:
                for observer in self.observers:
                    observer.stop()
            checkpointer.wait()
        if interrupted:
            print(f"Stopped after step {int(state.step)}, which is saved. To go on, run the same command again.")
        return state

    def _restored(self, checkpointer: Checkpointer) -> tuple[TrainState, Any]:
        batches = iter(self.input)
        make = jax.jit(lambda key: init_state(init(self.model, key), self.learner))
        key = jax.random.key(self.cfg.seed)
        if checkpointer.latest() is None:
            return make(key), batches
        restored = checkpointer.restore(jax.eval_shape(make, key))
        batches.set_state(restored.data_state)
        return restored.state, batches

    def _loop(
        self, state: TrainState, batches: Any, done: int, checkpointer: Checkpointer, interrupted: list[bool]
    ) -> TrainState:
        cfg = self.cfg
        pending: deque[tuple[int, Any]] = deque()
        meter = _Meter(size_of(cfg).flops_per_token)
        for step in range(done + 1, cfg.steps + 1):
            state, metrics = self._step(state, next(batches))
            pending.append((step, metrics))
            last = step == cfg.steps or bool(interrupted)
            while pending and (last or jax.tree.leaves(pending[0][1])[0].is_ready()):
                self._report(*pending.popleft(), meter)
            if last or step % cfg.save_every == 0:
                self._save(checkpointer, step, state, batches)
            if self.eval_input is not None and (last or step % cfg.eval_every == 0):
                self._evaluate(step, state)
                meter.pause()
            if interrupted:
                break
        return state

    def _report(self, step: int, metrics: Any, meter: "_Meter") -> None:
        values = meter.add(float(metrics["tokens"]))
        if step % self.cfg.log_every == 0 or step == self.cfg.steps or step == 1:
            values |= {name: float(value) for name, value in metrics.items()}
            for observer in self.observers:
                observer.metrics(step, values)

    def _save(self, checkpointer: Checkpointer, step: int, state: TrainState, batches: Any) -> None:
        checkpointer.save(
            step, state, data_state=batches.get_state(), config=self.cfg, files=self.input.tokenizer.files()
        )

    def averaged(self, state: TrainState) -> Any:
        """Returns the parameters to evaluate and to publish: their moving average where the learner keeps one."""
        return state.learner.ema if self.cfg.learner.ema is not None else state.params

    def _evaluate(self, step: int, state: TrainState) -> None:
        assert self.eval_input is not None
        params = self.averaged(state)
        sums = np.zeros(3)
        for batch in self.eval_input:
            sums += np.asarray([float(x) for x in self._eval_step(params, batch)])
        loss, weight, correct = sums
        for observer in self.observers:
            observer.metrics(step, {"eval/loss": loss / weight, "eval/accuracy": correct / weight})
        if self.cfg.sample_prompt:
            text = self.sample(params, self.cfg.sample_prompt, step)
            for observer in self.observers:
                observer.text(step, "sample", text)

    def sample(self, params: Any, prompt: str, seed: int) -> str:
        """Returns the prompt with a continuation."""
        ids = np.asarray([self.input.tokenizer.encode(prompt)], np.int32)
        drawn = self._generate(params, ids, np.asarray([ids.shape[1]]), jax.random.key(seed))
        return self.input.tokenizer.decode([*ids[0].tolist(), *np.asarray(drawn)[0].tolist()])

    def restore(self) -> TrainState:
        """Returns the state of the newest checkpoint of the run."""
        directory = str(Path(self.cfg.directory) / "checkpoints")
        with self.cfg.checkpoint.set(directory=directory).build() as checkpointer:
            return self._restored(checkpointer)[0]


class Size(NamedTuple):
    """What a run costs, known from its config alone."""

    parameters: int
    flops_per_token: float  # Of training: three times the forward pass, by the rule of `count_flops`.


def size_of(cfg: Trainer.Config) -> Size:
    """Returns the size of a run; nothing is made or compiled."""
    model = cfg.model.build()
    params = abstract(model)
    shape = (cfg.input.batch_size, cfg.input.seq_len)
    fields = {"tokens": "int32", "targets": "int32", "weights": "float32", "segments": "int32", "positions": "int32"}
    batch = {name: jax.ShapeDtypeStruct(shape, dtype) for name, dtype in fields.items()}
    forward = count_flops(eval_step(model, dtype=None), params, batch)
    return Size(sum(leaf.size for leaf in jax.tree.leaves(params)), 3 * forward / (shape[0] * shape[1]))


class _Meter:
    """Tokens per second and their share of what the machine can do, over the last few seconds."""

    def __init__(self, flops_per_token: float) -> None:
        self._flops, self._peak = flops_per_token, measured_peak()
        self._ticks: deque[tuple[float, float]] = deque(maxlen=50)
        self._tokens = 0.0

    def add(self, tokens: float) -> dict[str, float]:
        self._tokens += tokens
        self._ticks.append((time.monotonic(), self._tokens))
        (start, before), (end, after) = self._ticks[0], self._ticks[-1]
        if end == start:
            return {}
        rate = (after - before) / (end - start)
        return {"tokens_per_second": rate, "mfu": rate * self._flops / self._peak}

    def pause(self) -> None:
        self._ticks.clear()


def measured_peak(size: int = 1024, seconds: float = 0.2) -> float:
    """Returns the operations per second of float32 matrix products that this machine reaches, on all its devices."""
    square = jnp.ones((size, size))
    product = jax.jit(jnp.dot)
    product(square, square).block_until_ready()
    best, start = 0.0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        began = time.perf_counter()
        product(square, square).block_until_ready()
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def _made(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / ".writable").touch()
        (directory / ".writable").unlink()
    except OSError as e:
        raise ConfigError(f"directory: cannot write to {str(directory)!r}: {e.strerror}. Choose another one.") from e
    return directory


@contextlib.contextmanager
def _interruptible() -> Iterator[list[bool]]:
    """Yields a list that is filled when the user presses Ctrl-C or the system asks to stop; a second time, it stops."""
    asked: list[bool] = []

    def ask(number: int, frame: Any) -> None:
        if asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        asked.append(True)
        print("\nStopping after this step, to save it. Press Ctrl-C again to stop at once.")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
