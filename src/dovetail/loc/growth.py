# SPDX-License-Identifier: Apache-2.0
"""Growth: how the lines that a feature takes grow with the number of models and of variants of the feature.

Each feature is applied, in each of its variants, to models drawn from a large pool. Each combination is an experiment,
and must work: all must build and have the right size, of some everything is checked, and a few are trained. What the
experiments of N models and M variants needed of the file that holds the modifier is the cost of a feature for so many;
`lines = c * N^a * M^b` is fitted to it. `grow_classical` makes the same fit for two classical designs.
"""

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax

from dovetail.config import ConfigError
from dovetail.hardware import start_devices
from dovetail.parallel import parse_mesh
from dovetail.progress import phase

from . import _classical
from ._executed import Lines, run_and_count
from ._fit import Growth, growth
from ._models import Base as Base
from ._models import Model, pool
from ._trained import MESHES, training_problems
from ._trials import TRIALS as TRIALS
from ._trials import Trial as Trial
from ._works import Built, built, other_problems, size_problems

_DRAWS = 200  # Of models and variants, for the intervals.
_SMALL = 3_000_000  # Parameters of models that are trained, at most, ...
_FEW = 24  # ... and arrays of them, by which the time to compile goes.
_FAST_TO_COMPILE = (
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE "
    "--xla_cpu_parallel_codegen_split_count=1"
)

Depth = Literal["built", "checked", "trained"]  # Each means the ones before, too.


class Experiment(NamedTuple):
    """A variant of a feature in a model."""

    feature: str
    variant: str
    model: str
    lines: Lines  # That the modifier needed.
    parameters: int
    depth: Depth  # To which it was tried.
    problems: tuple[str, ...]  # None, if it works.

    def __str__(self) -> str:
        return f"{self.feature} {self.variant} in {self.model}: {'; '.join(self.problems) or 'works'}"


@dataclass(frozen=True)
class Measured:
    """What a feature costs in a design."""

    lines: int  # For all models and variants.
    growth: Growth
    models: int
    variants: int
    checked: int  # Of all combinations of these, those of which everything was checked.
    failed: int = 0

    def as_json(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        a, b = self.growth.models, self.growth.variants
        return {
            "lines": self.lines,
            "exponent_models": a.value,
            "exponent_models_interval": [a.low, a.high],
            "exponent_variants": b.value,
            "exponent_variants_interval": [b.low, b.high],
            "factor": self.growth.factor.value,
            "models": self.models,
            "variants": self.variants,
            "combinations": self.models * self.variants,
            "experiments": self.checked,
            "failed": self.failed,
            "points": [list(point) for point in self.growth.points],
        }


@dataclass(frozen=True)
class Report:
    """All that was measured."""

    features: Mapping[str, Measured]
    pool: int  # Models to draw from.
    experiments: Sequence[Experiment]
    seconds: float

    @property
    def failures(self) -> list[Experiment]:
        """Returns the experiments that did not work."""
        return [experiment for experiment in self.experiments if experiment.problems]

    def count(self, depth: Depth) -> int:
        """Returns how many experiments went so deep, or deeper."""
        depths = get_args(Depth)
        return sum(depths.index(experiment.depth) >= depths.index(depth) for experiment in self.experiments)

    def as_json(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        return {
            "features": {name: found.as_json() for name, found in self.features.items()},
            "combinations": self.count("built"),
            "experiments": self.count("checked"),
            "trained": self.count("trained"),
            "models_in_pool": self.pool,
            "models_drawn": len({experiment.model for experiment in self.experiments}),
            "failures": list(map(str, self.failures)),
            "seconds": round(self.seconds, 1),
        }


class _Task(NamedTuple):
    """All variants of a feature in a model, or, to be trained, one of them."""

    feature: str
    trial: Trial
    model: Model
    depth: Depth
    variants: Sequence[str]


def grow(
    bases: Sequence[Base],
    *,
    trials: Mapping[str, Trial] = TRIALS,
    models: int = 128,
    experiments: int = 1000,
    trained: int = 1,
    seed: int = 0,
    workers: int = 1,
    log: Callable[[str], None] = lambda line: None,
) -> Report:
    """Tries features on models made from the bases, and fits what they took.

    Args:
        models: to which each feature is applied, in all variants.
        experiments: combinations of which everything is checked, about.
        trained: models of each feature that also train.
        workers: processes; with 1, all happens in this one, which must have as many devices as `MESHES` take.
    """
    start, variants = time.perf_counter(), sum(len(trial.variants) for trial in trials.values())
    checked = -(-experiments // variants)
    tasks = _tasks(bases, trials, max(models, checked, 2), checked, trained, seed)  # One says nothing of growth.
    found: list[Experiment] = []
    with phase("applying features", len(tasks), unit="models") as applied:
        for some in _results(tasks, workers):
            found += some
            applied.advance()
            applied.note = f"{len(found):,} experiments"
            for experiment in some:
                if experiment.problems:
                    log(str(experiment))
    measured = {name: _measured(name, trial, found, seed) for name, trial in trials.items()}
    return Report(measured, sum(1 for _ in pool(bases, seed)), found, time.perf_counter() - start)


def _tasks(
    bases: Sequence[Base], trials: Mapping[str, Trial], count: int, checked: int, trained: int, seed: int
) -> list[_Task]:
    """Returns what is to be done: first what takes longest."""
    tasks: list[_Task] = []
    for i, (name, trial) in enumerate(trials.items()):
        names = list(trial.variants)
        fitting = (model for model in pool(bases, seed + i) if trial.has_place(model.config()))
        chosen = list(itertools.islice(fitting, count))
        if len(chosen) < count:
            raise ConfigError(f"{name}: there are only {len(chosen)} models for it, expected {count}: ask for fewer.")
        small = itertools.islice(filter(_is_small, itertools.chain(chosen, fitting)), trained)
        tasks += (_Task(name, trial, each, "trained", [names[(seed + j) % len(names)]]) for j, each in enumerate(small))
        for j, model in enumerate(chosen):
            tasks.append(_Task(name, trial, model, "checked" if j < checked else "built", names))
    return sorted(tasks, key=lambda task: -get_args(Depth).index(task.depth))


def _is_small(model: Model) -> bool:
    found = built(model.config())
    return found.size <= _SMALL and len(found.specs) <= _FEW


def _results(tasks: Sequence[_Task], workers: int) -> Iterator[list[Experiment]]:
    if workers == 1:
        yield from map(_run, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as processes:
        yield from processes.map(_run, tasks)


def _start_worker() -> None:
    # Programs are small, and run once: all of these make the compiler fast.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FAST_TO_COMPILE}"
    jax.config.update("jax_disable_most_optimizations", True)
    start_devices(max(map(parse_mesh, MESHES), key=lambda mesh: mesh.num_devices), os.environ)


def _run(task: _Task) -> list[Experiment]:
    before = built(task.model.config())
    expected = task.model.parameters(built(task.model.base.config()).specs)
    wrong = [] if before.size == expected else [f"without it, {before.size:,} parameters, expected {expected:,}"]
    return [_experiment(task, name, before, wrong) for name in task.variants]


def _experiment(task: _Task, name: str, before: Built, known: list[str]) -> Experiment:
    variant, found = task.trial.variants[name], list(known)
    lines, parameters = Lines(), 0
    try:
        cfg, lines = run_and_count(task.trial.modifier, before.cfg, variant)
        after = built(cfg)
        parameters = after.size
        found += size_problems(task.trial, variant, before, after)
        found += other_problems(before, after) if task.depth != "built" else ()
        found += training_problems(cfg) if task.depth == "trained" else ()
    except Exception as e:  # Whatever goes wrong, the combination does not work, and the report says why.
        found.append(f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}")
    return Experiment(task.feature, name, str(task.model), lines, parameters, task.depth, tuple(found))


def _measured(name: str, trial: Trial, found: Sequence[Experiment], seed: int) -> Measured:
    own = [each for each in found if each.feature == name]
    mine = {(each.model, each.variant): each.lines for each in own if each.depth != "trained"}
    drawn = list(dict.fromkeys(model for model, _ in mine))

    def lines(some_models: Sequence[str], some_variants: Sequence[str]) -> int:
        distinct = {mine[key] for key in itertools.product(some_models, some_variants)}
        return len(Lines().union(*distinct)) or 1

    variants = list(trial.variants)
    fit = growth(drawn, variants, lines, draws=_DRAWS, seed=seed)
    checked, failed = sum(each.depth != "built" for each in own), sum(bool(each.problems) for each in own)
    return Measured(lines(drawn, variants), fit, len(drawn), len(variants), checked, failed)


def grow_classical(models: int = 64, draws: int = 2) -> dict[str, dict[str, Measured]]:
    """Measures the classical designs: for each, what each feature costs."""

    def measured(design: str, feature: str) -> Measured:
        kinds, numbers = _classical.KINDS[feature], range(models)

        def lines(some_models: Sequence[int], some_kinds: Sequence[_classical.Kind]) -> int:
            return _classical.lines(design, feature, some_models, some_kinds)

        fit, count = growth(numbers, kinds, lines, draws=draws), len(kinds)
        return Measured(lines(numbers, kinds), fit, models, count, checked=models * count)

    return {
        design: {feature: measured(design, feature) for feature in _classical.KINDS} for design in _classical.PROGRAMS
    }
