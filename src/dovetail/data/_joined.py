# SPDX-License-Identifier: Apache-2.0
"""`JoinedData`: blocks of prepared data of several places as one sequence, which grows at its end.

What is held out is held out of each place: so what comes before stays as it is when another place is added.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from dovetail.config import ConfigError

from ._blocks import Block, PreparedData
from ._tokenizer import Tokenizer

Part = Literal["all", "train", "held-out"]
_HELD_OUT = 16  # Blocks, at most, of a place.


class JoinedData:
    """A part of the blocks of each place, one place after the other.

    Args:
        where: the path of the config of a data set, for errors.
    """

    def __init__(self, paths: Sequence[str], part: Part, held_out: float, where: str) -> None:
        if not paths:
            raise ConfigError(
                f"{where}.path: names no place. Give one, or several, as `dovetail data prepare` has made."
            )
        self.places = [PreparedData(path, f"{where}.path") for path in paths]
        spans = [_span(len(place), part, held_out, f"{where}.part", place) for place in self.places]
        self._spans = spans
        self._ends = np.cumsum([count for _, count in spans])
        self.digests = [place.manifest.digest for place in self.places]
        groups = {path: place.manifest.group for path, place in zip(paths, self.places, strict=True)}
        if len(set(groups.values())) > 1:
            found = ", ".join(f"{path} {group}" for path, group in groups.items())
            raise ConfigError(f"{where}.path: documents are groups of several sizes: {found}. Use data of one size.")
        self.group = next(iter(groups.values()))  # Sequences of a document.
        if twice := [path for path, digest in zip(paths, self.digests, strict=True) if self.digests.count(digest) > 1]:
            raise ConfigError(f"{where}.path: {' and '.join(map(repr, twice))} are the same data. Name it once.")

    def __len__(self) -> int:
        """The number of blocks."""
        return int(self._ends[-1])

    def up_to(self, places: int) -> int:
        """Returns how many blocks the first places have."""
        return int(self._ends[places - 1])

    @property
    def is_far(self) -> bool:
        """Whether it takes a while until what is read is there."""
        return any(place.place.is_far for place in self.places)

    def read(self, blocks: Sequence[int]) -> list[Block]:
        """Returns blocks by their numbers here; those of a place are read together."""
        places = np.searchsorted(self._ends, blocks, side="right")
        found: dict[int, Block] = {}
        for place in dict.fromkeys(places.tolist()):
            before = int(self._ends[place - 1]) if place else 0
            own = [at for at, each in enumerate(places.tolist()) if each == place]
            read = self.places[place].read([self._spans[place][0] + blocks[at] - before for at in own])
            found |= dict(zip(own, read, strict=True))
        return [found[at] for at in range(len(blocks))]

    def where(self, block: int, number: int) -> str:
        """Returns where a sequence of a block comes from, as messages name it. Slow."""
        place = int(np.searchsorted(self._ends, block, side="right"))
        before = int(self._ends[place - 1]) if place else 0
        return self.places[place].where(self._spans[place][0] + block - before, number)

    def sizes_of_blocks(self) -> np.ndarray:
        """Returns how many tokens, and how many sequences, each block has: [blocks, 2]; no text is read."""
        each = zip(self.places, self._spans, strict=True)
        return np.concatenate([place.sizes_of_blocks()[first : first + count] for place, (first, count) in each])

    def check_tokenizer(self, tokenizer: Tokenizer, where: str) -> None:
        """Raises if some of it was prepared with another tokenizer."""
        found = tokenizer.fingerprint()
        for place in self.places:
            about = place.manifest.tokenizer
            if found != about["fingerprint"]:
                raise ConfigError(
                    f"{where}: {place.path} was prepared with another tokenizer: {about['name']} of "
                    f"{about['vocab_size']:,} tokens ({about['fingerprint']}), not {type(tokenizer).__name__} of "
                    f"{tokenizer.vocab_size:,} ({found}).\n"
                    f"  Use that one, as `dovetail train RECIPE --data {place.path}` does, or prepare the data anew."
                )


def _span(count: int, part: Part, share: float, where: str, data: PreparedData) -> tuple[int, int]:
    """Returns the first block of a part of the data of a place, and how many there are."""
    if part == "all":
        return 0, count
    if count < 2:
        raise ConfigError(
            f"{where}: the data has 1 block, too few to hold one out: {data.path}. Prepare more, or smaller blocks "
            "(block_tokens), or one long document in parts (max_document_tokens)."
        )
    held_out = min(max(round(count * share), 1), _HELD_OUT, count - 1)
    return (0, count - held_out) if part == "train" else (count - held_out, held_out)
