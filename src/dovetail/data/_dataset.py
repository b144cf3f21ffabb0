# SPDX-License-Identifier: Apache-2.0
"""`Dataset`: an endless or finite sequence of rows, in several streams; `TextDataset` makes them from a source."""

import abc
import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from dovetail.config import REQUIRED, Component, ConfigError

from ._change import FILES, Carried, ChangedDataError, Epochs, Old, files_up_to, for_packer, in_changed_documents
from ._document import Content, Document, Span
from ._errors import DataError, child_path, place_of
from ._fitting import COUNTS
from ._order import Order
from ._packing import ConcatPacker, Packer, Row, State
from ._run import NumberedReader, Tokens, is_masked, joined
from ._skipped import LEAST, Skipped, Skips, skipped_in
from ._source import Source
from ._tokenizer import KnownTokenizer, Tokenizer, check_ids, special_to_add
from ._transform import DocumentTransform, Transforms


class Dataset(Component, abc.ABC):
    """Rows for training. It keeps no position: that travels with each row.

    The rows come in `num_streams` streams, which share the documents among them. A stream is the unit of work of
    processes: which rows there are depends on the number of streams, and on nothing else about the hardware.
    """

    class Config(Component.Config):
        seq_len: int = REQUIRED  # Both are set by the parent.
        seed: int = REQUIRED

        def row_shape(self, seq_len: int) -> tuple[int, ...]:
            """Returns the shape of each field of a row."""
            return (seq_len,)

        def prepared_with(self, where: str) -> KnownTokenizer | None:
            """Returns the tokenizer that its data was prepared with; None if text is tokenised as it is read.

            `where` is the path of this config, for errors.
            """
            return None

    def __init__(self, cfg: Config, *, tokenizer: Tokenizer, rows_per_step: int = 1, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self._tokenizer, self._rows_per_step = tokenizer, rows_per_step

    @abc.abstractmethod
    def rows(self, stream: int, num_streams: int, state: State | None) -> Iterator[tuple[Row, State]]:
        """Yields the rows of a stream after position `state`, or all, each with the position after it."""

    def seek(self, rows: int, num_streams: int) -> Sequence[State] | None:
        """Returns where all streams are after so many rows of each, if that is known without reading up to there."""
        return None

    @property
    @abc.abstractmethod
    def is_endless(self) -> bool:
        """Whether the rows never end."""

    @property
    def rows_go_on(self) -> bool:
        """Whether each row of a stream starts where the one before ended, so that each row of a batch is a stream."""
        return False

    @property
    def wants_streams(self) -> bool:
        """Whether as many streams as are of use are taken, unless an input says how many; else it is one."""
        return False

    @abc.abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What a position depends on: with another fingerprint it would mean other data."""

    def carry(self, states: Sequence[State | None], old: Old, num_streams: int) -> Carried:
        """Returns where so many streams of this data go on from the positions of all streams of other data.

        Raises if those mean nothing here.
        """
        same = old.same_tokens and num_streams == len(states)
        if same and old.about == json.loads(json.dumps(self.fingerprint())):
            return Carried(states, ())
        raise ChangedDataError(
            f"{place_of(self)}: {type(self).__name__} cannot go on from a position in other data.\n"
            "  Start it anew, or with what it has for the step: --data-change restart or skip-to-step."
        )

    def figures(self, states: Sequence[State | None]) -> dict[str, float]:
        """Returns what has been given up to a position, by name, as in `epochs`; `states` are those of all streams."""
        return {}

    def documents(self, state: State | None) -> int:
        """Returns how many documents have ended up to a position of one stream."""
        return (state or {}).get("ended", 0)

    def skipped(self, states: Sequence[State | None]) -> list[Skipped]:
        """Returns the last documents that were left out up to a position, some of each stream."""
        return []

    def check(self, states: Sequence[State | None]) -> None:
        """Raises if too much has been left out up to a position."""
        return


class TextDataset(Dataset):
    """The documents of one source: shuffled anew in each epoch, tokenised, packed.

    One that cannot be read, decoded, parsed or encoded is an error, or is left out like an empty one. What is left out
    is counted in the position, so that a run counts the same however often it is resumed.
    """

    class Config(Dataset.Config):
        source: Source.Config = REQUIRED
        packer: Packer.Config = ConcatPacker.Config()
        transforms: tuple[DocumentTransform.Config, ...] = ()  # Of documents, one after the other.
        shuffle: bool = True
        epochs: int | None = None  # None: without end.
        add_bos: bool = False  # Whether a document starts with the bos token of the tokenizer.
        add_eos: bool = True  # Whether it ends with the eos token.
        on_bad_document: Literal["error", "skip"] = "error"
        max_bad_share: float = 0.01  # Of documents, at least 1,000: if more are left out, it is an error all the same.
        may_change: ClassVar[frozenset[str]] = frozenset({"on_bad_document", "max_bad_share"})  # When a run is resumed.

        def row_shape(self, seq_len: int) -> tuple[int, ...]:
            return self.packer.row_shape(seq_len)

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if cfg.epochs is not None and cfg.epochs < 1:
            raise ConfigError(f"{place_of(self, 'epochs')}: is {cfg.epochs}. Use 1 or more, or None for no end.")
        if not 0 <= cfg.max_bad_share <= 1:
            raise ConfigError(f"{place_of(self, 'max_bad_share')}: is {cfg.max_bad_share}. Use a number from 0 to 1.")
        pad_id = self._tokenizer.pad_id
        packer = cfg.packer.set(seq_len=cfg.seq_len, pad_id=0 if pad_id is None else pad_id)
        self._packer: Packer = packer.build(path=child_path(self, "packer"))
        self._bos = special_to_add(self, "add_bos", self._tokenizer.bos_id)
        self._eos = special_to_add(self, "add_eos", self._tokenizer.eos_id)
        self._transforms = Transforms(cfg.transforms, self, self._tokenizer, cfg.seed)
        self._source: Source = cfg.source.build(path=child_path(self, "source"))
        check_group(self._packer, self._source.group, place_of(self))
        self._order = self._order_of(len(self._source))
        self._older: dict[int, Order] = {}  # Of epochs that had fewer documents.

    def _order_of(self, count: int) -> Order:
        """Returns the order of the first documents."""
        blocks = self._source.blocks()
        if blocks is not None:
            sizes = np.diff(np.clip(np.cumsum(blocks), 0, count), prepend=0)
            blocks = sizes[sizes > 0]
        return Order(count, blocks=blocks, shuffle=self.cfg.shuffle, seed=self.cfg.seed)

    @property
    def is_endless(self) -> bool:
        return self.cfg.epochs is None

    @property
    def rows_go_on(self) -> bool:
        return self._packer.rows_go_on

    def fingerprint(self) -> dict[str, Any]:
        ends = self._source.ends()
        fields = ("seed", "shuffle", "epochs", "add_bos", "add_eos")
        return {
            "documents": len(self._source),
            "bytes": self._source.size(),
            **({} if ends is None else {FILES: files_up_to(ends, len(self._source))}),
            "packer": self._packer.fingerprint(),
            **{name: getattr(self.cfg, name) for name in fields},
            **self._transforms.fingerprint(),
        }

    def rows(self, stream: int, num_streams: int, state: State | None) -> Iterator[tuple[Row, State]]:
        count = len(self._source)
        state = state or self._packer.first(0)
        empty, bad, skips, epochs = 0, 0, Skips(state), Epochs(count, state)

        def read(number: int) -> list[Tokens] | None:
            nonlocal empty, bad
            epoch, at, documents = epochs(stream + number * num_streams)
            if self.cfg.epochs is not None and epoch >= self.cfg.epochs:
                return None
            index = self._order_among(documents)(epoch, at)
            found = self._sequences_or_none(index)
            bad = bad + 1 if found is None else 0
            if found is None:
                skips.add(number, index)
            if bad > LEAST:  # Of all streams together it is checked with each batch; there may never be another one.
                reason = self._why_skipped(index).reason
                raise DataError(f"more than {LEAST:,} documents in a row cannot be used. The last:\n  {reason}")
            if found is None or not all(len(each.ids) for each in found):  # Of a group, none without the others.
                empty += 1
                if empty == count:
                    raise DataError(f"{place_of(self, 'source')}: all {count} documents are empty{self._or_bad()}.")
                return [Tokens(np.zeros(0, np.int32))] * self._source.group
            empty = 0
            return self._transforms(found, epoch, index) if self._transforms else found

        def where(number: int) -> str:
            epoch, at, documents = epochs(stream + number * num_streams)
            return self._source.place(self._order_among(documents)(epoch, at))

        for row, after in self._packer.rows(NumberedReader(read, where), for_packer(state)):
            yield row, {**after, **epochs.state(), **skips.up_to(after["document"])}

    def _order_among(self, documents: int) -> Order:
        """Returns the order of an epoch that has so many documents."""
        if documents == len(self._source):
            return self._order
        if documents not in self._older:
            self._older[documents] = self._order_of(documents)
        return self._older[documents]

    def carry(self, states: Sequence[State | None], old: Old, num_streams: int) -> Carried:
        if "documents" not in old.about:
            return super().carry(states, old, num_streams)
        ends = self._source.ends()
        is_start = ends is None or old.about.get(FILES) in (None, files_up_to(ends, old.about["documents"]))
        return in_changed_documents(states, old, self.fingerprint(), self._packer.first(0), num_streams, is_start)

    def _or_bad(self) -> str:
        return "" if self.cfg.on_bad_document == "error" else ", or cannot be used"

    def _sequences_or_none(self, index: int) -> list[Tokens] | None:
        """Returns a document as tokens; None if it cannot be used, and is to be left out."""
        try:
            return self.sequences(index)
        except DataError as e:
            if self.cfg.on_bad_document == "skip":
                return None
            raise DataError(f"{e}\n  To leave out what is bad: {place_of(self, 'on_bad_document')}=skip") from e

    def figures(self, states: Sequence[State | None]) -> dict[str, float]:
        documents = sum(state["document"] for state in states if state)
        epoch, at, count = Epochs(len(self._source), next(iter(states), None))(documents)
        ended = sum(
            state.get("ended", 0) for state in states if state
        )  # Also of what is packed together, and not done.
        found = {"documents": float(max(documents, ended)), "epochs": epoch + at / count, **count_figures(states)}
        skipped = sum(skipped_in(state)[0] for state in states)
        return {**found, "skipped": float(skipped)} if skipped or self.cfg.on_bad_document == "skip" else found

    def skipped(self, states: Sequence[State | None]) -> list[Skipped]:
        return [self._why_skipped(index) for state in states for index in skipped_in(state)[1]]

    def _why_skipped(self, index: int) -> Skipped:
        """Returns why a document was left out, which a position does not know: it is read again."""
        place, reason = f"document {index}", "now it can be read"
        try:
            place = self._source.place(index)
            self.sequences(index)
        except IndexError:
            reason = "it is not there any more"
        except (DataError, OSError) as e:
            reason = str(e)
        return Skipped("", index, place, reason)

    def check(self, states: Sequence[State | None]) -> None:
        skipped, share = sum(skipped_in(state)[0] for state in states), self.cfg.max_bad_share
        documents = sum(state["document"] for state in states if state)
        if self.cfg.on_bad_document == "skip" and skipped > share * max(documents, LEAST):
            last = self.skipped(states)[-1]
            raise DataError(
                f"{place_of(self, 'source')}: {skipped:,} of {documents:,} documents cannot be used, more than "
                f"max_bad_share ({share:g}) allows, of {LEAST:,} or more. One of the last:\n  {last.reason}\n"
                f"  Mend the data, or raise {place_of(self, 'max_bad_share')}."
            )

    def tokens(self, index: int) -> np.ndarray:
        """Returns the tokens of a document of the source, bos and eos included. An empty document has none."""
        return joined([sequence.ids for sequence in self.sequences(index)])

    def sequences(self, index: int) -> list[Tokens]:
        """Returns a document of the source as tokens, bos and eos included: one sequence, or those of a group."""
        document = self._source[index]
        found = [self._sequence(content, document, index) for content in document.sequences]
        if masked := [number for number, each in enumerate(found, 1) if is_masked(each.weights)]:
            what = f"sequence {masked[0]} of it" if len(found) > 1 else "it"
            raise DataError(f"{self._source.place(index)}: all weights are 0: {what} teaches nothing.")
        return found

    def _sequence(self, content: Content, document: Document, index: int) -> Tokens:
        spans = content if isinstance(content, list) else [Span(content)]
        parts = [self._encode(span.content, index) for span in spans]
        if not any(map(len, parts)):
            return Tokens(np.zeros(0, np.int32))
        before = self._bos if document.starts else []
        after = self._eos if document.ends else []
        ids = np.concatenate([np.array(before, np.int32), *parts, np.array(after, np.int32)])
        if all(span.weight == 1 for span in spans):
            return Tokens(ids)
        weights = [span.weight for span in spans]
        counts = [len(before), *map(len, parts), len(after)]
        return Tokens(ids, np.repeat(np.array([weights[0], *weights, weights[-1]], np.float32), counts))

    def _encode(self, content: str | np.ndarray, index: int) -> np.ndarray:
        ids = content
        if isinstance(ids, str):
            try:
                ids = self._tokenizer.encode(ids)
            except Exception as e:  # Each library has its own error for text that is not Unicode.
                raise DataError(f"{self._source.place(index)}: {why_not_encoded(content)}: {e}") from e
        check_ids(ids, self._tokenizer.vocab_size, lambda: self._source.place(index))
        return ids.astype(np.int32, copy=False)


def check_group(packer: Packer, group: int, place: str) -> None:
    """Raises if a packer is not made for documents of so many sequences."""
    if packer.group != group:
        has = f"groups of {group} sequences" if group > 1 else "documents of one sequence"
        raise ConfigError(
            f"{place}: the data has {has}, and {type(packer).__name__} packs "
            f"{f'groups of {packer.group}' if packer.group > 1 else 'documents of one'}.\n"
            + (f"  Use packer=GroupPacker.Config(size={group})." if group > 1 else "  Use another packer.")
        )


def count_figures(states: Sequence[State | None]) -> dict[str, float]:
    """Returns what packers have counted up to a position of documents that they cut or left out."""
    names = [name for name in COUNTS if name != "ended" and any(name in state for state in states if state)]
    return {name: float(sum(state.get(name, 0) for state in states if state)) for name in names}


def why_not_encoded(content: Any) -> str:
    """Returns what is wrong with a text that a tokenizer cannot encode."""
    try:
        content.encode("utf-8")
    except UnicodeEncodeError as e:
        return f"character {e.start} is half of a surrogate pair, and so not Unicode"
    return "the tokenizer cannot encode it"
