# SPDX-License-Identifier: Apache-2.0
"""How one of several kernels is chosen, and how the choice becomes known."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from dovetail.config import ConfigError

_K = TypeVar("_K")


@dataclass(frozen=True)
class Support:
    """Whether a kernel computes what it is asked for: true, if there is no reason against it."""

    reason: str = ""  # One clause, such as "soft_cap is not offered by cuDNN".

    def __bool__(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class Choice:
    """Which of several kernels computes something, and why none before it does."""

    path: str  # Of what chose, in the config.
    kernel: str  # The name of its class.
    refused: tuple[tuple[str, str], ...] = ()  # Kernels that would have been preferred, each with its reason.

    @property
    def is_fallback(self) -> bool:
        """Whether another kernel would have been preferred."""
        return bool(self.refused)

    def __str__(self) -> str:
        because = "".join(f"; not {kernel}: {reason}" for kernel, reason in self.refused)
        return f"{self.path}: {self.kernel}{because}"


# The collections that are open. A context variable, because threads may trace programs at the same time, and a kernel,
# which is a pure function to its caller, has no other way to say what it did.
_open: ContextVar[tuple[list[Choice], ...]] = ContextVar("open", default=())


@contextmanager
def kernel_choices() -> Iterator[list[Choice]]:
    """Yields a list that gets all choices made while programs are traced inside, equal ones once.

    A program that `jax.jit` has traced before is not traced again, so that its choices are not made again.
    """
    choices: list[Choice] = []
    token = _open.set((*_open.get(), choices))
    try:
        yield choices
    finally:
        _open.reset(token)


def note_choice(choice: Choice) -> None:
    """Adds a choice to all collections that are open."""
    for choices in _open.get():
        if choice not in choices:
            choices.append(choice)


def choose(path: str, kernels: Sequence[_K], supports: Callable[[_K], Support]) -> _K:
    """Returns the first kernel that supports what is asked for, and notes the choice."""
    refused: list[tuple[str, str]] = []
    for kernel in kernels:
        name, support = type(kernel).__name__, supports(kernel)
        if support:
            note_choice(Choice(path, name, tuple(refused)))
            return kernel
        refused.append((name, support.reason))
    reasons = "".join(f"\n  {name}: {reason}." for name, reason in refused)
    raise ConfigError(f"{path}: none of its kernels computes this.{reasons}\n  Add a kernel that does to `kernels`.")
