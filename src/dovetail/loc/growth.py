# SPDX-License-Identifier: Apache-2.0
"""Growth: how the lines that a feature takes grow with the number of models and of variants of the feature.

Each feature is applied, in each of its variants, to models drawn from a large pool. Each combination is an experiment,
and must work. What the experiments of N models and M variants needed of the file that holds the modifier is the cost
of a feature for so many; `lines = c * N^a * M^b` is fitted to it. `grow_classical` makes the same fit for two classical
designs.
"""

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from dovetail.config import ConfigError
from dovetail.launch import start_devices
from dovetail.parallel import parse_mesh

from . import _classical
from ._executed import Lines, run_and_count
from ._fit import Growth, growth
from ._models import Base as Base
from ._models import Model, models
from ._trained import MESHES, training_problems
from ._trials import TRIALS as TRIALS
from ._trials import Trial as Trial
from ._works import Built, built, problems

_DRAWS = 200  # Of models and variants, for the intervals.
_SMALL = 3_000_000  # Parameters of models that are trained, at most.


class Experiment(NamedTuple):
    """A variant of a feature in a model."""

    feature: str
    variant: str
    model: str
    lines: Lines  # That the modifier needed.
    parameters: int
    trained: bool
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
            "experiments": self.models * self.variants,
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

    def as_json(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        return {
            "features": {name: found.as_json() for name, found in self.features.items()},
            "experiments": len(self.experiments),
            "trained": sum(experiment.trained for experiment in self.experiments),
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
    trained: str = ""  # The variant.


def grow(
    bases: Sequence[Base],
    *,
    trials: Mapping[str, Trial] = TRIALS,
    experiments: int = 1000,
    trained: int = 1,
    seed: int = 0,
    workers: int = 1,
    log: Callable[[str], None] = lambda line: None,
) -> Report:
    """Runs about so many experiments on models made from the bases, and fits what they took.

    Args:
        trained: models of each feature that also train.
        workers: processes; with 1, all happens in this one, which must have as many devices as `MESHES` take.
    """
    start, variants = time.perf_counter(), sum(len(trial.variants) for trial in trials.values())
    per_feature = max(2, -(-experiments // variants))  # One model says nothing about growth.
    tasks = list(_tasks(bases, trials, per_feature, trained, seed))
    found: list[Experiment] = []
    for done, some in enumerate(_results(tasks, workers), 1):
        found += some
        log(f"{done} of {len(tasks)} models, {len(found)} experiments")
        for experiment in some:
            if experiment.problems:
                log(str(experiment))
    measured = {name: _measured(name, trial, found, seed) for name, trial in trials.items()}
    pool = sum(1 for _ in models(bases, seed))
    return Report(measured, pool, found, time.perf_counter() - start)


def _tasks(bases: Sequence[Base], trials: Mapping[str, Trial], count: int, trained: int, seed: int) -> Iterator[_Task]:
    """Yields what is to be done: first what takes longest. Features take the models of the pool in turns."""
    for i, (name, trial) in enumerate(trials.items()):
        small = (model for model in models(bases, seed + i) if _is_small(model) and _has_place(trial, model))
        names = list(trial.variants)
        for j, model in enumerate(itertools.islice(small, trained)):
            yield _Task(name, trial, model, trained=names[(seed + j) % len(names)])
    pool = models(bases, seed)
    for name, trial in trials.items():
        chosen = list(itertools.islice((model for model in pool if _has_place(trial, model)), count))
        if len(chosen) < count:
            raise ConfigError(f"{name}: only {len(chosen)} models are left for it, expected {count}: fewer experiments")
        yield from (_Task(name, trial, model) for model in chosen)


def _has_place(trial: Trial, model: Model) -> bool:
    cfg = model.config()
    return all(trial.places(cfg, variant) for variant in trial.variants.values())


def _is_small(model: Model) -> bool:
    return built(model.base.config()).size <= _SMALL


def _results(tasks: Sequence[_Task], workers: int) -> Iterator[list[Experiment]]:
    if workers == 1:
        yield from map(_run, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        yield from pool.map(_run, tasks)


def _start_worker() -> None:
    start_devices(max(map(parse_mesh, MESHES), key=lambda mesh: mesh.num_devices), os.environ)
    jax.config.update("jax_disable_most_optimizations", True)  # Programs are small, and run once.


def _run(task: _Task) -> list[Experiment]:
    before = built(task.model.config())
    expected = task.model.parameters(built(task.model.base.config()).specs)
    wrong = [] if before.size == expected else [f"without it, {before.size:,} parameters, expected {expected:,}"]
    names = [task.trained] if task.trained else list(task.trial.variants)
    return [_experiment(task, name, before, wrong) for name in names]


def _experiment(task: _Task, name: str, before: Built, known: list[str]) -> Experiment:
    variant, found = task.trial.variants[name], list(known)
    lines, parameters = Lines(), 0
    try:
        cfg, lines = run_and_count(task.trial.modifier, before.cfg, variant)
        after = built(cfg)
        parameters = after.size
        found += problems(task.trial, variant, before, after)
        found += training_problems(cfg) if task.trained else ()
    except Exception as e:  # Whatever goes wrong, the combination does not work, and the report says why.
        found.append(f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}")
    return Experiment(task.feature, name, str(task.model), lines, parameters, bool(task.trained), tuple(found))


def _measured(name: str, trial: Trial, found: Sequence[Experiment], seed: int) -> Measured:
    mine = {(each.model, each.variant): each for each in found if each.feature == name and not each.trained}
    drawn = list(dict.fromkeys(model for model, _ in mine))

    def lines(some_models: Sequence[str], some_variants: Sequence[str]) -> int:
        return len(Lines().union(*(mine[key].lines for key in itertools.product(some_models, some_variants)))) or 1

    variants = list(trial.variants)
    failed = sum(bool(each.problems) for each in found if each.feature == name)
    fit = growth(drawn, variants, lines, draws=_DRAWS, seed=seed)
    return Measured(lines(drawn, variants), fit, len(drawn), len(variants), failed)


def grow_classical(models: int = 16, draws: int = 2) -> dict[str, dict[str, Measured]]:
    """Measures the classical designs: for each, what each feature costs."""

    def measured(design: str, feature: str) -> Measured:
        kinds, numbers = _classical.KINDS[feature], range(models)

        def lines(some_models: Sequence[int], some_kinds: Sequence[_classical.Kind]) -> int:
            return _classical.lines(design, feature, some_models, some_kinds)

        return Measured(lines(numbers, kinds), growth(numbers, kinds, lines, draws=draws), models, len(kinds))

    return {
        design: {feature: measured(design, feature) for feature in _classical.KINDS} for design in _classical.PROGRAMS
    }
