# SPDX-License-Identifier: Apache-2.0
"""What a position means in data that is not what it was: where it goes on exactly, and where it cannot.

Documents are counted over all streams and epochs here: number n of stream s of N is the document s + n * N.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ._errors import DataError
from ._fitting import COUNTS
from ._packing import State
from ._skipped import joined_skips

DataChange = Literal["keep", "restart", "skip-to-step"]
_SPANS = "epochs_of"
FILES = "files"  # Of a fingerprint: which file a document is in. That may change: it tells what is appended.


class ChangedDataError(DataError):
    """A position is that of other data, with the differences."""

    def __init__(self, message: str, differences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.changes = tuple(differences)


class Old(NamedTuple):
    """What a position was taken in."""

    about: Mapping[str, Any]  # The fingerprint of the data set.
    same_tokens: bool  # Whether a text has the tokens that it had.
    steps: int  # That were made with it.


class Carried(NamedTuple):
    """Positions of all streams of other data."""

    states: Sequence[State | None]
    notes: Sequence[str]  # What that means, a sentence each.


def files_up_to(ends: np.ndarray, documents: int) -> str:
    """Returns a digest of where files end before so many documents; if others come after them, it stays the same."""
    inside = ends[ends < documents].astype("<i8")
    return hashlib.blake2b(inside.tobytes(), digest_size=8).hexdigest()


class Epochs:
    """Which document of which epoch comes at a place, where the number of documents has grown in between.

    Spans of epochs have the number of documents of then; after them, epochs have all documents there are. Instead of
    documents it may count what is read in groups, `per` of them at a place: blocks in windows.
    """

    def __init__(self, count: int, state: State | None, per: int = 1) -> None:
        self.spans: list[tuple[int, int]] = [(epochs, documents) for epochs, documents in (state or {}).get(_SPANS, [])]
        self._count, self._per = count, per

    def __call__(self, place: int) -> tuple[int, int, int]:
        """Returns the epoch of a place, the place in it, and the number of documents of that epoch."""
        before = 0
        for epochs, documents in self.spans:
            size = -(-documents // self._per)
            if place < epochs * size:
                return before + place // size, place % size, documents
            before, place = before + epochs, place - epochs * size
        size = -(-self._count // self._per)
        return before + place // size, place % size, self._count

    def until(self, epochs: int) -> "Epochs":
        """Returns the same where so many epochs have the documents of now, and more come after them."""
        more = epochs - sum(each for each, _ in self.spans)
        made = Epochs(self._count, None, self._per)
        made.spans = [*self.spans, (more, self._count)] if more > 0 else list(self.spans)
        return made

    def state(self) -> State:
        """Returns what a position has of it."""
        return {_SPANS: [list(span) for span in self.spans]} if self.spans else {}


def for_packer(state: State) -> State:
    """Returns a position without what a packer has no use for."""
    return {name: value for name, value in state.items() if name not in (_SPANS, "skipped")}


def in_changed_documents(
    states: Sequence[State | None],
    old: Old,
    now: Mapping[str, Any],
    first: State,
    num_streams: int,
    is_start: bool,
) -> Carried:
    """Returns where so many streams go on that pack documents, from positions in other documents, or packed otherwise.

    Args:
        now: the fingerprint of the data set, whose packer starts at `first`.
        is_start: whether the files of then seem to be those that the data starts with.
    """
    was, notes = old.about, list[str]()
    before = [state or first for state in states]
    epochs = Epochs(was["documents"], before[0])
    grown = now["documents"] - was["documents"]
    same_order = grown >= 0 and is_start and _same(old, now, "seed", "shuffle")
    if same_order and num_streams == len(states):
        same_tokens = old.same_tokens and _same(old, now, "add_bos", "add_eos", "transforms")
        after = [_repacked(state, first, same_tokens, _same(old, now, "packer")) for state in before]
        notes += _of_rows(before, after, _same(old, now, "packer"))
        if grown:
            epochs = epochs.until(_epochs_begun(before, epochs))
            start = 1 + sum(each for each, _ in epochs.spans)
            notes.append(f"{grown:,} documents more, taken for appended, come from epoch {start} on")
        elif not _same(old, now, "bytes"):
            notes.append(
                f"as many documents as before, with {now['bytes']:,} bytes rather than {was['bytes']:,}: it goes on at "
                "the same one, and what has changed before that is not given again"
            )
    else:
        place, apart = _frontier(before)
        if num_streams != len(states):
            notes.append(
                f"{num_streams} streams rather than {len(states)}: up to {apart + len(states):,} documents come again"
            )
        if grown or not same_order:
            epoch, at, _ = epochs(place)
            at = min(at, now["documents"])
            place, epochs = epoch * now["documents"] + at, Epochs(now["documents"], None)
            notes.append(
                f"another order of documents: epoch {epoch + 1} goes on as if {at:,} of them had been given, so that "
                "in this epoch some come twice, and others not at all"
            )
        after = [{**first, "document": -(-(place - stream) // num_streams)} for stream in range(num_streams)]
        after[0] |= _counts(before)
    skips = joined_skips(before, num_streams)
    return Carried(
        [{**for_packer(state), **epochs.state(), **each} for state, each in zip(after, skips, strict=True)], notes
    )


def in_other_rows(states: Sequence[State | None], first: State, old: Old, now: Mapping[str, Any]) -> Carried:
    """Returns positions in the same documents, in the same order, for a packer that starts at `first`."""
    before, same_packer = [state or first for state in states], _same(old, now, "packer")
    after = [_repacked(state, first, _same(old, now, "transforms"), same_packer) for state in before]
    return Carried(after, _of_rows(before, after, same_packer))


def _of_rows(before: Sequence[State], after: Sequence[State], same_packer: bool) -> list[str]:
    """Returns what it means that positions became others."""
    if any(_has_begun(a) and not _has_begun(b) for a, b in zip(before, after, strict=True)):
        return ["documents that were begun, or packed together and not all given, come again from their start"]
    return [] if same_packer else ["rows are made in another way, of what comes after the last token that was given"]


def _same(old: Old, now: Mapping[str, Any], *names: str) -> bool:
    return all(old.about.get(name) == now.get(name) for name in names)


def _has_begun(state: State) -> bool:
    """Whether some of the next document, or of what is packed together with it, is given already."""
    return bool(state.get("token") or state.get("row"))


def _repacked(state: State, first: State, same_tokens: bool, same_packer: bool) -> State:
    """Returns a position in the same documents for a packer that starts at `first`, which may be another one."""
    if same_packer and same_tokens:
        return state
    found = {**first, **_counts([state]), "document": state["document"]}
    if "token" in state and "token" in first and same_tokens:  # Any length of rows: tokens follow each other.
        found["token"] = state["token"]
    return found


def _counts(states: Sequence[State]) -> State:
    """Returns what packers have counted in positions."""
    found = {name: sum(state.get(name, 0) for state in states) for name in COUNTS}
    return {name: count for name, count in found.items() if count}


def _epochs_begun(states: Sequence[State], epochs: Epochs) -> int:
    """Returns how many epochs the streams have begun; what is packed together may be of one more."""
    begun = [
        stream + (state["document"] - (not _has_begun(state))) * len(states)
        for stream, state in enumerate(states)
        if state["document"] or _has_begun(state)
    ]
    ahead = any(state.get("row") for state in states)
    return epochs(max(begun))[0] + 1 + ahead if begun else 0


def _frontier(states: Sequence[State]) -> tuple[int, int]:
    """Returns the first document that is not done, and how far ahead of it a stream may be."""
    places = [stream + state["document"] * len(states) for stream, state in enumerate(states)]
    return min(places), max(places) - min(places)


def changes(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yields what differs between two fingerprints."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [key for key in {**old, **new} if key != FILES]:
            yield from changes(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
    elif old != new:
        yield f"{path} was {old!r}, is {new!r}"
