# SPDX-License-Identifier: Apache-2.0
"""`PreparedDataset`: rows of data that `dovetail data prepare` has written.

Blocks are dealt to streams, not documents: a window is some blocks from anywhere in the data, whose documents are
shuffled into each other, and each stream reads windows of its own. So a process reads only what its streams need.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dovetail.config import REQUIRED, ConfigError

from ._blocks import tokenizer_at
from ._change import Carried, Epochs, Old, for_packer, in_other_rows
from ._dataset import Dataset, check_group, count_figures
from ._errors import child_path, place_of
from ._joined import JoinedData, Part
from ._order import derive_seed, permutation, permuted, permuted_all
from ._packing import ConcatPacker, Packer, Row, State
from ._run import DocumentPlace, Reader, Run, Tokens, joined_weights
from ._tokenizer import KnownTokenizer
from ._transform import DocumentTransform, Transforms

_WITHOUT_DATA = (
    "Prepare text once, for runs of any size: dovetail data prepare SOURCE... --tokenizer TOKENIZER --to PLACE\n"
    "and give the place: --data PLACE. Or give text, for a small run, and what tokenises it:\n"
    "--text FILE... input.tokenizer.file=tokenizer.json 'input.tokenizer.eos_token=...'"
)


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
        # A directory, or s3://BUCKET/NAME or gs://BUCKET/NAME; or several, whose blocks follow each other.
        path: str | list[str] = REQUIRED
        packer: Packer.Config = ConcatPacker.Config()
        transforms: tuple[DocumentTransform.Config, ...] = ()  # Of documents, one after the other.
        shuffle: bool = True
        epochs: int | None = None  # None: without end.
        blocks: int = 16  # Of a window. More shuffle better; each stream has a window in memory.
        # "train" is all but the last blocks of each place, and "held-out" is those: `held_out` of them, 1 to 16.
        part: Part = "all"
        held_out: float = 0.05
        may_change: ClassVar[frozenset[str]] = frozenset({"path"})  # Moved: a position knows what was in it.
        when_missing: ClassVar[Mapping[str, str]] = {"path": _WITHOUT_DATA}

        def prepared_with(self, where: str) -> KnownTokenizer | None:
            places = [] if self.path is REQUIRED else _places(self)
            return tokenizer_at(places[0], f"{where}.path") if places else None

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
        self._data = JoinedData(_places(cfg), cfg.part, cfg.held_out, place_of(self))
        self._data.check_tokenizer(self._tokenizer, place_of(self, "path"))
        check_group(self._packer, self._data.group, place_of(self))
        self._transforms = Transforms(cfg.transforms, self, self._tokenizer, cfg.seed)
        self._count = len(self._data)  # Blocks.

    @property
    def is_endless(self) -> bool:
        return self.cfg.epochs is None

    @property
    def rows_go_on(self) -> bool:
        return self._packer.rows_go_on

    @property
    def wants_streams(self) -> bool:
        return True

    def fingerprint(self) -> dict[str, Any]:
        fields = ("seed", "shuffle", "epochs", "blocks", "part", "held_out")
        first, *others = self._data.digests
        return {
            "prepared": [first, *others] if others else first,
            "packer": self._packer.fingerprint(),
            **{name: getattr(self.cfg, name) for name in fields},
            **self._transforms.fingerprint(),
        }

    def carry(self, states: Sequence[State | None], old: Old, num_streams: int) -> Carried:
        now, was = self.fingerprint(), old.about.get("prepared")
        then, may_differ = was if isinstance(was, list) else [was], ("packer", "transforms", "prepared")
        same = all(old.about.get(name) == value for name, value in now.items() if name not in may_differ)
        same = same and self._data.digests[: len(then)] == then
        if not (same and old.same_tokens and num_streams == len(states)):
            return super().carry(states, old, num_streams)
        first = self._packer.first([0, 0])
        before, count = [state or first for state in states], self._data.up_to(len(then))
        after, notes = in_other_rows(states, first, old, now)
        epochs, more = self._epochs(before[0], count), self._count - count
        if more:
            epochs = epochs.until(_epochs_begun(before, epochs))
            start = 1 + sum(each for each, _ in epochs.spans)
            notes = [*notes, f"{more:,} blocks more, of data that was added, come from epoch {start} on"]
        return Carried([{**for_packer(state or first), **epochs.state()} for state in after], notes)

    def _epochs(self, state: State | None, count: int | None = None) -> Epochs:
        return Epochs(self._count if count is None else count, state, per=self.cfg.blocks)

    def figures(self, states: Sequence[State | None]) -> dict[str, float]:
        windows = sum(state["document"][0] for state in states if state)
        ended = sum(state.get("ended", 0) for state in states if state)
        epoch, at, count = self._epochs(next(iter(states), None))(windows)
        epochs = epoch + at / -(-count // self.cfg.blocks)
        return {"documents": float(ended), "epochs": epochs, **count_figures(states)}

    def rows(self, stream: int, num_streams: int, state: State | None) -> Iterator[tuple[Row, State]]:
        epochs = self._epochs(state)
        made = self._packer.rows(_Windows(self, stream, num_streams, epochs), for_packer(state) if state else state)
        return ((row, {**after, **epochs.state()}) for row, after in made) if epochs.spans else made

    def seek(self, rows: int, num_streams: int) -> list[State] | None:
        if self._transforms:  # Nobody knows how many tokens they leave.
            return None
        found = list[State]()
        for stream, ends in enumerate(self._ends_of_windows(rows * self.cfg.seq_len, num_streams)):
            state = self._packer.seek(rows, functools.partial(self._find, ends, stream, num_streams))
            if state is None:
                return None
            found.append(state)
        return found

    def _ends_of_windows(self, tokens: int, num_streams: int) -> list[np.ndarray]:
        """Returns for each stream what it has up to the end of each window, of so many tokens or more: [windows, 2].

        That is tokens, and documents.
        """
        cfg, sizes = self.cfg, self._data.sizes_of_blocks()
        windows, epochs = list[np.ndarray](), tokens * num_streams // int(sizes[:, 0].sum()) + 1
        while True:
            epochs = epochs if cfg.epochs is None else min(epochs, cfg.epochs)
            for epoch in range(len(windows), epochs):
                seed = derive_seed(cfg.seed, epoch)
                order = permuted_all(self._count, seed) if cfg.shuffle else np.arange(self._count)
                windows.append(np.add.reduceat(sizes[order], np.arange(0, self._count, cfg.blocks), axis=0))
            joined = np.concatenate(windows)
            ends = [np.cumsum(joined[stream::num_streams], axis=0) for stream in range(num_streams)]
            if epochs == cfg.epochs or all(len(each) and each[-1, 0] >= tokens for each in ends):
                return ends
            epochs += 1

    def _find(self, ends: np.ndarray, stream: int, num_streams: int, tokens: int) -> tuple[Run, int, int] | None:
        """Returns the window that a token of a stream is in, where the next one is in it, and documents before it."""
        number = int(np.searchsorted(ends[:, 0], tokens))
        if number == len(ends):
            return None
        run = _Windows(self, stream, num_streams, self._epochs(None)).read([number, 0])
        before, documents = map(int, ends[number - 1]) if number else (0, 0)
        return None if run is None else (run, tokens - before, documents)

    @property
    def is_far(self) -> bool:
        """Whether it takes a while until what is read is there."""
        return self._data.is_far

    def window(self, number: int, epochs: Epochs | None = None) -> Window | None:
        """Returns what is read together; None past the last epoch."""
        cfg = self.cfg
        epoch, at, count = (epochs or self._epochs(None))(number)
        if cfg.epochs is not None and epoch >= cfg.epochs:
            return None
        numbers = range(at * cfg.blocks, min((at + 1) * cfg.blocks, count))
        if cfg.shuffle:
            seed = derive_seed(cfg.seed, epoch)
            numbers = [permuted(n, count, seed) for n in numbers]
        read = self._data.read(blocks := list(numbers))
        ends = np.cumsum(np.concatenate([block.lengths for block in read]), dtype=np.int64)
        tokens = np.concatenate([block.tokens for block in read])
        weights = joined_weights([Tokens(block.tokens, block.weights) for block in read])
        count = len(ends) // self._data.group
        order = permutation(count, derive_seed(cfg.seed, epoch, at)) if cfg.shuffle else np.arange(count)
        return Window(tokens, weights, ends, order, epoch, blocks, np.cumsum([len(block.lengths) for block in read]))

    def origin(self, window: Window, document: int) -> tuple[int, int]:
        """Returns the block that a document of a window is from, and the number of its first sequence there."""
        number = document * self._data.group
        nth = int(np.searchsorted(window.block_ends, number, side="right"))
        return window.blocks[nth], number - (int(window.block_ends[nth - 1]) if nth else 0)

    def where(self, window: Window, document: int) -> str:
        """Returns where a document of a window comes from, as messages name it. Slow."""
        return self._data.where(*self.origin(window, document))

    def sequences(self, window: Window, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns documents of a window, in that order, as they are given: tokens, ends of sequences, and weights."""
        group = self._data.group
        each = numbers if group == 1 else (numbers[:, None].astype(np.int64) * group + np.arange(group)).ravel()
        starts, stops = np.append(0, window.ends[:-1])[each], window.ends[each]
        cuts = [*zip(starts.tolist(), stops.tolist(), strict=True)]
        ids = [window.tokens[start:stop] for start, stop in cuts]
        weights = None if window.weights is None else [window.weights[start:stop] for start, stop in cuts]
        if self._transforms:
            return self._transformed(window, numbers, list(map(Tokens, ids, weights or [None] * len(ids))))
        return np.concatenate(ids), np.cumsum(stops - starts), None if weights is None else np.concatenate(weights)

    def _transformed(self, window: Window, numbers: np.ndarray, given: Sequence[Tokens]) -> Any:
        group = self._data.group
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

    def __init__(self, dataset: PreparedDataset, stream: int, num_streams: int, epochs: Epochs) -> None:
        self._dataset, self._stream, self._num_streams, self._epochs = dataset, stream, num_streams, epochs
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
        tokens, ends, weights = self._dataset.sequences(window, order)

        def nth(document: int) -> DocumentPlace:
            return [number, skip + document] if skip + document < count else [number + 1, 0]

        def where(document: int) -> str:
            return self._dataset.where(window, int(order[document]))

        return Run(tokens, ends, nth, weights, len(ends) // len(order), where)

    def _window(self, number: int) -> Window | None:
        ahead, self._ahead = self._ahead, None
        if ahead and ahead[0] == number:
            found = ahead[1].result()
        else:
            found = self._dataset.window(self._nth(number), self._epochs)
        if self._dataset.is_far:
            following = self._nth(number + 1)
            self._ahead = number + 1, _threads().submit(self._dataset.window, following, self._epochs)
        return found

    def _nth(self, number: int) -> int:
        return self._stream + number * self._num_streams


def _places(cfg: PreparedDataset.Config) -> list[str]:
    return [cfg.path] if isinstance(cfg.path, str) else list(cfg.path)


def _epochs_begun(states: Sequence[State], epochs: Epochs) -> int:
    """Returns how many epochs the streams have begun; what is packed together may be of one more."""
    begun = list[int]()
    for stream, state in enumerate(states):
        window, document = state["document"]
        has_begun = bool(document or state.get("token") or state.get("row"))
        if window or has_begun:
            begun.append(stream + (window - (not has_begun)) * len(states))
    ahead = any(state.get("row") for state in states)
    return epochs(max(begun))[0] + 1 + ahead if begun else 0


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8, thread_name_prefix="prepared data")
