# SPDX-License-Identifier: Apache-2.0
"""Positions in data that has changed: where they go on exactly, and what is said where they cannot."""

import json
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.data import (
    BestFitPacker,
    ByteTokenizer,
    ChangedDataError,
    ConcatPacker,
    Dataset,
    HuggingFaceTokenizer,
    JsonLines,
    Mixture,
    Parquet,
    Split,
    TextDataset,
    TextInput,
)
from dovetail.data._change import Epochs
from support.objectives import Pairs

BYTES = ByteTokenizer.Config().build()
PACKERS = {"concat": ConcatPacker.Config(), "best fit": BestFitPacker.Config(window=2)}


def documents(count, start=0) -> list[str]:
    """Documents of different lengths, each of letters of its own."""
    return [chr(0x4E00 + i) * (1 + 5 * i % 4) for i in range(start, start + count)]


def written(directory, name, texts) -> JsonLines.Config:
    file = Path(directory, name)
    file.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return JsonLines.Config(files=[str(file)])


def reading(source, packer="concat", *, seq_len=8, batch_size=4, streams=1, **fields) -> TextInput.Config:
    dataset = TextDataset.Config(source=source, packer=PACKERS[packer], **fields)
    return TextInput.Config(batch_size=batch_size, seq_len=seq_len, dataset=dataset, streams=streams, prefetch=0)


def taken(cfg, steps, position=None):
    """The batches of some steps, and the position after them."""
    iterator = iter(cfg.build())
    if position is not None:
        iterator.set_state(position)
    return list(islice(iterator, steps)), iterator.get_state()


def stream_of(batches) -> list[int]:
    """All tokens, those of padding aside, in their order."""
    return [int(token) for batch in batches for token in batch["tokens"][batch["segments"] > 0]]


def texts_of(tokens) -> Counter:
    """How often each letter was given that a document is made of."""
    return Counter(bytes(t for t in tokens if t < 256).decode(errors="ignore"))


def kept(cfg, position):
    with pytest.raises(ChangedDataError):
        iter(cfg.build()).set_state(position)
    return cfg.build().carry(position)


@settings(max_examples=40)
@given(
    old=st.integers(3, 30),
    more=st.integers(1, 20),
    steps=st.integers(0, 12),
    packer=st.sampled_from([*PACKERS]),
    streams=st.sampled_from([1, 2, 4]),
    shuffle=st.booleans(),
    again=st.integers(1, 4),
)
def test_appended_documents_come_from_a_later_epoch_on_and_nothing_else_changes(
    old, more, steps, packer, streams, shuffle, again
):
    with tempfile.TemporaryDirectory() as d:
        before = reading(written(d, "a", documents(old)), packer, streams=streams, shuffle=shuffle)
        after = before.set_in("dataset.source", written(d, "b", documents(old + more)))
        _, position = taken(before, steps)
        position, notes = kept(after, position)
        if not steps:
            assert position["streams"] == {}
            return
        assert len(notes) == 1
        start = int(notes[0].rpartition("epoch ")[2].split()[0])
        # Documents of each epoch, by their places: those of then until the epoch that is said, all of them after it.
        made, epochs = after.build()._dataset, Epochs(old + more, position["streams"]["0"])
        orders = {old: before.build()._dataset._order, old + more: made._order}
        for place in range((start + 1) * (old + more)):
            epoch, at, count = epochs(place)
            assert count == (old if epoch < start - 1 else old + more)
            assert made._order_among(count)(epoch, at) == orders[count](epoch, at)
        # What comes up to there is what would have come.
        goes_on, _ = taken(after, again, position)
        _, unchanged = taken(before, steps)
        wanted, end = taken(before, again, unchanged)
        reach = max(end["streams"][str(s)]["document"] * streams + s for s in range(streams))
        reach += streams * (40 if packer == "best fit" else 1)  # What is packed together with it.
        if reach < sum(e * c for e, c in epochs.spans):
            assert stream_of(goes_on) == stream_of(wanted)
        # It goes on from there like any other, and can grow again.
        rest, later = taken(after, 2, taken(after, again, position)[1])
        assert stream_of(taken(after, again + 2, position)[0]) == stream_of(goes_on) + stream_of(rest)
        grown = before.set_in("dataset.source", written(d, "c", documents(old + more + 5)))
        assert len(taken(grown, 1, kept(grown, later)[0])[0]) == 1


@pytest.mark.parametrize("streams", [1, 2])
def test_with_appended_data_each_epoch_has_each_document_once(streams, tmp_path):
    before = reading(written(tmp_path, "a", documents(10)), streams=streams, epochs=None)
    after = before.set_in("dataset.source", written(tmp_path, "b", documents(16)))
    first, position = taken(before, 2)
    rest, end = taken(after, 40, kept(after, position)[0])
    figures = after.build().figures(end)
    whole = int(figures["epochs"])
    assert whole > 5
    lengths = {text[0]: len(text) for text in documents(16)}
    counts = texts_of(stream_of([*first, *rest])) if streams == 1 else None
    for letter, count in (counts or {}).items():
        epochs = whole if letter in "".join(documents(10)) else whole - 1
        assert epochs * lengths[letter] <= count <= (epochs + 1) * lengths[letter]


def test_blocks_of_the_data_of_then_stay_as_they_were(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, count in (("a", 10), ("b", 15)):
        pq.write_table(pa.table({"text": documents(count)}), tmp_path / name, row_group_size=4)
    before = reading(Parquet.Config(files=[str(tmp_path / "a")]))
    after = before.set_in("dataset.source.files", [str(tmp_path / "b")])
    _, position = taken(before, 1)
    goes_on, _ = taken(after, 1, kept(after, position)[0])
    assert stream_of(goes_on) == stream_of(taken(before, 2)[0][1:])


@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize("lengths", [(8, 24), (24, 8), (7, 16)])
def test_rows_of_another_length_go_on_with_the_next_token(lengths, streams, tmp_path):
    before = reading(written(tmp_path, "a", documents(30)), seq_len=lengths[0], streams=streams)
    after = before.set(seq_len=lengths[1])
    first, position = taken(before, 4)
    position, notes = kept(after, position)
    assert notes == ["rows are made in another way, of what comes after the last token that was given"]
    second, _ = taken(after, 4, position)
    for stream in range(streams):
        rows = slice(stream * 4 // streams, (stream + 1) * 4 // streams)
        own = [{name: values[rows] for name, values in batch.items()} for batch in (*first, *second)]
        alone = before.set(batch_size=4 // streams, seq_len=1, streams=1).build()._dataset.rows(stream, streams, None)
        wanted = [int(row["tokens"][0]) for row, _ in islice(alone, len(stream_of(own)))]
        assert stream_of(own) == wanted


def test_what_was_packed_together_comes_again_where_rows_have_another_length(tmp_path):
    before = reading(written(tmp_path, "a", documents(30)), "best fit", shuffle=False)
    after = before.set(seq_len=16)
    _, position = taken(before, 5)
    window = position["streams"]["0"]
    position, (note,) = kept(after, position)
    assert note == "documents that were begun, or packed together and not all given, come again from their start"
    assert position["streams"]["0"] == {"document": window["document"], "row": 0, "ended": window["ended"]}
    assert len(taken(after, 3, position)[0]) == 3


def test_mended_documents_do_not_forbid_going_on_at_the_same_place(tmp_path):
    texts = documents(30)
    before = reading(written(tmp_path, "a", texts), shuffle=False)
    after = before.set_in("dataset.source", written(tmp_path, "b", [*texts[:29], "mended"]))
    _, position = taken(before, 3)
    carried, (note,) = kept(after, position)
    assert carried["streams"] == position["streams"]
    assert note.startswith("as many documents as before, with ")
    assert stream_of(taken(after, 1, carried)[0]) == stream_of(taken(before, 1, position)[0])


@pytest.mark.parametrize("path, value", [("seed", 1), ("dataset.shuffle", False)])
def test_another_order_goes_on_in_the_same_epoch_and_says_what_that_means(path, value, tmp_path):
    before = reading(written(tmp_path, "a", documents(200)))
    _, position = taken(before, 4)
    (done,) = (state["document"] for state in position["streams"].values())
    position, (note,) = kept(before.set_in(path, value), position)
    assert note.startswith("another order of documents: epoch 1 goes on as if ")
    assert position["streams"] == {"0": {"document": done, "token": 0, "ended": done}}


def test_fewer_documents_keep_the_epoch(tmp_path):
    before = reading(written(tmp_path, "a", documents(20)))
    after = before.set_in("dataset.source", written(tmp_path, "b", documents(7)))
    _, position = taken(before, 11)
    epoch = before.build().figures(position)["epochs"]
    position, (note,) = kept(after, position)
    assert note.startswith(f"another order of documents: epoch {int(epoch) + 1} goes on as if ")
    assert int(epoch) <= after.build().figures(position)["epochs"] <= int(epoch) + 1


@given(
    streams=st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8])),
    steps=st.integers(1, 8),
    packer=st.sampled_from([*PACKERS]),
)
@settings(max_examples=30)
def test_with_other_streams_no_document_is_left_out_and_few_come_again(streams, steps, packer):
    if streams[0] == streams[1]:
        return
    with tempfile.TemporaryDirectory() as d:
        before = reading(written(d, "a", documents(300)), packer, streams=streams[0], batch_size=8, shuffle=False)
        after = before.set(streams=streams[1])
        _, position = taken(before, steps)
        old = [state["document"] for _, state in sorted(position["streams"].items())]
        position, (note,) = kept(after, position)
        new = [state["document"] for _, state in sorted(position["streams"].items())]
        first = min(s + n * streams[0] for s, n in enumerate(old))
        assert min(s + n * streams[1] for s, n in enumerate(new)) == first
        given_already = {s + k * streams[0] for s, n in enumerate(old) for k in range(n)}
        again = {place for place in given_already if place >= first}
        assert note.startswith(f"{streams[1]} streams rather than {streams[0]}: up to ")
        assert len(again) <= int(note.split("up to ")[1].split()[0])
        assert set(range(first)) <= given_already
        assert len(taken(after, 2, position)[0]) == 2


def mixed(directory, parts, **weights) -> TextInput.Config:
    made: dict[str, Dataset.Config] = {
        name: TextDataset.Config(source=written(directory, f"{name}{count}", documents(count, start)))
        for name, (count, start) in parts.items()
    }
    return TextInput.Config(
        batch_size=4, seq_len=4, prefetch=0, dataset=Mixture.Config(parts=made, weights=weights), streams=2
    )


A, B, C = {"a": (20, 0)}, {"b": (20, 100)}, {"c": (20, 200)}


def test_a_source_may_come_go_and_weigh_more_in_the_middle_of_a_run(tmp_path):
    before = mixed(tmp_path, A | B, a=1.0, b=1.0)
    _, position = taken(before, 8)
    weighed = mixed(tmp_path, A | B, a=3.0, b=1.0)
    added = mixed(tmp_path, A | B | C, a=1.0, b=1.0, c=2.0)
    gone = mixed(tmp_path, A, a=1.0)
    grown = mixed(tmp_path, A | {"b": (25, 100)}, a=1.0, b=1.0)
    weights = "weights: those of now hold for the rows that follow"
    for cfg, said in (
        (weighed, [weights]),
        (added, ["c: begins here, at its start", weights]),
        (gone, ["b: ends here, its share goes to the others", weights]),
        (grown, [f"b: 5 documents more, taken for appended, come from epoch {2} on"]),
    ):
        carried, notes = kept(cfg, position)
        assert [note[:-4] for note in notes] == [note[:-4] for note in said]
        for stream in "01":
            old, new = position["streams"][stream], carried["streams"][stream]
            assert new["row"] == old["row"]
            shared = old["parts"].keys() & new["parts"].keys() & ({"a"} if cfg is grown else {"a", "b"})
            assert {name: new["parts"][name] for name in shared} == {name: old["parts"][name] for name in shared}
        batches, _ = taken(cfg, 40, carried)
        letters = texts_of(stream_of(batches))
        found = {name: sum(letters[t[0]] for t in documents(25, s)) for name, s in (("a", 0), ("b", 100), ("c", 200))}
        assert {name for name, count in found.items() if count} == {*cfg.dataset.get_in("weights")}


def test_what_means_nothing_is_one_clear_error(tmp_path, hugging_face_file):
    text, mix = reading(written(tmp_path, "a", documents(9)), streams=2), mixed(tmp_path, A | B, a=1.0, b=1.0)
    other = HuggingFaceTokenizer.Config(file=hugging_face_file, eos_token="</s>")
    for before, after in ((text, mix), (mix, text), (text, Pairs.Config(batch_size=4))):
        with pytest.raises(ChangedDataError) as e:
            kept(after, taken(before, 1)[1])
        assert str(e.value).endswith(
            " cannot go on from a position in other data.\n"
            "  Start it anew, or with what it has for the step: --data-change restart or skip-to-step."
        )
    _, notes = kept(text.set(tokenizer=other), taken(text, 3)[1])
    assert notes[0] == "another tokenizer: a token is not what it was"


def test_numbered_rows_go_on_with_the_next_batch():
    iterator = Pairs.Config(batch_size=4).build().iterator()
    next(iterator)
    next(iterator)
    position, notes = Pairs.Config(batch_size=4, seed=1).build().carry(iterator.get_state())
    assert notes == ["it goes on with batch 3 of the input as it is now"]
    wanted = list(islice(Pairs.Config(batch_size=4, seed=1).build(), 3))[-1]
    again = iter(Pairs.Config(batch_size=4, seed=1).build())
    again.set_state(position)
    found = next(again)
    assert all((found[name] == wanted[name]).all() for name in wanted)


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("name, appended", [("c", True), ("ab", False)])
def test_a_file_that_comes_between_the_others_is_not_taken_for_appended(name, appended, held_out, tmp_path):
    for at, each in enumerate("ab"):
        written(tmp_path, f"{each}.jsonl", documents(30, 30 * at))

    def cfg() -> TextInput.Config:
        files = JsonLines.Config(files=[f"{tmp_path}/*.jsonl"])
        return reading(Split.Config(source=files, held_out=0.1) if held_out else files)

    _, position = taken(cfg(), 4)
    written(tmp_path, f"{name}.jsonl", documents(20, 80))
    carried, (note,) = kept(cfg(), position)
    assert ("taken for appended" in note) == appended
    assert ("another order of documents" in note) != appended
    assert len(taken(cfg(), 2, carried)[0]) == 2


def test_files_that_are_split_otherwise_are_the_same_data(tmp_path):
    lines = [json.dumps({"text": text}) + "\n" for text in documents(20)]
    for name, some in {"whole": lines, "1": lines[:9], "2": lines[9:]}.items():
        (tmp_path / name).write_text("".join(some))
    before = reading(JsonLines.Config(files=[str(tmp_path / "whole")]))
    after = before.set_in("dataset.source.files", [str(tmp_path / name) for name in "12"])
    _, position = taken(before, 3)
    assert stream_of(taken(after, 2, position)[0]) == stream_of(taken(before, 2, position)[0])
