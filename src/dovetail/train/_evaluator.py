# SPDX-License-Identifier: Apache-2.0
"""`Evaluator`: what looks at a model while it is trained, and after: held-out loss, samples, whatever one wants to see.

An evaluator has a name, the one that it is attached to a run by, and a schedule of its own. `dovetail eval` runs those
of a run, too.
"""

import abc
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.config import Component, ConfigError

from ._observer import Histogram, Table
from ._program import Program


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """What is to be evaluated: a model after some steps of a run."""

    step: int
    params: Any  # Their moving average, where the learner keeps one; merged with the state of the run.


@dataclasses.dataclass(frozen=True)
class Findings:
    """What an evaluator has found: numbers, texts to read, and what is looked at. Names follow that of the evaluator.

    A name may be empty: then that of the evaluator is all.
    """

    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    pictures: Mapping[str, bytes] = dataclasses.field(default_factory=dict[str, bytes])  # Files in the format PNG.
    histograms: Mapping[str, Histogram] = dataclasses.field(default_factory=dict[str, Histogram])
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict[str, Table])

    def named(self, name: str) -> "Findings":
        """Returns the same with full names, as in `eval/loss`."""

        def full(values: Mapping[str, Any]) -> dict[str, Any]:
            return {f"{name}/{key}" if key else name: value for key, value in values.items()}

        return Findings(*(full(getattr(self, field.name)) for field in dataclasses.fields(self)))


class Evaluator(Component, abc.ABC):
    """The interface. An evaluator is run by all processes of a run, at the same steps; it changes nothing.

    It computes with `self.program`, on the mesh and in the dtype of the run: `self.program.call(at, batch)` calls
    any method of the model, and returns the summaries that modules report as well.
    """

    class Config(Component.Config):
        every: int | None = None  # Steps from one evaluation to the next. There is one at the end; None: no other.

    def __init__(
        self, cfg: Config, *, program: Program, files: Mapping[str, bytes] | None = None, **kwargs: Any
    ) -> None:
        """`files` are those that travel with the run; without them, the input of the run reads its own."""
        super().__init__(cfg, **kwargs)
        if cfg.every is not None and cfg.every < 1:
            raise ConfigError(f"{self._path}.every: is {cfg.every}, expected at least 1, or None for the end alone.")
        self.program, self._files = program, files

    @property
    def name(self) -> str:
        """What the run calls it."""
        return self._path.rpartition(".")[2]

    def is_due(self, step: int) -> bool:
        """Whether it is to run after a step, the last one aside."""
        return self.cfg.every is not None and step % self.cfg.every == 0

    @abc.abstractmethod
    def run(self, at: Evaluated) -> Findings:
        """Evaluates a model."""


def evaluators_of(program: Program, files: Mapping[str, bytes] | None) -> list[Evaluator]:
    """Returns the evaluators of the run of a program, built."""
    attached = program.cfg.evaluators.items()
    return [cfg.build(path=f"evaluators.{name}", program=program, files=files) for name, cfg in attached]


def findings(evaluators: list[Evaluator], at: Evaluated) -> Iterator[Findings]:
    """Yields what each evaluator finds, by full names."""
    for evaluator in evaluators:
        yield evaluator.run(at).named(evaluator.name)
