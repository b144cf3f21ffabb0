# SPDX-License-Identifier: Apache-2.0
"""`Serving`: how much a model serves at once, and what follows from it for sizes."""

from typing import Literal

from dovetail.config import ConfigBase, ConfigError

from ._quantised import KV, Weights
from ._request import Pooling

LONGEST = 4096  # Tokens of a sequence, unless more are asked for.
Drafting = Literal["lookup", "predictions"]


class Serving(ConfigBase):
    """How much is served at once. All programs are compiled for these sizes before the first request."""

    slots: int = 16  # Sequences that run at once.
    page: int = 16  # Tokens of a page.
    max_length: int | None = None  # Tokens of a sequence; None: as many as the model can have, 4096 at most.
    tokens: int | None = None  # Of all sequences together; None: slots * max_length, if there is memory.
    memory: float = 0.5  # Of what is free, for the state of sequences.
    snapshots: int | None = None  # Of state that is not in pages, for prefixes; None: twice the slots.
    # Numbers of sequences in a step, slots at most, and of tokens of a prompt; None: few where padding costs nothing.
    rows: tuple[int, ...] | None = None
    chunks: tuple[int, ...] | None = None
    max_logprobs: int = 20  # Alternatives of a token that can be reported.
    max_biased: int = 300  # Tokens whose logits a request can change.
    drafts: int = 0  # Tokens that are guessed and then verified in one step, at most; 0: none. They change no answer.
    # What guesses them: "lookup", what came after the same tokens before; or the model's own "predictions" of tokens
    # further ahead, if it was trained with some. A draft model takes the place of either.
    drafter: Drafting = "lookup"
    embed: Pooling | None = None  # Serves embeddings, too: what the last token is made into, or the mean of all.
    # Whether each layer is compiled by itself: longer to compile, but a loop copies weights or pages in each round.
    apart: bool = True
    weights: Weights | None = None  # How they are kept, rounded when they are loaded; None: they stay as they are.
    kv: KV | None = None  # Keys and values, or what else caches keep; None: in the dtype of the computation.
    slower: bool = False  # Whether to use few bits also where they take longer, to save memory.

    def check(self) -> None:
        """Raises if a value makes no sense."""
        least = {
            "slots": 1,
            "page": 1,
            "max_length": 2,
            "tokens": 1,
            "snapshots": 0,
            "max_logprobs": 0,
            "max_biased": 0,
        }
        least["drafts"] = 0
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise ConfigError(f"{name} is {value}, expected at least {smallest}.")
        if self.chunks and self.drafts >= self.chunks[-1]:
            raise ConfigError(f"drafts is {self.drafts}, expected less than the largest chunk: {self.chunks[-1]}.")
        if not 0 < self.memory <= 1:
            raise ConfigError(f"memory is {self.memory}, expected a share: more than 0, at most 1.")
        for name, smallest in {"rows": 1, "chunks": 2}.items():
            values = getattr(self, name)
            if values is not None and (not values or list(values) != sorted(set(values)) or values[0] < smallest):
                raise ConfigError(f"{name} is {values}, expected ascending numbers from {smallest} on.")

    def sized(self, *, leaves_out_padding: bool) -> "Serving":
        """Returns the same with numbers of rows and chunks; each is a program to compile."""
        rows = (1, 16, 64, 256) if leaves_out_padding else (1, 4, 8, 16, 32, 64, 128, 256)
        chunks = (16, 64, 128, 256) if leaves_out_padding else (16, 32, 64, 128, 256)
        return self.set(rows=self.rows or rows, chunks=self.chunks or chunks)

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Numbers of rows of a step of decoding; the last has room for all slots."""
        return (*(count for count in self.rows or () if count < self.slots), self.slots)


def num_pages(serving: Serving, tokens: int, length: int, window: int | None) -> int:
    """Returns how many pages a group has: page 0, which nobody uses, and as many as sequences can fill."""
    whole = -(-tokens // serving.page)
    if window is None:
        return 1 + whole
    chunk = max(fitting_chunks(serving, length))
    each = min(-(-(window + chunk) // serving.page) + 2, -(-length // serving.page))
    return 1 + min(whole, max(each * serving.slots, each))


def fitting_chunks(serving: Serving, length: int) -> tuple[int, ...]:
    """Returns the chunks of prompts that a sequence of this length can have; one at least."""
    chunks = serving.chunks or ()
    return tuple(chunk for chunk in chunks if chunk < length) or chunks[:1]
