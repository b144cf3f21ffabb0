# SPDX-License-Identifier: Apache-2.0
"""`Observer`: what is told of what happens in a run, and shows it or writes it down. A run does not depend on them."""

import abc
import contextlib
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.config import Component, ConfigBase

Cell = str | int | float | bool | None
_LONGEST = 100  # Characters of a file name.


class Table(NamedTuple):
    """Rows of numbers and texts, under the names of columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Histogram(NamedTuple):
    """How many values lie between one edge and the next: there is one more edge than counts."""

    edges: Sequence[float]
    counts: Sequence[float]


class Observer(Component, abc.ABC):
    """The interface. Values are plain numbers: whoever calls has waited for the device."""

    class Config(Component.Config):
        pass

    @abc.abstractmethod
    def start(self, directory: Path, first_step: int, last_step: int, about: str) -> None:
        """A run starts or goes on; steps are counted from 1. `about` describes it in a line."""

    @abc.abstractmethod
    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Figures of one step, by name: `loss`, `eval/loss`, `tokens_per_second`."""

    @abc.abstractmethod
    def text(self, step: int, name: str, value: str) -> None:
        """Something to read: a sample, a message."""

    @abc.abstractmethod
    def stop(self) -> None:
        """The run has ended, in whatever way."""

    # Who has no place for the rest need not say so.

    def config(self, cfg: ConfigBase, facts: Mapping[str, Cell]) -> None:
        """The config of the run, and what else is known of it: parameters, devices, versions. Comes after `start`."""

    def picture(self, step: int, name: str, png: bytes) -> None:
        """Something to look at, as a file in the format PNG."""

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[float]) -> None:
        """How values are distributed: between one edge and the next, how many."""

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Numbers and texts in rows."""


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Takes whatever a service or its client raises for what it is to a run: something that cannot be written."""
    try:
        yield
    except OSError:
        raise
    except Exception as e:
        text = str(e).strip().partition("\n")[0]
        raise OSError(f"{type(e).__name__}: {text}" if text else type(e).__name__) from e


def is_failing() -> bool:
    """Whether an error is on its way, where an observer is stopped."""
    return sys.exc_info()[0] is not None


def file_name(name: str) -> str:
    """Returns a name that a user has chosen as that of a file, with `/` for directories; no two become the same.

    >>> file_name("eval/attention"), file_name("../x y")
    ('eval/attention', 'x_y-46c740c6')
    """
    parts = [re.sub(r"[^A-Za-z0-9._=+-]+", "_", part).strip("._") for part in name.split("/")]
    safe = "/".join(part for part in parts if part)[:_LONGEST].rstrip("/.")
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return safe if safe and safe == name else f"{safe}-{digest}".lstrip("-")


def told(values: Any) -> Any:
    """Returns values for JSON, which has no word for nan and infinity: those are texts.

    >>> told([1.5, float("nan"), "x", None])
    [1.5, 'nan', 'x', None]
    """
    if isinstance(values, float):
        return values if values - values == 0 else str(values)
    if isinstance(values, Mapping):
        return {str(name): told(value) for name, value in values.items()}
    return [told(value) for value in values] if isinstance(values, list | tuple) else values
