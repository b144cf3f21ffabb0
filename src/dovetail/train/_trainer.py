# SPDX-License-Identifier: Apache-2.0
"""The loop: it decides when; the compiled step decides what. Effects (clock, disk, signals) are here alone."""

import dataclasses
import math
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax

from dovetail.checkpoint import Checkpointer, CheckpointError, LeaseError, Tiers, meet
from dovetail.config import REQUIRED, Component, ConfigError
from dovetail.data import BatchSpec, DataChange, DataError, Input
from dovetail.hardware import MeshRule
from dovetail.module import Objective, merged
from dovetail.nn import RematPolicy
from dovetail.optim import Learner, Schedule
from dovetail.parallel import Mesh, is_first, together
from dovetail.progress import Status, advanced, begun, failed, phase

from ._batch import largest
from ._data_record import DataRecord
from ._ends import AHEAD, Ends
from ._errors import HardwareError, TrainingError
from ._evaluator import Evaluated, Evaluator, evaluators_of, findings
from ._fields import check_bounds
from ._goodput import Goodput
from ._guarded import Guarded
from ._hardware_check import Checker, HardwareCheck
from ._initial import InitFrom, check_init_from, initial_state
from ._json_lines import JsonLines
from ._keep_best import check_keep_best, warn_if_missing
from ._left_out import number_of_batches, summary
from ._meter import Meter, Peak, peak_of
from ._observer import Observer
from ._outside import Outside, told
from ._processes import asked_to_stop, interruptible, steps_lost
from ._profile import Profile
from ._program import Program
from ._record import changes_since, check_directory, checkpoints_in, make_directory, write_record
from ._rollback import Bad, check_number, go_back, leave_out, seen
from ._settings import facts_of
from ._size import size_of
from ._spikes import Spikes
from ._step import TrainState
from ._tensor_board import TensorBoard
from ._terminal import Terminal
from ._trained import has_only_weights, recover_state, to_save

_PATIENCE = 30  # Seconds that processes wait for each other after an error, to save together what they have.
_NOTHING: Any = None


@dataclasses.dataclass
class _Run:
    """How far a run has come."""

    state: TrainState
    batches: Any
    first: int  # The step it goes on after.
    checkpointer: Checkpointer
    tiers: Tiers
    source: str = ""  # Where its state is from, unless that is the store.
    meter: Meter = dataclasses.field(init=False)  # Set when there is something to do.
    ends: Ends = dataclasses.field(init=False)  # Set when it goes on.
    step: int = dataclasses.field(init=False)  # Made so far.
    saved: int = dataclasses.field(init=False)
    evaluated: dict[str, int] = dataclasses.field(default_factory=dict[str, int])  # The last step, by evaluator.
    taken: int = 0  # Batches.
    # Metrics on the way to the host, with their step, what their batch was, and where it was if that is reported.
    pending: deque[tuple[int, BatchSpec, Any, Any]] = dataclasses.field(default_factory=deque)
    bad: Bad | None = None  # A step to go back for.

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
        checkpoint: Checkpointer.Config = Checkpointer.Config()  # Its directory: by default, in the run's.
        tiers: Tiers.Config = Tiers.Config()  # Where else the state is kept, for a faster return after a failure.
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
        profile: Profile = Profile()
        status: Status = Status()
        save_frozen: bool = False  # Whether checkpoints have parameters that never change; else from where they were.
        max_bad_steps: int = 20  # In a row with a loss that is not finite, or a spike, before the run ends.
        spikes: Spikes.Config | None = None  # Which losses are taken for bad ones, and what is done about them.

        hardware_check: HardwareCheck | None = None  # How often a run looks for hardware that computes wrongly.

        # When a run is resumed, these may change: they say when and where things happen, not what is trained. A change
        # of anything else makes another run of it, unless a config inside says the same of its own fields.
        may_change: ClassVar[frozenset[str]] = frozenset(
            (
                *("evaluators", "steps", "directory", "checkpoint", "tiers", "observers", "log_every", "save_every"),
                *("max_bad_steps", "hardware_check", "profile", "status"),
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
        cfg = cfg.set(input=cfg.input.completed("input"))  # What is recorded must not depend on what lies elsewhere.
        super().__init__(cfg, **kwargs)
        for name in ("steps", "log_every", "save_every", "max_bad_steps"):
            if getattr(cfg, name) < 1:
                raise ConfigError(f"{name} is {getattr(cfg, name)}, expected at least 1.")
        check_directory(cfg.directory)
        self.input: Input = cfg.input.build(path="input", files=files)
        self._program = Program(cfg)
        self.model, self.learner = self._program.model, self._program.learner
        self._program.check_input("input", cfg.input)
        check_bounds(cfg.model, self.input, "input")
        self.evaluators = evaluators_of(self._program, self.input.files())
        check_keep_best(cfg)
        self.observers = [Guarded(observer.build()) for observer in cfg.observers if is_first()]
        self._bad_steps, self._is_recorded = 0, False
        self.interrupted = False  # Whether `run` ended as it was asked to, before the last step.
        self._goodput = Goodput()
        self._outside = Outside(cfg, self.model, self._goodput)
        self._data_record = DataRecord(self.input, Path(cfg.directory))
        self._checker = cfg.hardware_check and Checker(cfg.hardware_check, self._program.devices)
        self._devices = self._program.devices
        self._steps: dict[str, Callable[..., Any]] = {}  # Compiled when there is a batch; by what batches are.

    def run(self, *, allow_change: bool = False, data_change: DataChange | None = None) -> TrainState:
        """Trains until `steps`, until the data ends, or until interrupted; returns the last state.

        With `allow_change`, it goes on although the config is not the one that made the steps so far; `data_change`
        allows that of the input, and says what is done where its position is one in other data: "keep" it, as exactly
        as it can be, "restart" the data, or "skip-to-step", to where the new data would be.
        """
        with phase("measuring the model"):
            # First: what cannot work fails here, before anything is written.
            self._sizes = {spec.text(): size_of(self.cfg, spec) for spec in self._program.batches}
        directory, changes = Path(self.cfg.directory), ""
        checkpointer: Checkpointer = self.cfg.checkpoint.set(directory=checkpoints_in(self.cfg)).build()
        tiers: Tiers = self.cfg.tiers.build(store=checkpointer, run=str(directory.absolute()))
        newest = tiers.look()
        if newest == 0 and has_only_weights(checkpointer, newest):
            newest = None  # It was imported, and has made no step.
        check_init_from(self._program, self.cfg, self.input.files(), starts=newest is None)
        if newest is not None:
            how = {"allow_change": allow_change, "data_change": data_change is not None}
            changes = together(lambda: changes_since(directory, self.cfg, tiers.config(), **how))
        if newest is None or newest < self.cfg.steps:
            together(lambda: make_directory(directory, checkpointer.cfg.directory))
            checkpointer.prepare()
        with self._outside.running(), checkpointer, interruptible() as interrupted:
            if newest is None or newest < self.cfg.steps:
                self._outside.open()
            run, said = self._started(checkpointer, tiers, newest, data_change or ("restart" if allow_change else None))
            if run.first >= self.cfg.steps:
                _tell(f"Nothing to do: {run.first} of {self.cfg.steps} steps are done.")
                if changes:
                    _tell(f"This config is not the one that made them:\n{changes}")
                return run.state
            self._outside.open()
            size = self._sizes[largest(self._program.batches).text()]
            # Only the first process shows it, and to measure one takes a while.
            peak = peak_of(self._devices.all, self.cfg.compute_dtype) if is_first() else Peak(None, "")
            run.meter = Meter(size.unit, peak, self._outside.data_wait.seconds)
            self._outside.data_wait.peak = peak.flops
            about = f"{size.parameters:,} parameters, {size.units:,} {size.unit}s a step. Peak: {peak.text}. "
            about += _going_on(run) if run.first else f"The run is in {self.cfg.directory}."
            about += "".join(f"\n{text}" for text in (tiers.about, said) if text) + told(self._outside.url)
            for observer in self.observers:
                observer.start(directory, run.first + 1, self.cfg.steps, about)
            try:
                self._say_what(run, changes)
                self._loop(run, interrupted)
                with self._goodput.spent("checkpoint"):
                    self._settle(run)
                    tiers.close()
                    if run.step >= self.cfg.steps:
                        tiers.finish()
                self._say_goodput(run.step)
            except BaseException as e:
                failed(e)
                with self._goodput.spent("checkpoint"):
                    self._rescue(run, e)
                raise
            finally:
                for observer in self.observers:
                    observer.stop()
            self._outside.end = "stopped" if interrupted else "done"
        if interrupted:
            self.interrupted = True
            where = f"after step {run.step}, which is saved" if run.step else "before the first step"
            _tell(f"Stopped {where}. To go on, run the same command again.")
        elif run.step < self.cfg.steps:
            _tell(f"The input has data for {run.step} steps, not {self.cfg.steps}: the run ends there, and is saved.")
        return run.state

    def _settle(self, run: _Run) -> None:
        """Waits until the last step is saved; if that fails, it is tried again, as often as saves may fail."""
        for left in reversed(range(self.cfg.checkpoint.max_failed_saves)):
            try:
                run.checkpointer.wait()
                return
            except CheckpointError as e:
                if not left or isinstance(e, LeaseError):
                    raise
                self._save(run)

    def _started(
        self, checkpointer: Checkpointer, tiers: Tiers, newest: int | None, data_change: DataChange | None
    ) -> tuple[_Run, str]:
        """Returns the run as it starts or goes on, and what there is to say about that."""
        batches, program = self._devices.batches(self.input), self._program
        recovered = None
        if newest is not None:
            with phase("restoring the last checkpoint"):
                recovered = recover_state(program, tiers)
        if recovered is None:
            state, said = self._first_state(checkpointer)
            return _Run(state, batches, 0, checkpointer, tiers), said
        said = "Its weights are its own, not those of init_from." if self.cfg.init_from else ""
        batches.on_change = data_change
        batches.set_state(*recovered.positions)
        if batches.left_out:
            said = f"{said}\n{summary(batches.left_out)}".lstrip()
        return _Run(recovered.state, batches, recovered.step, checkpointer, tiers, recovered.source), said

    def _first_state(self, checkpointer: Checkpointer) -> tuple[TrainState, str]:
        """Returns the state before the first step, and what there is to say about it."""
        cfg = self.cfg
        if checkpointer.latest() == 0 and not cfg.init_from:  # It was imported.
            cfg = cfg.set(init_from=InitFrom(path=cfg.directory))
        with phase("initialising the parameters"):
            return initial_state(self._program, cfg, self.input.files())

    def _loop(self, run: _Run, interrupted: list[bool]) -> None:
        self._goodput.becomes("step")
        self._goodput.resumes(run.first)
        self._advance(run, interrupted)
        while run.bad is not None:
            self._go_back(run, run.bad)
            self._advance(run, interrupted)
        if not run.step and not interrupted:
            raise DataError("input: has no data for a single step.")
        if run.saved < run.step:
            self._save(run)
        if run.taken:
            self._evaluate(run, [each for each in self.evaluators if run.evaluated.get(each.name) != run.step])
        if left_out := run.batches.left_out:
            self._say(run.step, "summary of rollbacks", summary(left_out))

    def _advance(self, run: _Run, interrupted: list[bool]) -> None:
        """Makes steps until the end, or until one is bad enough to go back."""
        cfg = self.cfg
        run.ends = Ends(run.batches, self._devices, run.step)
        while run.step < min(cfg.steps, run.ends.last) and not interrupted:
            checked = self._checker if self._checker and self._checker.is_due(run.step + 1) else None
            with self._outside.data_wait.around(run.pending[-1][2]["total_loss"] if run.pending else None):
                batch = checked.batch(run.batches, run.step + 1) if checked else next(run.batches, None)
                run.ends.look()
            if batch is None:
                break
            run.taken += 1
            run.checkpointer.raise_if_lost()
            self._make_step(run, batch, checked)
            if asked_to_stop(run.step):
                interrupted.append(True)
            saves_now, keeps_now = run.step % cfg.save_every == 0, run.tiers.is_due(run.step)
            due = [evaluator for evaluator in self.evaluators if evaluator.is_due(run.step)]
            while run.pending and (saves_now or keeps_now or due or len(run.pending) > AHEAD):
                self._report(run)  # All of them, before the meter starts anew.
            if run.bad is not None:
                return
            if keeps_now:
                self._keep(run)
            if saves_now:
                self._save(run)
            self._evaluate(run, due)
        while run.pending:
            self._report(run)
        if run.bad is None and run.step < cfg.steps and not interrupted:
            run.ends.raise_errors(run.step)

    def _go_back(self, run: _Run, bad: Bad) -> None:
        """Goes back to before a bad step, and in the data to after its batch."""
        with self._goodput.spent("lost_work"):
            check_number(bad, run.batches.left_out, self.cfg.spikes)
            number, run.state = run.batches.number - (run.step - bad.step), _NOTHING  # Room for the one to come.
            run.pending.clear()

            def start() -> TrainState:
                before, run.batches = run.batches.left_out, self._devices.batches(self.input)
                run.batches.left_out = before
                return self._first_state(run.checkpointer)[0]

            place = go_back(bad, self._program, run.checkpointer, start, self.cfg.save_every)
            run.tiers.restart()
            found = leave_out(bad, place, run.batches, number)
        run.state, run.bad, run.taken, self._bad_steps = place.state, None, 0, 0
        run.first = run.step = run.saved = place.step
        self._goodput.resumes(place.step)
        run.evaluated = {name: step for name, step in run.evaluated.items() if step <= place.step}
        run.meter.restart()
        self._say(bad.step, "rollback", found.text())

    def _make_step(self, run: _Run, batch: Any, checked: Checker | None) -> None:
        if not self._steps:
            # All that there will be, so that none has to be compiled in the middle of a run.
            with self._goodput.spent("compile"):
                for spec in self._program.batches:
                    self._steps[spec.text()] = self._program.compiled(run.state, spec)
                    if self._checker:
                        self._checker.check_room(self._steps[spec.text()], run.state)
            if self._program.was_kept:
                self._say(run.step + 1, "compiler", "not needed: the step was compiled before, and kept")
            self._advise(run, run.step + 1, run.batches.spec, {})
        spec, batch = run.batches.spec, {**batch, **run.ends.beside(run.step + 1)}
        step, profiler = self._steps[spec.text()], self._outside.profiler
        profiler.before(run.step + 1, run.state)
        with run.meter.device():
            if checked:
                run.state, metrics = checked.step(step, run.state, batch, run.step + 1)
            else:
                run.state, metrics, *_ = step(run.state, batch)
        run.step += 1
        begun(run.step)
        profiler.after(run.step, run.state, step)
        run.pending.append((run.step, spec, metrics, run.batches.own_state() if self._is_logged(run.step) else None))
        if run.taken == 1 and self._program.fallbacks:
            about = "\n".join(map(str, self._program.fallbacks))
            self._say(run.step, "kernels that were not the first choice", about)

    def _rescue(self, run: _Run, error: BaseException) -> None:
        """Saves the last step before an error ends the run, if the state is whole and good."""
        if run.step == run.saved or isinstance(error, CheckpointError | HardwareError):
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
        if run.bad is not None:
            return False
        whole = not any(leaf.is_deleted() for leaf in jax.tree.leaves(run.state))
        if not whole or run.taken != run.step - run.first or self._bad_steps:
            return False
        jax.block_until_ready(run.state)
        return all(math.isfinite(float(metrics["total_loss"])) for _, _, metrics, _ in run.pending)

    def _report(self, run: _Run) -> None:
        (step, spec, metrics, position), meter = run.pending.popleft(), run.meter
        if run.bad is not None:  # What came after a bad step does not count.
            return
        with meter.device():
            loss, units = (float(metrics[name]) for name in ("total_loss", f"{spec.unit}s"))
        run.ends.seen(step, metrics)
        advanced(step, self.cfg.steps, meter.waited)
        meter.add(units, self._sizes[spec.text()].flops_per_unit)
        if not self._is_recorded and is_first():  # Not before: a config that makes no step leaves no trace.
            write_record(Path(self.cfg.directory), self.cfg, run.first)
        self._is_recorded = True
        self._bad_steps = 0 if math.isfinite(loss) else self._bad_steps + 1
        if self.cfg.spikes is not None:
            run.bad = seen(self.cfg.spikes, step, metrics, self._say)
            self._bad_steps = int(metrics["spike/streak"])
        if run.bad is None and self._bad_steps >= self.cfg.max_bad_steps:
            what = "was not finite" if self.cfg.spikes is None else "was not finite, or far above the usual one"
            raise TrainingError(
                f"the loss of the last {self._bad_steps} steps, up to step {step}, {what} ({loss}).\n"
                "  Lower the learning rate or clip_norm, or look for what is wrong in the data. The last checkpoint is "
                f"in {self.cfg.directory}."
            )
        if self._is_logged(step):
            values = {name: float(value) for name, value in metrics.items()} | meter.read()
            if self.cfg.spikes is not None:
                left_out = run.batches.left_out
                values |= {"rollbacks": len(left_out), "batches_left_out": number_of_batches(left_out)}
            values |= self._data_record.figures(step, run.batches.joined(position), self._say)
            values |= run.batches.pace.figures(spec)
            values = self._outside.saw(values)
            for observer in self.observers:
                observer.metrics(step, values)
            self._advise(run, step, spec, values)

    def _advise(self, run: _Run, step: int, spec: BatchSpec, values: Mapping[str, float]) -> None:
        """Says what to do if the input is too slow for the step."""
        size, wait = self._sizes[spec.text()], self._outside.data_wait
        if said := wait.advice(size, run.batches.pace, values, self.input.when_slow):
            self._say(step, "input", said)

    def _is_logged(self, step: int) -> bool:
        return step % self.cfg.log_every == 0 or step in (1, self.cfg.steps)

    def _save(self, run: _Run) -> None:
        with self._goodput.spent("checkpoint"):
            if self._checker:
                self._checker.replicas(run.state, run.step)
            position, files, state = run.batches.get_state(), self.input.files(), to_save(self._program, run.state)
            run.checkpointer.save(run.step, state, data_state=position, config=self.cfg, files=files)
        run.saved = run.step
        run.meter.restart()

    def _keep(self, run: _Run) -> None:
        """Keeps the step for a return after a failure; the store gets what is to last."""
        with self._goodput.spent("checkpoint"):
            state = to_save(self._program, run.state)
            run.tiers.keep(run.step, state, position=run.batches.own_state(), config=self.cfg)

    def _evaluate(self, run: _Run, evaluators: list[Evaluator]) -> None:
        if not evaluators:
            return
        params = self.learner.published(run.state.params, run.state.learner)
        at = Evaluated(run.step, merged(params, run.state.run_state))
        with self._goodput.spent("evaluation"):
            for evaluator, found in zip(evaluators, findings(evaluators, at), strict=True):
                run.checkpointer.report(run.step, found.metrics)
                warn_if_missing(self.cfg, evaluator.name, found.metrics)
                for observer in self.observers if found.metrics else ():
                    observer.metrics(run.step, found.metrics)
                for name, text in found.texts.items():
                    self._say(run.step, name, text)
                for observer in self.observers:
                    observer.shows(run.step, found)
        run.evaluated |= {evaluator.name: run.step for evaluator in evaluators}
        run.meter.restart()

    def _say_goodput(self, step: int) -> None:
        if self.observers:
            shares, text = self._outside.shares()
            for observer in self.observers:
                observer.metrics(step, shares)
            self._say(step, "goodput", text)

    def _say_what(self, run: _Run, changes: str) -> None:
        """Says what the run is, and what has changed in it."""
        for observer in self.observers:
            observer.config(self.cfg, facts_of(self.cfg, self._sizes[largest(self._program.batches).text()]))
        for name, text in {"changes of the config": changes, "a change of the data": run.batches.said}.items():
            if text:
                self._say(run.first, name, text)

    def _say(self, step: int, name: str, text: str) -> None:
        for observer in self.observers:
            observer.text(step, name, text)


def _going_on(run: _Run) -> str:
    """Says what a run goes on from."""
    lost = steps_lost(run.first)
    text = f", from {run.source}" if run.source else ""
    return f"Going on after step {run.first}{text}." + (f" Steps lost: at least {lost}." if lost else "")


def _tell(text: str) -> None:
    if is_first():
        print(text)
