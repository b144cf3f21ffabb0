# SPDX-License-Identifier: Apache-2.0
"""The loop: it decides when; the compiled step decides what. Effects (clock, disk, signals) are here alone."""

import contextlib
import math
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import jax

from dovetail.checkpoint import Checkpointer
from dovetail.config import REQUIRED, Component, ConfigError, to_text
from dovetail.data import Input
from dovetail.models import CausalLM, Sampling
from dovetail.nn import RematPolicy
from dovetail.optim import Learner
from dovetail.parallel import Mesh, MeshRule, is_first
from dovetail.progress import phase

from ._initial import InitFrom, check_init_from, initial_state
from ._meter import Meter, peak_of
from ._observers import JsonLines, Observer, TensorBoard, Terminal
from ._processes import asked_to_stop
from ._program import Program
from ._size import size_of
from ._step import TrainState
from ._trained import averaged, continued, evaluate, with_stop

_AHEAD = 2  # Steps that the host is ahead of the device: enough for the device never to wait, few batches in memory.


class TrainingError(RuntimeError):
    """A run cannot go on; the message says why, and what is left."""


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
        init_from: InitFrom | None = None  # Whose weights it starts from; a run that goes on has its own.
        steps: int = REQUIRED
        directory: str = REQUIRED
        checkpoint: Checkpointer.Config = Checkpointer.Config()  # Its directory is set by the run.
        observers: tuple[Observer.Config, ...] = (Terminal.Config(), JsonLines.Config(), TensorBoard.Config())
        num_microbatches: int = 1
        compute_dtype: Literal["float32", "bfloat16"] = "float32"
        remat: RematPolicy | None = None  # What each block keeps for the backward pass; None: as the model says.
        mesh: Mesh = Mesh()  # How the run is spread over devices; by default it uses one.
        mesh_rules: tuple[MeshRule.Config, ...] = ()  # What hardware changes in this config, before the usual rules.
        compiler_options: Mapping[str, Mapping[str, bool | int | str]] = {}  # Of XLA for the step: tpu, cuda, cpu.
        seed: int = 0
        log_every: int = 10
        eval_every: int = 500
        save_every: int = 500
        max_bad_steps: int = 20  # In a row with a loss that is not finite, before the run ends.
        sample_prompt: str = ""  # Continued at each evaluation, if there is one.
        sample_tokens: int = 200
        sampling: Sampling = Sampling(temperature=0.8)

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        for name in ("steps", "log_every", "eval_every", "save_every", "max_bad_steps"):
            if getattr(cfg, name) < 1:
                raise ConfigError(f"{name} is {getattr(cfg, name)}, expected at least 1.")
        self._program = Program(cfg)
        self.model, self.learner = self._program.model, self._program.learner
        self.input: Input = cfg.input.build(path="input")
        self.eval_input: Input | None = cfg.eval_input.build(path="eval_input") if cfg.eval_input else None
        self.observers: list[Observer] = [observer.build() for observer in cfg.observers if is_first()]
        if self.input.vocab_size > cfg.model.vocab_size:
            raise ConfigError(
                f"model.vocab_size is {cfg.model.vocab_size}, but the tokenizer of the input has "
                f"{self.input.vocab_size} tokens. Set it to at least that."
            )
        self._bad_steps = 0
        self._devices = self._program.devices
        self._step: Callable[..., Any] | None = None  # Compiled when there is a batch.
        self._eval_step = self._program.eval_step()
        self._generate = self._program.generate(cfg.sample_tokens, with_stop(cfg.sampling, self.input.tokenizer))

    def run(self) -> TrainState:
        """Trains until `steps`, or until interrupted; returns the last state."""
        with phase("measuring the model"):
            size = size_of(self.cfg)  # First: what cannot work fails here, before anything is written.
        directory = _made(Path(self.cfg.directory))
        checkpointer: Checkpointer = self.cfg.checkpoint.set(directory=str(directory / "checkpoints")).build()
        with checkpointer, _interruptible() as interrupted:
            state, batches, said = self._restored(checkpointer)
            done = int(state.step)
            if is_first():  # Not before: a directory that holds another run is left as it is.
                (directory / "config.txt").write_text(to_text(self.cfg), encoding="utf-8")
            about = f"{size.parameters:,} parameters, {math.prod(self.input.batch_shape):,} tokens a step. "
            peak = peak_of(self._devices.all, self.cfg.compute_dtype)
            about += f"Peak: {peak.text}. "
            about += f"Going on after step {done}." if done else f"The run is in {self.cfg.directory}."
            about += f"\n{said}" if said else ""
            for observer in self.observers:
                observer.start(directory, done + 1, self.cfg.steps, about)
            try:
                meter = Meter(size.flops_per_token, peak)
                state = self._loop(state, batches, done, checkpointer, interrupted, meter)
            finally:
                for observer in self.observers:
                    observer.stop()
            checkpointer.wait()
        if interrupted and is_first():
            print(f"Stopped after step {int(state.step)}, which is saved. To go on, run the same command again.")
        return state

    def _restored(self, checkpointer: Checkpointer) -> tuple[TrainState, Any, str]:
        """Returns state and batches that the run starts or goes on with, and what there is to say about that."""
        batches, program = self._devices.batches(self.input), self._program
        check_init_from(self.cfg)
        if checkpointer.latest() is None:
            with phase("initialising the parameters"):
                state, said = initial_state(program, self.cfg, self.input.tokenizer)
                return state, batches, said
        with phase("restoring the last checkpoint"):
            restored = checkpointer.restore(program.abstract_state())
        batches.set_state(restored.data_state)
        return restored.state, batches, "Its weights are its own, not those of init_from." if self.cfg.init_from else ""

    def _loop(
        self,
        state: TrainState,
        batches: Any,
        done: int,
        checkpointer: Checkpointer,
        interrupted: list[bool],
        meter: Meter,
    ) -> TrainState:
        cfg = self.cfg
        pending: deque[tuple[int, Any]] = deque()
        for step in range(done + 1, cfg.steps + 1):
            batch = next(batches)
            if self._step is None:
                self._step = self._program.compiled(state, batch)
            with meter.device():
                state, metrics = self._step(state, batch)
            pending.append((step, metrics))
            if step == done + 1 and self._program.fallbacks:
                self._say(step, "kernels that were not the first choice", "\n".join(map(str, self._program.fallbacks)))
            if asked_to_stop(step):
                interrupted.append(True)
            last = step == cfg.steps or bool(interrupted)  # Once: a signal may come between here and the end.
            evaluates = self.eval_input is not None and (last or step % cfg.eval_every == 0)
            while pending and (last or evaluates or len(pending) > _AHEAD):
                self._report(*pending.popleft(), meter)
            if last or step % cfg.save_every == 0:
                self._save(checkpointer, step, state, batches)
                meter.restart()
            if evaluates:
                self._evaluate(step, state)
                meter.restart()
            if last:
                break
        return state

    def _report(self, step: int, metrics: Any, meter: Meter) -> None:
        with meter.device():
            loss, tokens = (float(metrics[name]) for name in ("total_loss", "tokens"))
        meter.add(tokens)
        self._bad_steps = 0 if math.isfinite(loss) else self._bad_steps + 1
        if self._bad_steps == self.cfg.max_bad_steps:
            raise TrainingError(
                f"the loss of the last {self._bad_steps} steps, up to step {step}, was not finite ({loss}).\n"
                "  Lower the learning rate or clip_norm, or look for what is wrong in the data. The last checkpoint is "
                f"in {self.cfg.directory}."
            )
        if step % self.cfg.log_every == 0 or step in (1, self.cfg.steps):
            values = {name: float(value) for name, value in metrics.items()} | meter.read()
            for observer in self.observers:
                observer.metrics(step, values)

    def _save(self, checkpointer: Checkpointer, step: int, state: TrainState, batches: Any) -> None:
        checkpointer.save(
            step, state, data_state=batches.get_state(), config=self.cfg, files=self.input.tokenizer.files()
        )

    def _evaluate(self, step: int, state: TrainState) -> None:
        assert self.eval_input is not None
        params = averaged(state, self.cfg)
        with phase("evaluating"):
            values = evaluate(self._eval_step, params, self._devices.batches(self.eval_input))
        for observer in self.observers:
            observer.metrics(step, values)
        if self.cfg.sample_prompt:
            prompt, sampling = self.cfg.sample_prompt, self.cfg.sampling
            with phase("sampling"):
                text = continued(self._generate, params, self.input.tokenizer, prompt, step, sampling)
            self._say(step, "sample", text)

    def _say(self, step: int, name: str, text: str) -> None:
        for observer in self.observers:
            observer.text(step, name, text)


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

    # With several processes, JAX hears the request, and `asked_to_stop` brings it to all of them.
    numbers = (signal.SIGINT, signal.SIGTERM) if jax.process_count() == 1 else ()
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
