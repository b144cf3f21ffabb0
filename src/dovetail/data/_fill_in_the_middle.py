# SPDX-License-Identifier: Apache-2.0
"""Fill-in-the-middle: documents whose middle comes last, so that a model learns to write what fits in between."""

from typing import Any

import numpy as np

from dovetail.config import ConfigError, did_you_mean

from ._errors import place_of
from ._run import Tokens
from ._transform import DocumentTransform, draw


class FillInTheMiddle(DocumentTransform):
    """Cuts a document at two places, and moves what is between them to its end, with tokens that say what is what.

    A share of `rate` of all documents is changed, the others stay as they are. They become PREFIX prefix SUFFIX suffix
    MIDDLE middle, or, a share of `spm_rate` of these, PREFIX SUFFIX suffix MIDDLE prefix middle. A bos token stays at
    the start, and an eos token at the end. Weights move with their tokens; each of the three new tokens has that of the
    token after it.

    Reference: Bavarian et al., Efficient Training of Language Models to Fill in the Middle, 2022 (arXiv:2207.14255).
    """

    class Config(DocumentTransform.Config):
        rate: float = 0.5
        spm_rate: float = 0.5
        prefix: str = "<|fim_prefix|>"  # Tokens of the vocabulary, by name.
        middle: str = "<|fim_middle|>"
        suffix: str = "<|fim_suffix|>"

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        for name in ("rate", "spm_rate"):
            if not 0 <= getattr(cfg, name) <= 1:
                raise ConfigError(f"{place_of(self, name)}: is {getattr(cfg, name)}. Use a number from 0 to 1.")
        self._prefix, self._middle, self._suffix = map(self._id, ("prefix", "middle", "suffix"))
        if len({self._prefix, self._middle, self._suffix}) < 3:
            raise ConfigError(
                f"{place_of(self)}: prefix, middle and suffix are {cfg.prefix!r}, {cfg.middle!r} and {cfg.suffix!r}. "
                "Name three tokens."
            )

    def _id(self, field: str) -> int:
        token, vocabulary = getattr(self.cfg, field), self._tokenizer.vocabulary()
        if token not in vocabulary:
            near = sorted(name for name in vocabulary if "fim" in name.lower())[:8]
            some = f" It has {', '.join(map(repr, near))}." if near else did_you_mean(token, vocabulary)
            raise ConfigError(
                f"{place_of(self, field)}: the tokenizer has no token {token!r}.{some}\n"
                "  Name one that it has, or add one to it: fill-in-the-middle needs three that text never has."
            )
        return vocabulary[token]

    def apply(self, document: Tokens, seed: int) -> Tokens:
        ids, count = document.ids, len(document.ids)
        start = int(ids[0] == self._tokenizer.bos_id)
        stop = count - int(count > start and ids[-1] == self._tokenizer.eos_id)
        if start == stop or draw(seed, "rate") >= self.cfg.rate:
            return document
        first, second = sorted(start + int(draw(seed, which) * (stop - start + 1)) for which in ("first", "second"))
        prefix, middle, suffix = range(start, first), range(first, second), range(second, stop)
        if draw(seed, "spm") < self.cfg.spm_rate:
            order = [self._prefix, self._suffix], suffix, [self._middle], prefix, middle
        else:
            order = [self._prefix], prefix, [self._suffix], suffix, [self._middle], middle
        moved = [ids[:start], *(_taken(ids, part) for part in order), ids[stop:]]
        return Tokens(np.concatenate(moved).astype(ids.dtype), self._weights(document.weights, start, stop, order))

    @staticmethod
    def _weights(weights: np.ndarray | None, start: int, stop: int, order: Any) -> np.ndarray | None:
        if weights is None:
            return None
        new = np.full(2, np.nan, np.float32)
        parts = [_taken(weights, part) if isinstance(part, range) else new[: len(part)] for part in order]
        found = np.concatenate([weights[:start], *parts, weights[stop:]])
        for at in reversed(np.flatnonzero(np.isnan(found)).tolist()):  # So that what comes after is known.
            found[at] = found[at + 1] if at + 1 < len(found) else weights[stop - 1]
        return found


def _taken(ids: np.ndarray, part: range | list[int]) -> np.ndarray:
    return ids[part.start : part.stop] if isinstance(part, range) else np.array(part)
