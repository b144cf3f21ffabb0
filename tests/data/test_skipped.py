# SPDX-License-Identifier: Apache-2.0
"""Bad documents that are left out: the same rows for any number of processes, counted exactly, and only so many."""

import json
import tempfile
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
    ConcatPacker,
    DataError,
    JsonLines,
    Mixture,
    TextDataset,
    TextInput,
    merge_states,
)

BYTES = ByteTokenizer.Config().build()
PACKERS = {"concat": ConcatPacker.Config(), "best fit": BestFitPacker.Config(window=3)}
GOOD = [json.dumps({"text": chr(97 + i % 26) * (1 + 7 * i % 23)}) for i in range(40)]
BAD = {
    "not JSON": b'{"text": "abc',
    "not an object": b"[1]",
    "no field": b'{"body": "abc"}',
    "no text": b'{"text": null}',
    "not UTF-8": b'{"text": "\xff\xfe"}',
    "half a pair": b'{"text": "\\ud800"}',
    "not in the vocabulary": b'{"text": [1, 300]}',
}


def config(file, lines, packer="concat", *, streams=1, prefetch=0, workers=0, **fields) -> TextInput.Config:
    file.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    source = JsonLines.Config(files=[str(file)])
    fields = {"on_bad_document": "skip", "max_bad_share": 1.0, **fields}
    dataset = TextDataset.Config(source=source, packer=PACKERS[packer], **fields)
    return TextInput.Config(
        batch_size=4, seq_len=16, dataset=dataset, streams=streams, prefetch=prefetch, num_workers=workers
    )


def with_bad(*places) -> list:
    kinds = [*BAD.values()]
    return [kinds[i % len(kinds)] if i in places else line for i, line in enumerate(GOOD)]


def tokens(iterator, count):
    return [batch["tokens"].tolist() for batch in islice(iterator, count)]


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("bad", BAD)
def test_whatever_is_wrong_with_a_document_it_is_like_an_empty_one(bad, packer, tmp_path):
    lines = [BAD[bad] if i in (0, 7, 8) else line for i, line in enumerate(GOOD)]
    empty = [json.dumps({"text": ""}) if isinstance(line, bytes) else line for line in lines]
    found = tokens(config(tmp_path / "bad.jsonl", lines, packer).build(), 12)
    assert found == tokens(config(tmp_path / "empty.jsonl", empty, packer).build(), 12)
    with pytest.raises(
        DataError, match=r"bad\.jsonl.*\n?.*\n?  To leave out what is bad: dataset\.on_bad_document=skip$"
    ):
        tokens(config(tmp_path / "bad.jsonl", lines, packer, on_bad_document="error").build(), 12)


@settings(max_examples=40)
@given(
    bad=st.sets(st.integers(1, 39), max_size=12),
    packer=st.sampled_from([*PACKERS]),
    streams=st.sampled_from([1, 2, 4]),
    before=st.sampled_from([1, 2, 4]),
    after=st.sampled_from([1, 2, 4]),
    taken=st.integers(1, 12),
)
def test_rows_and_counts_are_those_of_any_number_of_processes_from_any_position(
    bad, packer, streams, before, after, taken
):
    with tempfile.TemporaryDirectory() as directory:
        made = config(Path(directory, "a.jsonl"), with_bad(*bad), packer, streams=streams).build()
        alone, parts = made.iterator(), [made.iterator(shard_index=i, shard_count=before) for i in range(before)]
        tokens(alone, taken)
        for part in parts:
            tokens(part, taken)
        position = json.loads(json.dumps(merge_states(part.get_state() for part in parts)))
        assert position == alone.get_state()
        again = [made.iterator(shard_index=i, shard_count=after) for i in range(after)]
        for part in again:
            part.set_state(position)
        found = [np.concatenate(rows).tolist() for rows in zip(*(tokens(part, 5) for part in again), strict=True)]
        assert found == tokens(alone, 5)
        position = merge_states(part.get_state() for part in again)
        assert position == alone.get_state()
        figures = made.figures(position)
        assert figures["skipped"] == skipped_by_hand(made, position, streams, bad)


def skipped_by_hand(made, position, streams, bad) -> int:
    """Counts which documents come before a position, one by one."""
    order = made._dataset._order
    numbers = [
        stream + n * streams for stream in range(streams) for n in range(position["streams"][str(stream)]["document"])
    ]
    return sum(order(*divmod(number, len(GOOD))) in bad for number in numbers)


def test_workers_leave_out_the_same(tmp_path):
    made = config(tmp_path / "a.jsonl", with_bad(3, 4, 17), streams=2)
    with made.build().iterator() as alone, made.set(num_workers=2, prefetch=2).build().iterator() as worked:
        assert tokens(worked, 8) == tokens(alone, 8)
        assert worked.get_state() == alone.get_state()


def test_what_was_left_out_is_named_with_place_and_reason(tmp_path):
    made = config(tmp_path / "a.jsonl", with_bad(5, 6, 30), shuffle=False, epochs=1).build()
    iterator = iter(made)
    tokens(iterator, None)
    position = iterator.get_state()
    found = made.skipped(position)
    assert [(each.source, each.document, each.place) for each in found] == [
        ("", i, f"{tmp_path}/a.jsonl:{i + 1}") for i in (5, 6, 30)
    ]
    assert found[0].reason.startswith(f"{tmp_path}/a.jsonl:6: character 0 is half of a surrogate pair")
    assert found[1].reason.startswith(f"{tmp_path}/a.jsonl:7: token 1 of 2 is 300, outside the vocabulary of 259.")
    (tmp_path / "a.jsonl").write_text("\n".join(GOOD))
    assert {each.reason for each in config(tmp_path / "a.jsonl", GOOD).build().skipped(position)} == {
        "now it can be read"
    }


def test_a_position_stays_small_however_much_is_left_out(tmp_path):
    iterator = iter(config(tmp_path / "a.jsonl", with_bad(*range(1, 40, 2))).build())
    tokens(iterator, 50)
    streams = iterator.get_state()["streams"]
    assert streams["0"]["skipped"]["count"] > 100
    assert len(json.dumps(streams)) < 200


@pytest.mark.parametrize("prefetch", [0, 2])
def test_more_than_a_share_is_one_clear_error_and_the_position_before_it_stays(prefetch, tmp_path):
    made = config(tmp_path / "a.jsonl", with_bad(2), prefetch=prefetch, max_bad_share=0.01, shuffle=False)
    with made.build().iterator() as iterator:
        batches = list[object]()
        with pytest.raises(DataError) as e:
            batches.extend(iterator)
        assert str(e.value) == (
            "dataset.source: 11 of 403 documents cannot be used, more than max_bad_share (0.01) allows, of 1,000 or "
            f"more. One of the last:\n  {tmp_path}/a.jsonl:3: the record has no field 'text'. It has: body.\n"
            "  Mend the data, or raise dataset.max_bad_share."
        )
        position = iterator.get_state()
        assert position["step"] == len(batches) > 50
    again = iter(made.set_in("dataset.max_bad_share", 0.5).build())
    again.set_state(position)  # That may change.
    assert len(tokens(again, 3)) == 3


def test_a_process_that_knows_some_streams_leaves_the_check_to_who_knows_all(tmp_path):
    made = config(tmp_path / "a.jsonl", with_bad(2), streams=2, max_bad_share=0.0).build()
    parts = [made.iterator(shard_index=i, shard_count=2) for i in range(2)]
    assert all(len(tokens(part, 20)) == 20 for part in parts)
    with pytest.raises(DataError, match="more than max_bad_share"):
        made.check(merge_states(part.get_state() for part in parts))


def test_a_mixture_counts_by_source(tmp_path):
    good = config(tmp_path / "good.jsonl", GOOD).dataset
    bad = config(tmp_path / "bad.jsonl", with_bad(4)).dataset
    mixture = Mixture.Config(parts={"good": good, "bad": bad}, weights={"good": 1.0, "bad": 1.0})
    made = TextInput.Config(batch_size=4, seq_len=16, dataset=mixture, prefetch=0).build()
    iterator = iter(made)
    tokens(iterator, 40)
    position = iterator.get_state()
    found = made.figures(position)
    assert found["bad/skipped"] >= 1
    assert found["good/skipped"] == 0
    assert {(each.source, each.document) for each in made.skipped(position)} == {("bad", 4)}
    strict = made.cfg.set_in("dataset.parts['bad'].max_bad_share", 0.0).build()
    with pytest.raises(DataError, match=r"^dataset\.parts\.bad\.source: "):
        strict.check(position)


@pytest.mark.parametrize("lines", [[BAD["not JSON"]] * 3, [BAD["not JSON"]] * 2000])
def test_a_source_of_which_nothing_can_be_used_is_an_error_at_once(lines, tmp_path):
    with pytest.raises(DataError, match=r"a\.jsonl:1: not JSON"):
        config(tmp_path / "a.jsonl", lines).build()


@pytest.mark.parametrize(
    "count, message", [(20, "all 20 documents are empty, or cannot be used"), (5000, "1,000 documents in a row cannot")]
)
def test_a_stream_does_not_read_on_for_ever_where_nothing_can_be_used(count, message, tmp_path):
    lines = ['{"text": ""}'] + [BAD["not JSON"]] * (count - 1)
    with pytest.raises(DataError, match=message):
        next(iter(config(tmp_path / "a.jsonl", lines, shuffle=False).build()))


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_a_config_error(share, tmp_path):
    with pytest.raises(ConfigError) as e:
        config(tmp_path / "a.jsonl", GOOD, max_bad_share=share).build()
    assert str(e.value) == f"dataset.max_bad_share: is {share}. Use a number from 0 to 1."
