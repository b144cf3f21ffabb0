# SPDX-License-Identifier: Apache-2.0
"""`PreparedDataset`: the documents of prepared data, dealt in blocks to streams; what a process reads, and checks."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data import (
    BestFitPacker,
    ByteTokenizer,
    ChangedDataError,
    ConcatPacker,
    DataError,
    Dataset,
    Mixture,
    Preparation,
    PreparedData,
    PreparedDataset,
    TextInput,
    merge_states,
)
from dovetail.data import _places as places

BYTES = ByteTokenizer.Config()


def prepare(directory: Path, texts, **fields) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    cfg = Preparation.Config(
        sources=[str(directory / "a.jsonl")], tokenizer=BYTES, to=str(directory / "out"), workers=0
    )
    cfg.set(**fields).build().run()
    return str(directory / "out")


TEXTS = [f"{i:03d}" for i in range(200)]  # With eos, four tokens: a row.


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    """800 tokens in 4 shards, of blocks of 5 documents."""
    return prepare(tmp_path_factory.mktemp("prepared"), TEXTS, shard_bytes=800, block_tokens=20)


def dataset(path, *, seq_len=4, seed=0, **fields) -> PreparedDataset:
    return PreparedDataset.Config(path=path, seq_len=seq_len, seed=seed, blocks=3, **fields).build(
        tokenizer=BYTES.build(), path="dataset"
    )


def names(rows) -> list[str]:
    decode = BYTES.build().decode
    return [decode(row["tokens"]) for row, _ in rows]


def test_without_shuffle_documents_come_in_order_epoch_after_epoch(path):
    assert len(PreparedData(path).shards) == 4
    assert names(dataset(path, shuffle=False, epochs=2).rows(0, 1, None)) == TEXTS * 2


def test_each_epoch_is_shuffled_anew_and_has_each_document_once(path):
    got = names(dataset(path, epochs=3).rows(0, 1, None))
    epochs = [got[i : i + 200] for i in (0, 200, 400)]
    assert all(sorted(epoch) == TEXTS for epoch in epochs)
    assert len(set(map(tuple, [TEXTS, *epochs]))) == 4
    assert len({name[:2] for name in epochs[0][:15]}) > 2  # Of blocks that lie apart.


@pytest.mark.parametrize("num_streams", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("packer", [ConcatPacker.Config(), BestFitPacker.Config(window=5)])
def test_streams_share_the_documents_of_each_epoch(path, num_streams, packer):
    data = dataset(path, epochs=2, packer=packer)
    got = [name for stream in range(num_streams) for name in names(data.rows(stream, num_streams, None))]
    assert Counter(got) == dict.fromkeys(TEXTS, 2)


@settings(max_examples=20)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=30),
    seq_len=st.integers(1, 50),
    block_tokens=st.integers(1, 60),
    num_streams=st.integers(1, 3),
    packer=st.sampled_from([ConcatPacker.Config(), BestFitPacker.Config(window=3)]),
)
def test_rows_go_on_from_any_position(tmp_path_factory, lengths, seq_len, block_tokens, num_streams, packer):
    path = prepare(tmp_path_factory.mktemp("prepared"), ["x" * n for n in lengths], block_tokens=block_tokens)
    data = dataset(path, seq_len=seq_len, epochs=2, packer=packer)
    for stream in range(num_streams):
        rows = list(data.rows(stream, num_streams, None))
        for number in {0, len(rows) // 3, len(rows) - 1} & set(range(len(rows))):
            state = json.loads(json.dumps(rows[number][1]))
            assert len(json.dumps(state)) < 80
            again = list(data.rows(stream, num_streams, state))
            assert [s for _, s in again] == [s for _, s in rows[number + 1 :]]
            for (one, _), (other, _) in zip(again, rows[number + 1 :], strict=True):
                assert all(np.array_equal(one[name], other[name]) for name in one)


class Counted:
    """Counts the bytes that are read from files."""

    def __init__(self, monkeypatch) -> None:
        self.bytes = 0
        real = places._Directory.read_ranges

        def read_ranges(place, ranges):
            found = real(place, ranges)
            self.bytes += sum(map(len, found))
            return found

        monkeypatch.setattr(places._Directory, "read_ranges", read_ranges)

    def of(self, do) -> int:
        before = self.bytes
        do()
        return self.bytes - before


def big(tmp_path, epochs=1) -> TextInput.Config:
    texts = ["some words in a document of usual length " * (1 + i % 30) for i in range(2000)]
    path = prepare(tmp_path, texts, shard_bytes=100_000, block_tokens=4096)
    data = PreparedDataset.Config(path=path, blocks=4)
    return TextInput.Config(batch_size=64, seq_len=64, streams=16, dataset=data, prefetch=0)


def test_eight_processes_together_read_the_data_once(tmp_path, monkeypatch):
    cfg = big(tmp_path)
    size = sum(file.stat().st_size for file in Path(cfg.get_in("dataset.path")).rglob("*.tokens"))
    windows = -(-len(PreparedData(cfg.get_in("dataset.path"))) // 4)
    counted = Counted(monkeypatch)

    def epoch(process):
        made = cfg.build()
        for stream in (2 * process, 2 * process + 1):
            for number in range(stream, windows, 16):
                assert made._dataset.window(number) is not None

    each = [counted.of(lambda process=process: epoch(process)) for process in range(8)]
    assert size < sum(each) < 1.1 * size
    assert max(each) < 1.5 * size / 8


def test_a_process_reads_no_more_than_the_windows_of_its_streams(tmp_path, monkeypatch):
    made = big(tmp_path).build()
    counted = Counted(monkeypatch)
    iterator = made.iterator(shard_index=3, shard_count=8)
    assert counted.bytes == 0
    read = counted.of(lambda: next(iterator))
    assert read < 2 * 4 * 4096 * 2 * 1.5  # Two streams, a window each, of 4 blocks with 2 bytes for each token.


@pytest.mark.parametrize("epochs", [None, 2])
def test_reading_ahead_in_a_store_that_is_far_changes_nothing(path, monkeypatch, epochs):
    wanted = [(names([row]), row[1]) for row in islice(dataset(path, epochs=epochs).rows(1, 2, None), 300)]
    monkeypatch.setattr(places._Directory, "is_far", True)
    data = dataset(path, epochs=epochs)
    assert [(names([row]), row[1]) for row in islice(data.rows(1, 2, None), 300)] == wanted
    again = islice(data.rows(1, 2, wanted[70][1]), len(wanted) - 71)
    assert [(names([row]), row[1]) for row in again] == wanted[71:]


def test_tables_of_blocks_are_read_once_and_only_some_are_kept(path, monkeypatch):
    counted = Counted(monkeypatch)
    data = PreparedData(path)
    first = counted.of(lambda: data.read([0, 1]))
    assert counted.of(lambda: data.read([0, 1])) == first - 28 * int(data.shards[0]["blocks"])
    monkeypatch.setattr("dovetail.data._blocks._TABLES", 2)
    data.read(range(len(data)))
    assert list(data._tables) == [2, 3]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_global_batches_are_the_same_for_any_number_of_processes_and_workers_and_go_on(tmp_path, workers):
    cfg = big(tmp_path)
    data = {"a": cfg.dataset, "b": cfg.dataset.set(blocks=2)}
    cfg = cfg.set(dataset=Mixture.Config(parts=data, weights={"a": 1, "b": 2}))
    alone = cfg.build()
    wanted = list(islice(alone, 12))
    for count in (2,) if workers else (2, 8):
        made = cfg.set(num_workers=workers).build()
        parts = [made.iterator(shard_index=i, shard_count=count) for i in range(count)]
        first = [list(islice(part, 6)) for part in parts]
        for step, batches in enumerate(zip(*first, strict=True)):
            for name in wanted[step]:
                np.testing.assert_array_equal(np.concatenate([b[name] for b in batches]), wanted[step][name])
        again = alone.iterator()
        again.set_state(merge_states(part.get_state() for part in parts))
        np.testing.assert_array_equal(next(again)["tokens"], wanted[6]["tokens"])
        for part in parts:
            part.close()


def test_what_is_held_out_is_not_trained_on(path):
    parts = [names(dataset(path, part=part, epochs=1).rows(0, 1, None)) for part in ("train", "held-out")]
    assert sorted(parts[0] + parts[1]) == TEXTS
    assert 0 < len(parts[1]) <= 20


def test_data_of_one_block_has_nothing_to_hold_out(tmp_path):
    path = prepare(tmp_path, ["a"])
    with pytest.raises(ConfigError, match=r"dataset\.part: the data has 1 block, too few to hold one out"):
        dataset(path, part="train")


def test_another_tokenizer_than_that_of_the_data_is_refused(path, hugging_face_file):
    from dovetail.data import HuggingFaceTokenizer

    other = HuggingFaceTokenizer.Config(file=hugging_face_file)
    cfg = TextInput.Config(batch_size=1, seq_len=4, tokenizer=other, dataset=PreparedDataset.Config(path=path))
    with pytest.raises(ConfigError) as e:
        cfg.build(path="input")
    found, there = other.build().fingerprint(), BYTES.build().fingerprint()
    assert str(e.value) == (
        f"input.dataset.path: {path} was prepared with another tokenizer: ByteTokenizer of 259 tokens ({there}), not "
        f"HuggingFaceTokenizer of 300 ({found}).\n"
        f"  Use that one, as `dovetail train RECIPE --data {path}` does, or prepare the data anew."
    )


@pytest.mark.parametrize("ending", ["tokens", "index"])
def test_damage_is_named_when_it_is_read_and_not_before(tmp_path, ending):
    path = prepare(tmp_path, TEXTS, shard_bytes=800, block_tokens=20)
    file = Path(path) / f"shards/0000/0000001-0.{ending}"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    data = dataset(path, shuffle=False)
    assert names(islice(data.rows(0, 1, None), 40)) == TEXTS[:40]
    with pytest.raises(DataError, match=rf"0000001-0\.{ending}, bytes \d+ to \d+: is damaged: its checksum is"):
        list(islice(data.rows(0, 1, None), 200))
    problems = dict(PreparedData(path).problems())
    assert [shard for shard, found in problems.items() if found] == [1]
    assert f"0000001-0.{ending}" in problems[1][0]


def test_files_that_are_cut_short_or_gone_are_named(tmp_path):
    path = prepare(tmp_path, TEXTS, shard_bytes=800, block_tokens=20)
    home = Path(path) / "shards/0000"
    (home / "0000000-0.tokens").write_bytes((home / "0000000-0.tokens").read_bytes()[:-2])
    (home / "0000001-0.tokens").unlink()
    (home / "0000002-0.origin").write_bytes(b"")
    (home / "0000003-0.index").write_bytes(b"nonsense" * 100)
    found = dict(PreparedData(path).problems())
    assert "has 38 of the 40 bytes from" in found[0][0]
    assert "cannot be read: No such file" in found[1][0]
    assert "0000002-0.origin: is damaged" in found[2][0]
    assert "0000003-0.index: is damaged" in found[3][0]
    for name in ("shards.table", "manifest.json"):
        (Path(path) / name).write_bytes(b"{}")
        with pytest.raises((DataError, ConfigError), match=name.replace(".", r"\.")):
            PreparedData(path)


def test_data_moved_to_another_place_is_the_same_data(path, tmp_path):
    (tmp_path / "link").symlink_to(path)
    assert dataset(path).fingerprint() == dataset(str(tmp_path / "link")).fingerprint()
    assert dataset(path).fingerprint() != dataset(path, seed=1).fingerprint()
    assert dataset(path).fingerprint() != dataset(prepare(tmp_path, TEXTS[1:])).fingerprint()


def test_it_is_a_dataset_of_two_million_blocks_on_paper(path, monkeypatch):
    made: Dataset = dataset(path)
    monkeypatch.setattr(made, "_count", 1 << 21)
    asked = []
    monkeypatch.setattr(made._data, "read", lambda blocks: asked.append(list(blocks)) or PreparedData(path).read([0]))
    made.window(10**9)
    assert len(set(asked[0])) == 3
    assert max(asked[0]) < 1 << 21


@pytest.mark.parametrize("fields", [{"epochs": 0}, {"blocks": 0}, {"held_out": 1.0}])
def test_impossible_numbers_are_config_errors(path, fields):
    with pytest.raises(ConfigError, match=f"dataset.{next(iter(fields))}: is"):
        PreparedDataset.Config(path=path, seq_len=4, seed=0).set(**fields).build(
            tokenizer=BYTES.build(), path="dataset"
        )


def input_of(path, seq_len=8, batch_size=4, **fields) -> TextInput.Config:
    data = PreparedDataset.Config(path=path, blocks=3, **fields)
    return TextInput.Config(
        batch_size=batch_size, seq_len=seq_len, tokenizer=BYTES, dataset=data, streams=2, prefetch=0
    )


def test_a_run_goes_on_with_rows_of_another_length_at_the_next_token(path):
    before = iter(input_of(path).build())
    given = [next(before) for _ in range(5)]
    longer = input_of(path, seq_len=16).build()
    position, notes = longer.carry(before.get_state())
    assert notes == ["rows are made in another way, of what comes after the last token that was given"]
    after = iter(longer)
    after.set_state(position)
    rest = [next(after) for _ in range(3)]
    alone = iter(input_of(path, seq_len=4).build())
    wanted = [next(alone)["tokens"] for _ in range(22)]
    for mine in (slice(0, 2), slice(2, 4)):  # The rows of a stream.
        found = np.concatenate([batch["tokens"][mine].ravel() for batch in [*given, *rest]])
        assert found.tolist() == np.concatenate([batch[mine].ravel() for batch in wanted]).tolist()


def test_other_prepared_data_is_no_place_to_go_on_from_a_position(path, tmp_path):
    before = iter(input_of(path).build())
    next(before)
    other = input_of(prepare(tmp_path, TEXTS[:100], block_tokens=20)).build()
    with pytest.raises(DataError, match="PreparedDataset cannot go on from a position in other data"):
        other.carry(before.get_state())


def test_the_epochs_that_were_given_are_told(path):
    batches = input_of(path)
    built = batches.build()
    rows = iter(built)
    for _ in range(25):  # 800 tokens.
        next(rows)
    assert built.figures(rows.get_state())["epochs"] == pytest.approx(1.0, abs=0.2)


# Data of several places.


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> list[str]:
    """Data of 100 documents in 20 blocks, of 35 in 7, of 10 in 2."""
    home = tmp_path_factory.mktemp("places")
    texts = {"first": TEXTS[:100], "more": TEXTS[100:135], "last": TEXTS[135:145]}
    return [prepare(home / name, each, block_tokens=20) for name, each in texts.items()]


def test_blocks_of_several_places_are_one_sequence(several):
    assert names(dataset(several, shuffle=False, epochs=1).rows(0, 1, None)) == TEXTS[:145]
    assert sorted(names(dataset(several, epochs=1).rows(0, 1, None))) == TEXTS[:145]
    parts = [names(dataset(several, part=part, epochs=1).rows(0, 1, None)) for part in ("train", "held-out")]
    assert sorted(parts[0] + parts[1]) == TEXTS[:145]
    assert set(parts[1]) == {*TEXTS[95:100], *TEXTS[130:135], *TEXTS[140:145]}
    assert dataset(several[:1]).fingerprint() == dataset(several[0]).fingerprint()


@settings(max_examples=20, deadline=None)
@given(
    steps=st.integers(1, 60),
    streams=st.sampled_from([1, 2, 4]),
    packer=st.sampled_from([ConcatPacker.Config(), BestFitPacker.Config(window=2)]),
    part=st.sampled_from(["all", "train"]),
    shuffle=st.booleans(),
)
def test_data_that_is_added_comes_from_a_later_epoch_on_and_nothing_else_changes(
    several, steps, streams, packer, part, shuffle
):
    fields = {"part": part, "packer": packer, "shuffle": shuffle}
    before, after = (input_of(each, seq_len=4, **fields).set(streams=streams) for each in (several[0], several[:2]))
    old = iter(before.build())
    for _ in range(steps):
        next(old)
    with pytest.raises(ChangedDataError):
        iter(after.build()).set_state(old.get_state())
    position, (note,) = after.build().carry(old.get_state())
    start = int(note.rpartition("epoch ")[2].split()[0])
    then, now = before.build()._dataset, after.build()._dataset
    # Up to that epoch, what comes is what would have come.
    for stream in range(streams):
        same = then.rows(stream, streams, old.get_state()["streams"][str(stream)])
        for row, at in now.rows(stream, streams, position["streams"][str(stream)]):
            ahead = "row" in at  # What is packed together may be of two windows.
            if now._epochs(at)(stream + (at["document"][0] + ahead) * streams)[0] + 1 >= start:
                break
            assert np.array_equal(row["tokens"], next(same)[0]["tokens"])
    # All windows of an epoch have its blocks once: those of then, or all.
    epochs, given_in = now._epochs(position["streams"]["0"]), dict[int, list[int]]()
    for place in range(10 * (start + 1)):
        epoch, _, count = epochs(place)
        assert count == (then._count if epoch + 1 < start else now._count)
        given_in.setdefault(epoch, []).extend(now.window(place, epochs)[0].tolist())
    for epoch in range(start):
        whole = names(dataset(several[: 1 + (epoch + 1 >= start)], part=part, epochs=1).rows(0, 1, None))
        assert Counter(given_in[epoch]) == Counter(token for text in whole for token in [*text.encode(), 257])


def test_a_run_whose_data_has_grown_goes_on_and_may_grow_again(several):
    def reading(count):
        return input_of(several[:count], seq_len=4).build()

    batches = iter(reading(1))
    for _ in range(7):
        next(batches)
    position, _ = reading(2).carry(batches.get_state())
    grown = iter(reading(2))
    grown.set_state(position)
    given = [next(grown) for _ in range(60)]
    again = iter(reading(2))
    again.set_state(position)
    for _ in range(20):
        next(again)
    resumed = iter(reading(2))
    resumed.set_state(again.get_state())
    np.testing.assert_array_equal(next(resumed)["tokens"], given[20]["tokens"])
    epochs = reading(2).figures(grown.get_state())["epochs"]
    assert epochs == pytest.approx(1 + (67 * 4 - 100) / 135, abs=0.3)
    last, (note,) = reading(3).carry(grown.get_state())
    first, second = last["streams"]["0"]["epochs_of"]
    assert first == position["streams"]["0"]["epochs_of"][0] == [1, 20]
    assert second[1] == 27
    assert note == f"2 blocks more, of data that was added, come from epoch {1 + first[0] + second[0]} on"
    final = iter(reading(3))
    final.set_state(last)
    np.testing.assert_array_equal(next(final)["tokens"], next(grown)["tokens"])


def test_only_data_that_is_added_at_the_end_keeps_a_position(several):
    batches = iter(input_of(several[:2]).build())
    next(batches)
    for others in ([several[1], several[0]], [several[0]], [several[0], several[2], several[1]]):
        with pytest.raises(DataError, match="PreparedDataset cannot go on from a position in other data"):
            input_of(others).build().carry(batches.get_state())


def test_places_that_do_not_belong_together_are_refused(several, tmp_path, hugging_face_file):
    from dovetail.data import HuggingFaceTokenizer

    (tmp_path / "a.txt").write_text("call me")
    other = HuggingFaceTokenizer.Config(file=hugging_face_file, eos_token="</s>")
    made = Preparation.Config(sources=[str(tmp_path / "a.txt")], tokenizer=other, to=str(tmp_path / "b"), workers=0)
    made.build().run()
    with pytest.raises(ConfigError, match=r"dataset\.path: .*b was prepared with another tokenizer: HuggingFaceTok"):
        dataset([several[0], str(tmp_path / "b")])
    with pytest.raises(ConfigError, match=r"dataset\.path: '.*' and '.*' are the same data. Name it once"):
        dataset([several[0], several[0]])
    with pytest.raises(ConfigError, match=r"dataset\.path: names no place"):
        dataset([])


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 90),
    seq_len=st.sampled_from([1, 3, 4, 7, 16]),
    num_streams=st.sampled_from([1, 2, 5]),
    places=st.integers(1, 3),
    part=st.sampled_from(["all", "train"]),
    shuffle=st.booleans(),
)
def test_the_position_after_some_rows_is_known_without_reading_up_to_there(
    several, rows, seq_len, num_streams, places, part, shuffle
):
    data = dataset(several[:places], seq_len=seq_len, part=part, shuffle=shuffle)
    wanted = [list(islice(data.rows(stream, num_streams, None), rows))[-1][1] for stream in range(num_streams)]
    assert data.seek(rows, num_streams) == wanted


def test_a_place_is_found_by_reading_one_window_of_a_stream(tmp_path, monkeypatch):
    made = big(tmp_path).build()
    counted = Counted(monkeypatch)
    assert counted.of(lambda: made.seek(1)) < 16 * 4 * 4096 * 2 * 1.5
    assert counted.of(lambda: made.seek(40)) < 16 * 4 * 4096 * 2 * 1.5  # Text of 40 steps would be much more.
    read = iter(made)
    for _ in range(40):
        next(read)
    assert made.seek(40) == read.get_state()


def test_where_rows_have_padding_or_end_only_reading_tells(several):
    assert dataset(several, packer=BestFitPacker.Config(window=2)).seek(3, 1) is None
    assert dataset(several[2:], epochs=1).seek(100, 1) is None
