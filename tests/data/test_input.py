# SPDX-License-Identifier: Apache-2.0
"""`TextInput`: what a trainer sees of it, evaluation, and settings that do not fit."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from dovetail.config import ConfigError, from_json, override, to_json
from dovetail.data import (
    FIELDS,
    ByteTokenizer,
    ConsecutivePacker,
    HuggingFaceTokenizer,
    Input,
    JsonLines,
    Mixture,
    Preparation,
    PreparedDataset,
    ShippedCorpus,
    TextDataset,
    TextInput,
)
from support.prepared import prepared_corpus

TRAIN = TextInput.Config(batch_size=4, seq_len=32, dataset=TextDataset.Config(source=ShippedCorpus.Config()))


def error_of(call) -> str:
    with pytest.raises(ConfigError) as e:
        call()
    return str(e.value)


def test_batch_has_all_fields_in_their_shapes_and_types():
    made: Input = TRAIN.build()
    batch = next(iter(made))
    assert {name: (values.shape, values.dtype) for name, values in batch.items()} == {
        name: ((4, 32), dtype) for name, dtype in FIELDS.items()
    }


def test_tokens_are_the_text_and_targets_are_the_text_one_further():
    made = TRAIN.set_in("dataset.shuffle", False).build()
    batch = next(iter(made))
    text = "CHAPTER 1. Loomings.\n\nCall me Ishmael. Some years ago--never mind how long precisely--having little"
    assert made.tokenizer.decode(batch["tokens"].reshape(-1)).startswith(text)
    assert made.tokenizer.decode(batch["targets"].reshape(-1)).startswith(text[1:])
    assert (batch["weights"] == 1).all()
    np.testing.assert_array_equal(batch["positions"], np.tile(np.arange(32), (4, 1)))


def test_input_tells_what_its_tokens_are_less_than_and_what_travels_with_a_model(hugging_face_file):
    assert TRAIN.build().bounds() == {"tokens": 259, "targets": 259}
    tokenizer = HuggingFaceTokenizer.Config(file=hugging_face_file, eos_token="</s>")
    made = TRAIN.set(tokenizer=tokenizer).build()
    assert made.bounds() == {"tokens": 300, "targets": 300}
    assert made.files() == made.tokenizer.files()
    gone = TRAIN.set(tokenizer=tokenizer.set(file="gone.json")).build(files=made.files())
    assert gone.files() == made.files()


def test_each_iteration_starts_anew():
    made = TRAIN.build()
    first, second = [next(iter(made))["tokens"] for _ in range(2)]
    np.testing.assert_array_equal(first, second)


def test_seed_decides_the_data():
    first, same, other = (next(iter(TRAIN.set(seed=seed).build()))["tokens"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def evaluation(write, count: int, **fields) -> TextInput.Config:
    records = [{"text": f"{i:03d}"} for i in range(count)]  # A row of four tokens each.
    dataset = TextDataset.Config(source=JsonLines.Config(files=[write("a.jsonl", records)]), epochs=1, shuffle=False)
    return TextInput.Config(batch_size=4, seq_len=4, dataset=dataset, **fields)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_evaluation_is_one_pass_and_the_last_batch_is_filled_with_rows_of_weight_zero(write, prefetch):
    batches = list(evaluation(write, 10, prefetch=prefetch).build())
    assert [batch["tokens"].shape for batch in batches] == [(4, 4)] * 3
    decode = ByteTokenizer.Config().build().decode
    rows = [decode(row) for batch in batches for row in batch["tokens"]]
    assert rows == [f"{i:03d}" for i in range(10)] + ["", ""]
    assert batches[-1]["weights"].tolist() == [[1, 1, 1, 0]] * 2 + [[0, 0, 0, 0]] * 2
    assert batches[-1]["segments"][2:].tolist() == [[0] * 4] * 2
    assert batches[-1]["tokens"][2:].tolist() == batches[-1]["targets"][2:].tolist() == [[258] * 4] * 2


def test_evaluation_without_remainder_has_no_batch_of_nothing(write):
    assert len(list(evaluation(write, 8).build())) == 2


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_all_processes_end_at_the_same_step(write, processes):
    made = evaluation(write, 9).build()
    shards = [list(made.iterator(shard_index=i, shard_count=processes)) for i in range(processes)]
    assert [len(shard) for shard in shards] == [3] * processes
    total = sum(batch["weights"].sum() for shard in shards for batch in shard)
    assert total == 9 * 3


def test_evaluation_goes_on_from_a_position_up_to_its_end(write):
    made = evaluation(write, 10).build()
    iterator = iter(made)
    states = [iterator.get_state() for _ in iter(lambda: next(iterator, None), None)]
    assert len(states) == 3
    for number, state in enumerate(states, 1):
        again = iter(made)
        again.set_state(state)
        assert len(list(again)) == 3 - number


def test_epochs_end_after_that_many_passes(write):
    config = evaluation(write, 6).set_in("dataset.epochs", 3)
    assert sum(batch["weights"].sum() for batch in config.build()) == 3 * 6 * 3


def test_config_survives_json_and_takes_overrides():
    assert from_json(to_json(TRAIN)) == TRAIN
    changed = override(TRAIN, ["seq_len=64", "dataset.source.split=held-out", "num_workers=2", "streams=2"])
    assert (changed.seq_len, changed.get_in("dataset.source.split")) == (64, "held-out")


def test_missing_fields_are_reported_together():
    assert error_of(TextInput.Config(batch_size=4, dataset=TextDataset.Config()).build) == (
        "TextInput.Config: 2 required fields are not set:\n"
        "  seq_len: int\n"
        "  dataset.source: Source.Config\n"
        "  Set them, as in cfg.set_in('seq_len', ...)."
    )


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"batch_size": 0}, "batch_size: is 0. Use 1 or more."),
        ({"seq_len": 0}, "seq_len: is 0. Use 1 or more."),
        ({"streams": 0}, "streams: is 0. Use 1 or more."),
        ({"num_workers": -1}, "num_workers: is -1. Use 0 or more."),
        ({"prefetch": -1}, "prefetch: is -1. Use 0 or more."),
        ({"streams": 3}, "streams: streams (3) must divide batch_size (4)."),
    ],
)
def test_impossible_numbers_are_config_errors(fields, message):
    assert error_of(TRAIN.set(**fields).build) == f"TextInput.Config.{message}"


def test_prepared_data_has_as_many_streams_as_are_of_use_and_text_has_one(write):
    prepared = PreparedDataset.Config(path=prepared_corpus())
    mixed = Mixture.Config(parts={"a": TRAIN.dataset, "b": prepared}, weights={"a": 1, "b": 1})
    for dataset in (prepared, mixed):
        found = [TRAIN.set(batch_size=n, dataset=dataset).build()._num_streams for n in (1, 6, 48, 256)]
        assert found == [1, 2, 16, 64]
    assert TRAIN.set(dataset=prepared.set(epochs=1)).build()._num_streams == 1
    assert TRAIN.set(dataset=prepared, streams=1).build()._num_streams == 1
    assert TRAIN.set(batch_size=256).build()._num_streams == 1
    assert evaluation(write, 8).build()._num_streams == 1


def test_the_tokenizer_of_prepared_data_need_not_be_named_and_is_recorded(tmp_path, hugging_face_file):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(Path(hugging_face_file).read_bytes())
    text = tmp_path / "a.txt"
    text.write_text("call me ishmael " * 20)
    tokenizer = HuggingFaceTokenizer.Config(file=str(file), eos_token="</s>")
    to = str(tmp_path / "out")
    Preparation.Config(sources=[str(text)], tokenizer=tokenizer, to=to, workers=0).build().run()
    file.unlink()  # It lies with the data.
    cfg = TRAIN.set(dataset=PreparedDataset.Config(path=to), tokenizer=None)
    mixed = cfg.set(dataset=Mixture.Config(parts={"a": cfg.dataset}, weights={"a": 1}))
    for each in (cfg, mixed, cfg.completed("input")):
        assert each.build().tokenizer.decode(next(iter(each.build()))["tokens"][0]).startswith("call me")
    assert cfg.completed("input").tokenizer == mixed.completed("input").tokenizer == tokenizer
    unnamed = TRAIN.set(dataset=PreparedDataset.Config(), tokenizer=None)
    assert unnamed.completed("input") == unnamed
    assert error_of(TRAIN.set(tokenizer=None).build).startswith("tokenizer: is None, for the one that the data was")


def test_streams_of_a_data_set_that_ends_are_a_config_error():
    assert error_of(TRAIN.set(streams=2).set_in("dataset.epochs", 1).build) == (
        "TextInput.Config.streams: is 2, and the data set ends.\n"
        "  Streams end at different times, and no process knows when the others do. Use streams=1, or no end."
    )


def test_workers_without_work_are_a_config_error():
    made = TRAIN.set(num_workers=2, streams=2).build(path="input")
    assert error_of(lambda: made.iterator(shard_index=0, shard_count=2)) == (
        "input.num_workers: num_workers (2) is more than the streams of this process (1), so some would have nothing "
        "to do.\n  Use fewer, or streams=4 (that changes the order of the data)."
    )


@pytest.mark.parametrize("index, count", [(-1, 2), (2, 2), (0, 0)])
def test_shard_that_does_not_exist_is_a_config_error(index, count):
    made = TRAIN.build(path="input")
    message = f"input: there is no shard {index} of {count}."
    assert error_of(lambda: made.iterator(shard_index=index, shard_count=count)) == message


def test_processes_that_do_not_divide_the_batch_are_a_config_error():
    made = TRAIN.build(path="input")
    assert error_of(lambda: made.iterator(shard_index=0, shard_count=3)) == (
        "input.batch_size: the number of processes (3) must divide batch_size (4)."
    )


def test_errors_of_parts_have_their_path_in_the_tree():
    config = TRAIN.set_in("dataset.source", JsonLines.Config(files=["no/such"]))
    assert error_of(lambda: config.build(path="input")) == (
        "input.dataset.source.files: no file matches 'no/such'. There is no directory 'no'."
    )


def test_two_iterators_do_not_disturb_each_other():
    made = TRAIN.build()
    together = [(a["tokens"], b["tokens"]) for a, b in islice(zip(made, made, strict=True), 5)]
    alone = [batch["tokens"] for batch in islice(made, 5)]
    for (first, second), want in zip(together, alone, strict=True):
        np.testing.assert_array_equal(first, want)
        np.testing.assert_array_equal(second, want)


def consecutive(write, texts, *, batch_size=2, seq_len=5, **fields) -> TextInput.Config:
    source = JsonLines.Config(files=[write("long.jsonl", [{"text": text} for text in texts])])
    data = TextDataset.Config(source=source, packer=ConsecutivePacker.Config(), shuffle=False)
    return TextInput.Config(
        batch_size=batch_size, seq_len=seq_len, dataset=data, streams=batch_size, prefetch=0, **fields
    )


def test_consecutive_rows_go_on_in_the_row_of_the_same_number_and_positions_with_them(write):
    texts = ["abcdefghijk", "ABCDEFGHIJKLMNOP", "lmn", "QR"]
    batches = list(islice(consecutive(write, texts).build(), 4))
    for row, documents in enumerate((["abcdefghijk", "lmn"], ["ABCDEFGHIJKLMNOP", "QR"])):
        tokens = [token for text in documents for token in [*text.encode(), 257]]
        positions = [at for text in documents for at in range(len(text) + 1)]
        found = {name: np.concatenate([batch[name][row] for batch in batches]).tolist() for name in batches[0]}
        assert found["tokens"][: len(tokens)] == tokens
        assert found["positions"][: len(positions)] == positions
        starts = [token for token, at in zip(found["tokens"], found["positions"], strict=True) if at == 0]
        assert starts[:2] == [ord(text[0]) for text in documents]


def test_consecutive_rows_need_a_stream_each(write):
    cfg = consecutive(write, ["abc", "def"], batch_size=4)
    for streams in (1, 2):
        with pytest.raises(ConfigError) as e:
            cfg.set(streams=streams).build(path="input")
        assert str(e.value) == (
            f"input.streams: is {streams}, and each row of a batch goes on in the next one, so that it must be a "
            "stream of its own.\n  Use streams=4, the batch_size, or another packer."
        )
    iterator = iter(cfg.set(streams=None).build())
    next(iterator)
    assert len(iterator.get_state()["streams"]) == 4
    mixture = Mixture.Config(parts={"a": cfg.dataset}, weights={"a": 1.0})
    with pytest.raises(ConfigError, match=r"input\.dataset\.parts\.a: each row goes on where the one before ended"):
        cfg.set(dataset=mixture).build(path="input")
