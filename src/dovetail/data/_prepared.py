# SPDX-License-Identifier: Apache-2.0
"""`PreparedDataset`: rows of data that `dovetail data prepare` has written.

Blocks are dealt to streams, not documents: a window is some blocks from anywhere in the data, whose documents are
shuffled into each other, and each stream reads windows of its own. So a process reads only what its streams need.
"""

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from dovetail.config import REQUIRED, ConfigError

from ._blocks import PreparedData
from ._change import Carried, Old, in_other_rows
from ._dataset import Dataset, check_group, count_figures
from ._errors import child_path, place_of
from ._order import derive_seed, permutation, permuted
from ._packing import ConcatPacker, Packer, Row, State
from ._run import DocumentPlace, Reader, Run, Tokens, joined_weights
from ._transform import DocumentTransform, Transforms


class Window(NamedTuple):
    """Some blocks, read together."""

    tokens: np.ndarray
    weights: np.ndarray | None  # None: all are 1.
    ends: np.ndarray  # Of sequences.
    order: np.ndarray  # Of documents.
    epoch: int
    blocks: list[int]  # Which they are, and the sequences up to the end of each.
    block_ends: np.ndarray


class PreparedDataset(Dataset):
    """The documents of prepared data: blocks shuffled anew in each epoch, documents within some blocks, packed.

    A position is the number of a window and of a document in it: to go to it takes one read.
    """

    class Config(Dataset.Config):
        path: str = REQUIRED  # A directory, or s3://BUCKET/NAME or gs://BUCKET/NAME.
        packer: Packer.Config = ConcatPacker.Config()
        transforms: tuple[DocumentTransform.Config, ...] = ()  # Of documents, one after the other.
        shuffle: bool = True
        epochs: int | None = None  # None: without end.
        blocks: int = 16  # Of a window. More shuffle better; each stream has a window in memory.
        # "train" is all but the last blocks, and "held-out" is those: `held_out` of them, at least one, at most 16.
        part: Literal["all", "train", "held-out"] = "all"
        held_out: float = 0.05
        may_change: ClassVar[frozenset[str]] = frozenset({"path"})  # Moved: a position knows what was in it.

        def row_shape(self, seq_len: int) -> tuple[int, ...]:
            return self.packer.row_shape(seq_len)

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        for name, value in {"epochs": cfg.epochs, "blocks": cfg.blocks}.items():
            if value is not None and value < 1:
                raise ConfigError(f"{place_of(self, name)}: is {value}. Use 1 or more.")
        if not 0 < cfg.held_out < 1:
            raise ConfigError(f"{place_of(self, 'held_out')}: is {cfg.held_out}. Use more than 0 and less than 1.")
        pad_id = self._tokenizer.pad_id
        packer = cfg.packer.set(seq_len=cfg.seq_len, pad_id=0 if pad_id is None else pad_id)
        self._packer: Packer = packer.build(path=child_path(self, "packer"))
        self._data = PreparedData(cfg.path, place_of(self, "path"))
        self._check_tokenizer()
        check_group(self._packer, self._data.manifest.group, place_of(self))
        self._transforms = Transforms(cfg.transforms, self, self._tokenizer, cfg.seed)
        self._first, self._count = self._blocks()

    def _check_tokenizer(self) -> None:
        about, found = self._data.manifest.tokenizer, self._tokenizer.fingerprint()
        if found != about["fingerprint"]:
            raise ConfigError(
                f"{place_of(self, 'path')}: {self.cfg.path} was prepared with another tokenizer: {about['name']} of "
                f"{about['vocab_size']:,} tokens ({about['fingerprint']}), not {type(self._tokenizer).__name__} of "
                f"{self._tokenizer.vocab_size:,} ({found}).\n"
                f"  Use that one, as `dovetail train RECIPE --data {self.cfg.path}` does, or prepare the data anew."
            )

    def _blocks(self) -> tuple[int, int]:
        """Returns the first block of this part of the data, and how many there are."""
        count = len(self._data)
        if self.cfg.part == "all":
            return 0, count
        if count < 2:
            raise ConfigError(
                f"{place_of(self, 'part')}: the data has 1 block, too few to hold one out. Prepare "
                "more, or smaller blocks (block_tokens), or one long document in parts (max_document_tokens)."
            )
        held_out = min(max(round(count * self.cfg.held_out), 1), 16, count - 1)
        return (0, count - held_out) if self.cfg.part == "train" else (count - held_out, held_out)

    @property
    def is_endless(self) -> bool:
        return self.cfg.epochs is None

    @property
    def rows_go_on(self) -> bool:
        return self._packer.rows_go_on

    def fingerprint(self) -> dict[str, Any]:
        fields = ("seed", "shuffle", "epochs", "blocks", "part", "held_out")
        return {
            "prepared": self._data.manifest.digest,
            "packer": self._packer.fingerprint(),
            **{name: getattr(self.cfg, name) for name in fields},
            **self._transforms.fingerprint(),
        }

    def carry(self, states: Sequence[State | None], old: Old, num_streams: int) -> Carried:
        now = self.fingerprint()
        same = all(old.about.get(name) == value for name, value in now.items() if name not in ("packer", "transforms"))
        if not (same and old.same_tokens and num_streams == len(states)):
            return super().carry(states, old, num_streams)
        return in_other_rows(states, self._packer.first([0, 0]), old, now)

    def figures(self, states: Sequence[State | None]) -> dict[str, float]:
        windows = sum(state["document"][0] for state in states if state)
        ended = sum(state.get("ended", 0) for state in states if state)
        epochs = windows / -(-self._count // self.cfg.blocks)
        return {"documents": float(ended), "epochs": epochs, **count_figures(states)}

    def rows(self, stream: int, num_streams: int, state: State | None) -> Iterator[tuple[Row, State]]:
        return self._packer.rows(_Windows(self, stream, num_streams), state)

    @property
    def is_far(self) -> bool:
        """Whether it takes a while until what is read is there."""
        return self._data.place.is_far

    def window(self, number: int) -> Window | None:
        """Returns what is read together; None past the last epoch."""
        cfg = self.cfg
        epoch, at = divmod(number, -(-self._count // cfg.blocks))
        if cfg.epochs is not None and epoch >= cfg.epochs:
            return None
        numbers = range(at * cfg.blocks, min((at + 1) * cfg.blocks, self._count))
        if cfg.shuffle:
            seed = derive_seed(cfg.seed, epoch)
            numbers = [permuted(n, self._count, seed) for n in numbers]
        blocks = [self._first + n for n in numbers]
        read = self._data.read(blocks)
        ends = np.cumsum(np.concatenate([block.lengths for block in read]), dtype=np.int64)
        tokens = np.concatenate([block.tokens for block in read])
        weights = joined_weights([Tokens(block.tokens, block.weights) for block in read])
        count = len(ends) // self._data.manifest.group
        order = permutation(count, derive_seed(cfg.seed, epoch, at)) if cfg.shuffle else np.arange(count)
        return Window(tokens, weights, ends, order, epoch, blocks, np.cumsum([len(block.lengths) for block in read]))

    def origin(self, window: Window, document: int) -> tuple[int, int]:
        """Returns the block that a document of a window is from, and the number of its first sequence there."""
        number = document * self._data.manifest.group
        nth = int(np.searchsorted(window.block_ends, number, side="right"))
        return window.blocks[nth], number - (int(window.block_ends[nth - 1]) if nth else 0)

    def where(self, window: Window, document: int) -> str:
        """Returns where a document of a window comes from, as messages name it. Slow."""
        return self._data.where(*self.origin(window, document))

    def documents(self, window: Window, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns documents of a window, in that order, as they are given: tokens, ends of sequences, and weights."""
        group = self._data.manifest.group
        each = numbers if group == 1 else (numbers[:, None].astype(np.int64) * group + np.arange(group)).ravel()
        starts, stops = np.append(0, window.ends[:-1])[each], window.ends[each]
        cuts = [*zip(starts.tolist(), stops.tolist(), strict=True)]
        ids = [window.tokens[start:stop] for start, stop in cuts]
        weights = None if window.weights is None else [window.weights[start:stop] for start, stop in cuts]
        if self._transforms:
            return self._transformed(window, numbers, list(map(Tokens, ids, weights or [None] * len(ids))))
        return np.concatenate(ids), np.cumsum(stops - starts), None if weights is None else np.concatenate(weights)

    def _transformed(self, window: Window, numbers: np.ndarray, given: Sequence[Tokens]) -> Any:
        group = self._data.manifest.group
        found = [
            sequence
            for i, number in enumerate(numbers.tolist())
            for sequence in self._transforms(
                given[i * group : (i + 1) * group], window.epoch, *self.origin(window, number)
            )
        ]
        ids = [sequence.ids for sequence in found]
        return np.concatenate(ids), np.cumsum(list(map(len, ids))), joined_weights(found)


class _Windows(Reader):
    """The documents of a stream. A place is the window, counted in the stream, and the document in it."""

    def __init__(self, dataset: PreparedDataset, stream: int, num_streams: int) -> None:
        self._dataset, self._stream, self._num_streams = dataset, stream, num_streams
        self._ahead: tuple[int, Future[Any]] | None = None  # The window after the one read last, on its way.

    @property
    def first(self) -> DocumentPlace:
        return [0, 0]

    def read(self, place: DocumentPlace) -> Run | None:
        number, skip = place
        window = self._window(number)
        if window is None:
            return None
        order, count = window.order[skip:], len(window.order)
        tokens, ends, weights = self._dataset.documents(window, order)

        def nth(document: int) -> DocumentPlace:
            return [number, skip + document] if skip + document < count else [number + 1, 0]

        def where(document: int) -> str:
            return self._dataset.where(window, int(order[document]))

        return Run(tokens, ends, nth, weights, len(ends) // len(order), where)

    def _window(self, number: int) -> Window | None:
        ahead, self._ahead = self._ahead, None
        found = ahead[1].result() if ahead and ahead[0] == number else self._dataset.window(self._nth(number))
        if self._dataset.is_far:
            self._ahead = number + 1, _threads().submit(self._dataset.window, self._nth(number + 1))
        return found

    def _nth(self, number: int) -> int:
        return self._stream + number * self._num_streams


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8, thread_name_prefix="prepared data")
