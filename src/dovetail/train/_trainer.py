# SPDX-License-Identifier: Apache-2.0
"""The loop: it decides when; the compiled step decides what. Effects (clock, disk, signals) are here alone."""

import contextlib
import dataclasses
import math
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax

from dovetail.checkpoint import Checkpointer, CheckpointError, meet
from dovetail.config import REQUIRED, Component, ConfigError
from dovetail.data import BatchSpec, DataError, Input
from dovetail.hardware import MeshRule
from dovetail.module import Objective, merged
from dovetail.nn import RematPolicy
from dovetail.optim import Learner, Schedule
from dovetail.parallel import Mesh, is_first, together
from dovetail.progress import phase

from ._batch import largest
from ._evaluator import Evaluated, Evaluator, evaluators_of, findings
from ._fields import check_bounds
from ._initial import InitFrom, check_init_from, initial_state
from ._meter import Meter, peak_of
from ._observers import JsonLines, Observer, TensorBoard, Terminal
from ._processes import asked_to_stop
from ._program import Program
from ._record import changes_since, make_directory, write_record
from ._size import size_of
from ._step import TrainState
from ._trained import has_only_weights, restore_state, to_save

_PATIENCE = 30  # Seconds that processes wait for each other after an error, to save together what they have.
_AHEAD = 2  # Steps that the host is ahead of the device: enough for the device never to wait, few batches in memory.


class TrainingError(RuntimeError):
    """A run cannot go on; the message says why, and what is left."""


@dataclasses.dataclass
class _Run:
    """How far a run has come."""

    state: TrainState
    batches: Any
    first: int  # The step it goes on after.
    checkpointer: Checkpointer
    meter: Meter = dataclasses.field(init=False)  # Set when there is something to do.
    step: int = dataclasses.field(init=False)  # Made so far.
    saved: int = dataclasses.field(init=False)
    evaluated: dict[str, int] = dataclasses.field(default_factory=dict[str, int])  # The last step, by evaluator.
    taken: int = 0  # Batches.
    # Metrics on the way to the host, with their step and what their batch was.
    pending: deque[tuple[int, BatchSpec, Any]] = dataclasses.field(default_factory=deque)

    def __post_init__(self) -> None:
        self.step = self.saved = self.first


class Trainer(Component):
    """Trains a model: `Trainer.Config(...).build().run()`.

    A run lives in a directory: its config, metrics and checkpoints. Running again with the same directory goes on where
    the last checkpoint left off, bit for bit.
    """

    class Config(Component.Config):
        model: Objective.Config = REQUIRED  # Anything that has a loss.
        learner: Learner.Config = REQUIRED
        input: Input.Config = REQUIRED
        evaluators: Mapping[str, Evaluator.Config] = {}  # By the name that their results go by.
        init_from: InitFrom | tuple[InitFrom, ...] | None = (
            None  # Whose weights it starts from; it goes on with its own.
        )
        loss_scales: Mapping[str, Schedule.Config | float] = {}  # Of auxiliary losses, by patterns of their paths.
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
        save_every: int = 500
        save_frozen: bool = False  # Whether checkpoints have parameters that never change; else from where they were.
        max_bad_steps: int = 20  # In a row with a loss that is not finite, before the run ends.

        # When a run is resumed, these may change: they say when and where things happen, not what is trained. A change
        # of anything else makes another run of it, unless a config inside says the same of its own fields.
        may_change: ClassVar[frozenset[str]] = frozenset(
            (
                *("evaluators", "steps", "directory", "checkpoint", "observers", "log_every", "save_every"),
                "max_bad_steps",
                *("num_microbatches", "remat", "mesh", "mesh_rules", "compiler_options"),
            )
        )
        renamed: ClassVar[Mapping[str, str]] = {
            "eval_input": "evaluators.eval=HeldOutLoss evaluators.eval.input",
            "eval_every": "evaluators.NAME.every, of each",
            "sample_prompt": "evaluators.sample=Sampler evaluators.sample.prompt",
            "sample_tokens": "evaluators.sample.tokens; for `generate`, tokens",
            "sampling": "evaluators.sample.sampling",
        }

    def __init__(self, cfg: Config, *, files: Mapping[str, bytes] | None = None, **kwargs: Any) -> None:
        """`files` are those of the checkpoint that the run goes on from; without them the input reads its own."""
        super().__init__(cfg, **kwargs)
        for name in ("steps", "log_every", "save_every", "max_bad_steps"):
            if getattr(cfg, name) < 1:
                raise ConfigError(f"{name} is {getattr(cfg, name)}, expected at least 1.")
        self.input: Input = cfg.input.build(path="input", files=files)
        self._program = Program(cfg)
        self.model, self.learner = self._program.model, self._program.learner
        self._program.check_input("input", cfg.input)
        check_bounds(cfg.model, self.input, "input")
        self.evaluators = evaluators_of(self._program, self.input.files())
        self.observers: list[Observer] = [observer.build() for observer in cfg.observers if is_first()]
        self._bad_steps, self._is_recorded = 0, False
        self._devices = self._program.devices
        self._steps: dict[str, Callable[..., Any]] = {}  # Compiled when there is a batch; by what batches are.

    def run(self, *, allow_change: bool = False) -> TrainState:
        """Trains until `steps`, until the data ends, or until interrupted; returns the last state.

        With `allow_change`, it goes on although the config is not the one that made the steps so far.
        """
        with phase("measuring the model"):
            # First: what cannot work fails here, before anything is written.
            self._sizes = {spec.text(): size_of(self.cfg, spec) for spec in self._program.batches}
        directory, changes = Path(self.cfg.directory), ""
        checkpointer: Checkpointer = self.cfg.checkpoint.set(directory=str(directory / "checkpoints")).build()
        newest = checkpointer.latest()
        if newest == 0 and has_only_weights(checkpointer, newest):
            newest = None  # It was imported, and has made no step.
        check_init_from(self._program, self.cfg, self.input.files(), starts=newest is None)
        if newest is not None:
            changes = together(lambda: changes_since(directory, self.cfg, allow_change=allow_change))
        if newest is None or newest < self.cfg.steps:
            together(lambda: make_directory(directory))
            checkpointer.prepare()
        with checkpointer, _interruptible() as interrupted:
            run, said = self._started(checkpointer, allow_change)
            if run.first >= self.cfg.steps:
                _tell(f"Nothing to do: {run.first} of {self.cfg.steps} steps are done.")
                if changes:
                    _tell(f"This config is not the one that made them:\n{changes}")
                return run.state
            size = self._sizes[largest(self._program.batches).text()]
            about = f"{size.parameters:,} parameters, {size.units:,} {size.unit}s a step. "
            peak = peak_of(self._devices.all, self.cfg.compute_dtype)
            run.meter = Meter(size.unit, peak)
            about += f"Peak: {peak.text}. "
            about += f"Going on after step {run.first}." if run.first else f"The run is in {self.cfg.directory}."
            about += f"\n{said}" if said else ""
            for observer in self.observers:
                observer.start(directory, run.first + 1, self.cfg.steps, about)
            try:
                if changes:
                    self._say(run.first, "changes of the config", changes)
                self._loop(run, interrupted)
            except BaseException as e:
                self._rescue(run, e)
                raise
            finally:
                for observer in self.observers:
                    observer.stop()
            checkpointer.wait()
        if interrupted:
            where = f"after step {run.step}, which is saved" if run.step else "before the first step"
            _tell(f"Stopped {where}. To go on, run the same command again.")
        elif run.step < self.cfg.steps:
            _tell(f"The input has data for {run.step} steps, not {self.cfg.steps}: the run ends there, and is saved.")
        return run.state

    def _started(self, checkpointer: Checkpointer, allow_change: bool) -> tuple[_Run, str]:
        """Returns the run as it starts or goes on, and what there is to say about that."""
        batches, program = self._devices.batches(self.input), self._program
        newest, cfg = checkpointer.latest(), self.cfg
        if newest == 0 and has_only_weights(checkpointer, newest):
            cfg, newest = cfg if cfg.init_from else cfg.set(init_from=InitFrom(path=cfg.directory)), None
        if newest is None:
            with phase("initialising the parameters"):
                state, said = initial_state(program, cfg, self.input.files())
            return _Run(state, batches, 0, checkpointer), said
        with phase("restoring the last checkpoint"):
            restored, state = restore_state(program, checkpointer)
        said = "Its weights are its own, not those of init_from." if self.cfg.init_from else ""
        try:
            batches.set_state(restored.data_state)
        except DataError as e:
            if not allow_change:
                raise
            said = f"{said}\nThe data is read from its start: {e}".lstrip()
        return _Run(state, batches, restored.step, checkpointer), said

    def _loop(self, run: _Run, interrupted: list[bool]) -> None:
        cfg = self.cfg
        while run.step < cfg.steps and not interrupted:
            batch = next(run.batches, None)
            if batch is None:
                break
            run.taken += 1
            self._make_step(run, batch)
            if asked_to_stop(run.step):
                interrupted.append(True)
            saves_now = run.step % cfg.save_every == 0
            due = [evaluator for evaluator in self.evaluators if evaluator.is_due(run.step)]
            while run.pending and (saves_now or due or len(run.pending) > _AHEAD):
                self._report(*run.pending.popleft(), run.meter)  # All of them, before the meter starts anew.
            if saves_now:
                self._save(run)
            self._evaluate(run, due)
        if not run.step and not interrupted:
            raise DataError("input: has no data for a single step.")
        while run.pending:
            self._report(*run.pending.popleft(), run.meter)
        if run.saved < run.step:
            self._save(run)
        if run.taken:
            self._evaluate(run, [each for each in self.evaluators if run.evaluated.get(each.name) != run.step])

    def _make_step(self, run: _Run, batch: Any) -> None:
        if not self._steps:
            # All that there will be, so that none has to be compiled in the middle of a run.
            for spec in self._program.batches:
                self._steps[spec.text()] = self._program.compiled(run.state, spec)
            if self._program.was_kept:
                self._say(run.step + 1, "compiler", "not needed: the step was compiled before, and kept")
        spec = run.batches.spec
        with run.meter.device():
            run.state, metrics = self._steps[spec.text()](run.state, batch)
        run.step += 1
        run.pending.append((run.step, spec, metrics))
        if run.taken == 1 and self._program.fallbacks:
            about = "\n".join(map(str, self._program.fallbacks))
            self._say(run.step, "kernels that were not the first choice", about)

    def _rescue(self, run: _Run, error: BaseException) -> None:
        """Saves the last step before an error ends the run, if the state is whole and good."""
        if run.step == run.saved or isinstance(error, CheckpointError):
            return
        try:
            if not self._is_good(run):
                return
            if not meet(f"rescue of step {run.step}", _PATIENCE):
                raise TrainingError(f"the other processes did not come to save it within {_PATIENCE} seconds.")
            self._save(run)
            run.checkpointer.wait()
            print(f"Step {run.step} is saved, before the error that ends the run.", file=sys.stderr)
        except Exception as e:  # The error that ends the run is the one to report.
            print(f"Step {run.step} is not saved: {e}", file=sys.stderr)

    def _is_good(self, run: _Run) -> bool:
        """Whether the state is that of the last step, none of it was given away, and the losses so far are finite."""
        whole = not any(leaf.is_deleted() for leaf in jax.tree.leaves(run.state))
        if not whole or run.taken != run.step - run.first or self._bad_steps:
            return False
        jax.block_until_ready(run.state)
        return all(math.isfinite(float(metrics["total_loss"])) for _, _, metrics in run.pending)

    def _report(self, step: int, spec: BatchSpec, metrics: Any, meter: Meter) -> None:
        with meter.device():
            loss, units = (float(metrics[name]) for name in ("total_loss", f"{spec.unit}s"))
        meter.add(units, self._sizes[spec.text()].flops_per_unit)
        if not self._is_recorded and is_first():  # Not before: a config that makes no step leaves no trace.
            write_record(Path(self.cfg.directory), self.cfg)
        self._is_recorded = True
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

    def _save(self, run: _Run) -> None:
        position, files, state = run.batches.get_state(), self.input.files(), to_save(self._program, run.state)
        run.checkpointer.save(run.step, state, data_state=position, config=self.cfg, files=files)
        run.saved = run.step
        run.meter.restart()

    def _evaluate(self, run: _Run, evaluators: list[Evaluator]) -> None:
        if not evaluators:
            return
        params = self.learner.published(run.state.params, run.state.learner)
        at = Evaluated(run.step, merged(params, run.state.run_state))
        for found in findings(evaluators, at):
            for observer in self.observers if found.metrics else ():
                observer.metrics(run.step, found.metrics)
            for name, text in found.texts.items():
                self._say(run.step, name, text)
        run.evaluated |= {evaluator.name: run.step for evaluator in evaluators}
        run.meter.restart()

    def _say(self, step: int, name: str, text: str) -> None:
        for observer in self.observers:
            observer.text(step, name, text)


def _tell(text: str) -> None:
    if is_first():
        print(text)


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

    if jax.process_count() == 1:
        handlers: dict[int, Any] = {signal.SIGINT: ask, signal.SIGTERM: ask}
    else:  # JAX hears SIGTERM, and `asked_to_stop` brings it to all; Ctrl-C is an error, before which they save.
        handlers = {signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
