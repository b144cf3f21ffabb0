# SPDX-License-Identifier: Apache-2.0
"""`DocumentTransform`: makes another document of each, in tokens, by chance that a position need not know."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.config import Component

from ._errors import child_path
from ._order import derive_seed
from ._run import Tokens
from ._tokenizer import Tokenizer


class DocumentTransform(Component, abc.ABC):
    """Makes another document of each, as tokens. It keeps nothing: the same document and seed give the same result."""

    def __init__(self, cfg: Component.Config, *, tokenizer: Tokenizer, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self._tokenizer = tokenizer

    @abc.abstractmethod
    def apply(self, document: Tokens, seed: int) -> Tokens:
        """Returns what is given in place of a document, bos and eos included; it has weights if the document has.

        Args:
            seed: another one for each document and each epoch; all that is chosen by chance follows from it.
        """


class Transforms:
    """Some transforms of a data set, one after the other."""

    def __init__(
        self, configs: Sequence[DocumentTransform.Config], component: Component, tokenizer: Tokenizer, seed: int
    ) -> None:
        self._steps: list[DocumentTransform] = [
            cfg.build(path=f"{child_path(component, 'transforms')}[{n}]", tokenizer=tokenizer)
            for n, cfg in enumerate(configs)
        ]
        self._seed = seed

    def __bool__(self) -> bool:
        return bool(self._steps)

    def __call__(self, sequences: Sequence[Tokens], *identity: int) -> list[Tokens]:
        """Returns the sequences of a document; `identity` is the epoch, and what names the document in the data."""
        found = list(sequences)
        for step, transform in enumerate(self._steps):
            for number, sequence in enumerate(found):
                if len(sequence.ids):
                    seed = derive_seed(self._seed, "transform", step, number, *identity)
                    found[number] = transform.apply(sequence, seed)
        return found

    def fingerprint(self) -> Mapping[str, Any]:
        """Returns what a fingerprint has of it; nothing without transforms, as before there were any."""
        return {"transforms": [repr(step.cfg) for step in self._steps]} if self._steps else {}


def draw(seed: int, *what: object) -> float:
    """Returns a number from 0 up to 1, by chance, that follows from a seed and what it is for."""
    return (derive_seed(seed, *what) >> 11) / 2**53  # As many bits as a float has: never rounded up to 1.
