# SPDX-License-Identifier: Apache-2.0
"""`GroupPacker`: groups in rows of their own, whole or not at all, from records and from prepared data."""

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data import (
    FIELDS,
    ByteTokenizer,
    DataError,
    Dataset,
    GroupPacker,
    JsonLines,
    Mixture,
    Preparation,
    PreparedDataset,
    TextDataset,
    TextInput,
    Tokens,
)
from dovetail.data._run import NumberedReader

PAD, BYTES = 258, ByteTokenizer.Config()
sequences = st.lists(st.integers(0, 98), min_size=1, max_size=9)
groups_of_two = st.lists(st.tuples(sequences, sequences, st.integers(0, 6)), max_size=10)


def line_reference(ids, weights, length) -> dict:
    """A line of a row, one place at a time."""
    line = {name: [] for name in FIELDS}
    for at in range(length):
        is_real, has_target = at < len(ids), at + 1 < len(ids)
        line["tokens"].append(ids[at] if is_real else PAD)
        line["targets"].append(ids[at + 1] if has_target else PAD)
        line["weights"].append(weights[at + 1] if has_target else 0.0)
        line["segments"].append(int(is_real))
        line["positions"].append(at if is_real else 0)
    return line


def weights_of(ids, prompt) -> list[float]:
    return [0.0 if i < prompt else 1.0 for i in range(len(ids))]


def packed(groups, length, too_long, state=None):
    packer = GroupPacker.Config(size=2, seq_len=length, pad_id=PAD, too_long=too_long).build(path="packer")

    def read(number):
        if number == len(groups):
            return None
        a, b, prompt = groups[number]
        return [Tokens(np.array(ids), np.array(weights_of(ids, prompt), np.float32)) for ids in (a, b)]

    return list(packer.rows(NumberedReader(read, lambda number: f"group {number}"), state))


@given(groups_of_two, st.integers(1, 10), st.sampled_from(["truncate", "leave-out"]))
def test_rows_match_the_reference_and_go_on_from_any_position(groups, length, too_long):
    groups = [([1], [2, 3], 0), *groups] if length > 1 else [([1], [2], 0), *groups]
    wanted, counts = [], []
    left_out = truncated = masked = 0
    for number, (a, b, prompt) in enumerate(groups, 1):
        is_long = len(a) > length or len(b) > length
        # A sequence that is cut short predicts one token more than it has.
        cut = [any(weights_of(ids, prompt)[1 : length + 1]) for ids in (a, b) if len(ids) > length]
        if is_long and too_long == "leave-out":
            left_out += 1
            continue
        if is_long and not all(cut):
            masked += 1
            continue
        truncated += is_long
        wanted.append([line_reference(ids, weights_of(ids, prompt), length) for ids in (a, b)])
        counts.append((number, truncated, left_out, masked))
    rows = packed(groups, length, too_long)
    for (row, state), lines, found in zip(rows, wanted, counts, strict=True):
        assert {name: values.dtype for name, values in row.items()} == FIELDS
        for i, line in enumerate(lines):
            assert {name: values[i].tolist() for name, values in row.items()} == line
        assert tuple(state.get(name, 0) for name in ("ended", "truncated", "left_out", "masked")) == found
    for number, (_, state) in enumerate(rows, 1):
        again = packed(groups, length, too_long, json.loads(json.dumps(state)))
        assert [each for _, each in again] == [each for _, each in rows[number:]]
        assert [row["tokens"].tolist() for row, _ in again] == [row["tokens"].tolist() for row, _ in rows[number:]]


def test_a_sequence_that_is_too_long_can_be_an_error():
    with pytest.raises(DataError, match=r"^group 1: has 5 tokens, more than a row \(seq_len=4\)"):
        packed([([1], [2], 0), ([1], [2] * 5, 0)], 4, "error")


def test_to_leave_out_all_groups_is_an_error():
    with pytest.raises(DataError, match=r"packer: all of the documents are left out: 2 are longer than a row"):
        packed([([1], [2] * 5, 0)] * 2, 4, "leave-out")


RECORDS = [{"q": f"q{i:02d} " * (i % 3), "good": f"yes{i:02d}", "bad": f"no{i:02d} " * (i % 4)} for i in range(40)]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("groups") / "pairs.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return str(file)


@pytest.fixture(scope="module", params=["text", "prepared"])
def data(request, source, tmp_path_factory):
    """A data set of pairs, from records and from prepared data."""
    packer = GroupPacker.Config(size=2)
    if request.param == "text":
        files = JsonLines.Config(files=[source], field=("good", "bad"), prompt="q")
        return TextDataset.Config(source=files, packer=packer)
    to = str(tmp_path_factory.mktemp("prepared") / "out")
    cfg = Preparation.Config(sources=[source], tokenizer=BYTES, to=to, workers=0, block_tokens=60, shard_bytes=800)
    cfg.set(field=("good", "bad"), prompt="q").build().run()
    return PreparedDataset.Config(path=to, packer=packer, blocks=3)


def pairs(rows) -> list[tuple]:
    """What rows hold: the tokens of each line, and those of them that count as targets."""
    decode = BYTES.build().decode
    found = []
    for row in rows:
        lines = zip(row["tokens"], row["targets"], row["weights"], row["segments"], strict=True)
        found.append(tuple((decode(t[s > 0]), bytes(g[w > 0][:-1].tolist()).decode()) for t, g, w, s in lines))
    return found


def answer(record, name) -> tuple[str, str]:
    """What the tokens of an answer say, and those that count as targets: not the first one, where nothing precedes."""
    return record["q"] + record[name], record[name] if record["q"] else record[name][1:]


WANTED = Counter(tuple(answer(record, name) for name in ("good", "bad")) for record in RECORDS)


def test_each_pair_is_there_once_an_epoch_with_its_answers_as_targets(data):
    built = data.set(seq_len=64, seed=0, epochs=2).build(tokenizer=BYTES.build())
    rows = [row for row, _ in built.rows(0, 1, None)]
    found = pairs(rows)
    # An empty text after the prompt is an answer of eos alone; without a prompt either, it is no group.
    empty = [pair for pair in WANTED if not all(text for text, _ in pair)]
    assert Counter(found) == Counter({pair: 2 for pair in WANTED if pair not in empty})
    assert found[: len(found) // 2] != found[len(found) // 2 :]


@settings(max_examples=8)
@given(streams=st.sampled_from([1, 2, 4]), steps=st.integers(1, 12))
def test_batches_are_declared_the_same_for_all_processes_and_go_on(data, streams, steps):
    cfg = TextInput.Config(batch_size=4, seq_len=32, dataset=data, streams=streams, prefetch=0)
    (spec,) = cfg.batch_specs()
    assert {field.shape for field in spec.fields.values()} == {(4, 2, 32)}
    assert {field.axes for field in spec.fields.values()} == {("batch", None, "seq")}
    made = cfg.build()
    iterator = iter(made)
    batches = list(islice(iterator, steps))
    assert all(spec.fits(batch) for batch in batches)
    position, wanted = iterator.get_state(), next(iterator)
    parts = [made.iterator(shard_index=i, shard_count=2) for i in range(2)]
    for part in parts:
        part.set_state(position)
    found = [next(part) for part in parts]
    assert all((np.concatenate([part[name] for part in found]) == wanted[name]).all() for name in wanted)
    figures = made.figures(position)
    assert figures["truncated"] == 0
    assert figures["documents"] >= 4 * steps


def test_the_last_batch_is_filled_up_with_groups_of_padding(data):
    cfg = TextInput.Config(batch_size=32, seq_len=32, dataset=data.set(epochs=1), prefetch=0)
    *_, last = list(cfg.build())
    assert cfg.batch_specs()[0].fits(last)
    assert not last["weights"][-1].any()
    assert (last["tokens"][-1] == PAD).all()


def test_a_packer_that_is_not_made_for_the_data_is_a_config_error(source):
    files = JsonLines.Config(files=[source], field=("good", "bad"))
    for packer, field, message in (
        (None, ("good", "bad"), "the data has groups of 2 sequences, and ConcatPacker packs documents of one."),
        (GroupPacker.Config(size=3), ("good", "bad"), "groups of 2 sequences, and GroupPacker packs groups of 3."),
        (GroupPacker.Config(), "good", "the data has documents of one sequence, and GroupPacker packs groups of 2."),
    ):
        cfg = TextDataset.Config(source=files.set(field=field), seq_len=8, seed=0)
        cfg = cfg if packer is None else cfg.set(packer=packer)
        with pytest.raises(ConfigError) as e:
            cfg.build(tokenizer=BYTES.build(), path="dataset")
        assert message in str(e.value)
    with pytest.raises(ConfigError, match=r"size: is 1\. Use 2 or more"):
        GroupPacker.Config(size=1, seq_len=8, pad_id=0).build()


def test_a_mixture_has_rows_of_one_shape(source):
    files = JsonLines.Config(files=[source], field=("good", "bad"))
    both = TextDataset.Config(source=files, packer=GroupPacker.Config())
    parts: dict[str, Dataset.Config] = {"pairs": both, "again": both}
    mixed = TextInput.Config(
        batch_size=2, seq_len=16, dataset=Mixture.Config(parts=parts, weights={"pairs": 1, "again": 1}), prefetch=0
    )
    assert mixed.batch_specs()[0].fits(next(iter(mixed.build())))
    one = TextDataset.Config(source=files.set(field="good"))
    wrong = mixed.set(dataset=Mixture.Config(parts={"pairs": both, "text": one}, weights={"pairs": 1, "text": 1}))
    with pytest.raises(ConfigError, match=r"rows have several shapes: pairs \[2, 16\], text \[16\]"):
        wrong.batch_specs()
