# SPDX-License-Identifier: Apache-2.0
"""The interface between an engine and what computes: rows of tokens in, drawn tokens out.

Shape letters: R rows, T time, N pages of a row, V vocabulary, K alternatives.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ._request import Pooling


class Group(NamedTuple):
    """Layers that look equally far back, and the pages that they share: a page has room in each of their arrays."""

    name: str  # Of the size that their state declares.
    window: int | None  # How many tokens back a token sees, itself included; None: all.
    pages: int  # How many there are. Page 0 is never used by a sequence: unused places of a table point to it.


@dataclasses.dataclass(frozen=True)
class DeviceShape:
    """What an engine must know of a device."""

    slots: int  # Sequences that run at once.
    page: int  # Tokens of a page.
    groups: tuple[Group, ...]  # None, where no state is by token.
    snapshots: int  # Copies of rows that there is room for; 0 where no state is by row, or none are wanted.
    has_row_state: bool  # Whether a sequence has state that is not in pages: then prefixes are hit at snapshots alone.
    max_length: int  # Tokens of a sequence, prompt and answer.
    vocab_size: int
    rows: tuple[int, ...]  # Numbers of rows of a step of decoding, ascending; the last is `slots`.
    chunks: tuple[int, ...]  # Numbers of tokens of a chunk of a prompt, ascending, each larger than 1.
    max_logprobs: int  # Alternatives that are reported of a token, at most.
    max_biased: int = 300  # Tokens of a row whose logits are changed by a bias, at most.
    pooling: Pooling | None = None  # How embeddings are made of prompts, unless a request says; None: they are not.
    drafts: int = 0  # Guesses of a row that are verified in a step of decoding, at most.
    own_drafts: bool = False  # Whether the device makes these guesses: then it does not look at those that it is given.
    draft_costs: tuple[float, ...] = ()  # By `rows`: how many plain steps one with guesses takes; (): no more than one.

    @property
    def row_pages(self) -> int:
        """Pages of the longest sequence, which is the width of a table."""
        return -(-self.max_length // self.page)


@dataclasses.dataclass(frozen=True)
class Rows:
    """One call: `[R, T]` tokens, of a shape that the device has: `(R, 1)` or `(1, T)`; to verify, `(R, drafts + 1)`."""

    ids: np.ndarray  # [R, T] int32.
    slots: np.ndarray  # [R] int32: where the state of a row is written; `DeviceShape.slots` for a row that is not used.
    source: np.ndarray  # [R] int32: where it is read: the same slot, or `slots + i` for snapshot i.
    fresh: np.ndarray  # [R] bool: the state starts anew, and is not read.
    start: np.ndarray  # [R] int32: the place of the first token in its sequence.
    count: np.ndarray  # [R] int32: how many tokens are real; 0 for a row that is not used.
    follows: np.ndarray  # [R] bool: the first token is the one drawn last in the slot, not that of `ids`.
    tables: Mapping[str, np.ndarray]  # By group: [R, N] int32.
    draws: np.ndarray  # [R] bool: whether a token is drawn after the last one.
    draw: "RowDraw | None" = None  # How; None: where tokens are drawn, the most likely ones, without log-probabilities.
    prompt_logprobs: bool = False  # Whether those of `targets` are wanted; for one row.
    targets: np.ndarray | None = None  # [R, T] int32: the token after each, where prompt_logprobs are wanted.
    pools: np.ndarray | None = None  # [R, T] float32: of each token, its weight in an embedding; for one row.
    verifies: bool = (
        False  # Whether all tokens of a row after its first are guesses. Nothing else changes what is drawn.
    )


@dataclasses.dataclass(frozen=True)
class RowDraw:
    """How tokens are drawn, for each row."""

    temperature: np.ndarray  # [R] float32.
    top_k: np.ndarray  # [R] int32; 0: all.
    top_p: np.ndarray  # [R] float32.
    min_p: np.ndarray  # [R] float32.
    repetition: np.ndarray  # [R] float32.
    presence: np.ndarray  # [R] float32.
    frequency: np.ndarray  # [R] float32.
    seed: np.ndarray  # [R] uint32.
    choice: np.ndarray  # [R] int32.
    number: np.ndarray  # [R] int32: of the token that is drawn, in its sequence.
    mask: np.ndarray | None = None  # [R, ceil(V / 32)] int32, bits of tokens that may be drawn; None: all.
    bias: Sequence[Mapping[int, float]] | None = None  # Added to logits, for each row; None: nothing.


class Drawn(NamedTuple):
    """What a call has drawn, on the host.

    A call that verifies draws up to T tokens a row: then `[R]` is `[R, T]` here. They are those of its guesses that
    hold, and one after them; behind it, tokens are -1, and all else is anything.
    """

    tokens: np.ndarray  # [R] int32; of rows that draw none, anything.
    logprobs: np.ndarray | None = None  # [R] float32, if `draw` was given.
    top_ids: np.ndarray | None = None  # [R, K] int32, the most likely first.
    top_logprobs: np.ndarray | None = None  # [R, K] float32.
    prompt_logprobs: np.ndarray | None = None  # [T] float32, of `targets`.
    prompt_top_ids: np.ndarray | None = None  # [T, K]
    prompt_top_logprobs: np.ndarray | None = None  # [T, K]
    pooled: np.ndarray | None = None  # [D] float32: the sum over tokens of what the layers made, by `pools`.


class KernelUse(NamedTuple):
    """A kernel, and in how many parts of a model it is used."""

    kernel: str
    parts: int
    refused: tuple[tuple[str, str], ...] = ()  # Kernels that would have been preferred, each with its reason.

    def __str__(self) -> str:
        because = "".join(f"; not {kernel}: {reason}" for kernel, reason in self.refused)
        return f"{self.kernel} in {self.parts} part{'s' * (self.parts != 1)} of the model{because}"


class Device(abc.ABC):
    """Computes. It has state for each slot, and pages; who uses them says which.

    Calls return before the result is there, in order; one thread makes them all.
    """

    shape: DeviceShape
    kernels: tuple[KernelUse, ...] = ()  # What computes, where there is a choice.

    @abc.abstractmethod
    def run(self, rows: Rows) -> Any:
        """Starts a call, and returns what `fetch` takes."""

    @abc.abstractmethod
    def fetch(self, started: Any) -> Drawn:
        """Waits for a call."""

    @abc.abstractmethod
    def save(self, slot: int, snapshot: int) -> None:
        """Copies the state of a row to a snapshot, after the calls that were started before."""

    @abc.abstractmethod
    def count(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Sets which tokens have been in the prompt and the output of a slot, for penalties, before its first draw.

        From then on, tokens drawn in the slot by calls with `draw` are counted by the device.
        """

    @abc.abstractmethod
    def swap(self, params: Any) -> None:
        """Uses other parameters from the next call on. State that was made with the old ones is then of no use."""
