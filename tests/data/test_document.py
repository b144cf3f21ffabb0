# SPDX-License-Identifier: Apache-2.0
"""Documents of records: parts with weights, prompts and groups, the same from all kinds of files."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.config import ConfigError
from dovetail.data import (
    ArrayRecord,
    ByteTokenizer,
    DataError,
    JsonLines,
    Parquet,
    Preparation,
    PreparedData,
    PreparedDataset,
    Span,
    TextDataset,
)
from dovetail.data._document import document_of_record

BYTES = ByteTokenizer.Config().build()
PARTS = [{"text": "Q: ", "weight": 0}, {"text": "A", "weight": 0.5}, {"text": "!"}]
RECORDS = [{"doc": PARTS, "q": "why? ", "a": "so", "b": "no"}, {"doc": PARTS[1:], "q": "who? ", "a": "me", "b": "you"}]
# What the tokens of each document weigh, with that of eos at the end.
WANTED = [[("Q: ", 0.0), ("A", 0.5), ("!", 1.0), ("\0", 1.0)], [("A", 0.5), ("!", 1.0), ("\0", 1.0)]]


def written(kind, home):
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(RECORDS), home / "a.parquet")
        return Parquet.Config(files=[f"{home}/a.parquet"])
    if kind == "array_record":
        library = pytest.importorskip("array_record.python.array_record_module")
        writer = library.ArrayRecordWriter(f"{home}/a.array_record", "group_size:1")
        for record in RECORDS:
            writer.write(json.dumps(record).encode())
        writer.close()
        return ArrayRecord.Config(files=[f"{home}/a.array_record"], records="json")
    (home / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return JsonLines.Config(files=[f"{home}/a.jsonl"])


def named(source, field, prompt=None):
    return source.set(**{"column" if isinstance(source, Parquet.Config) else "field": field, "prompt": prompt})


def built(source) -> TextDataset:
    return TextDataset.Config(source=source, seq_len=8, seed=0).build(tokenizer=BYTES, path="dataset")


def spelled(ids, weights) -> list[tuple[str, float]]:
    """Neighbours of one weight, as text; eos is a zero."""
    found = []
    for token, weight in zip(ids, weights, strict=True):
        text = "\0" if token == 257 else chr(token)
        if found and found[-1][1] == weight and text != "\0":
            found[-1] = found[-1][0] + text, weight
        else:
            found.append((text, float(weight)))
    return found


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "array_record"])
def test_parts_are_tokenised_apart_and_bring_their_weights(kind, tmp_path):
    data = built(named(written(kind, tmp_path), "doc"))
    for index, wanted in enumerate(WANTED):
        ((ids, weights),) = data.sequences(index)
        assert spelled(ids, weights) == wanted


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "array_record"])
def test_a_prompt_comes_first_and_counts_for_nothing(kind, tmp_path):
    data = built(named(written(kind, tmp_path), "a", "q"))
    ((ids, weights),) = data.sequences(1)
    assert spelled(ids, weights) == [("who? ", 0.0), ("me", 1.0), ("\0", 1.0)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_prepared_data_has_the_documents_and_weights_of_its_sources(kind, tmp_path):
    source = named(written(kind, tmp_path), "doc")
    to = str(tmp_path / "out")
    cfg = Preparation.Config(sources=source.files, tokenizer=ByteTokenizer.Config(), to=to, workers=0, field="doc")
    cfg.build().run()
    (block,) = PreparedData(to).read([0])
    assert block.weights is not None
    cuts = np.cumsum(block.lengths)[:-1]
    found = [*map(spelled, np.split(block.tokens, cuts), np.split(block.weights, cuts))]
    assert found == WANTED
    rows = {}
    for name, data in {
        "text": TextDataset.Config(source=source, shuffle=False, epochs=1),
        "prepared": PreparedDataset.Config(path=to, shuffle=False, epochs=1),
    }.items():
        made = data.set(seq_len=4, seed=0).build(tokenizer=BYTES)
        rows[name] = [{field: values.tolist() for field, values in row.items()} for row, _ in made.rows(0, 1, None)]
    assert rows["text"] == rows["prepared"]
    assert [weight for row in rows["text"] for weight in row["weights"]][:6] == [0, 0, 0.5, 1, 1, 0]


def test_a_weighted_document_whose_parts_all_weigh_one_is_like_any_other(write):
    records = [{"text": [{"text": "ab"}, {"text": "c", "weight": 1}]}]
    ((ids, weights),) = built(JsonLines.Config(files=[write("a.jsonl", records)])).sequences(0)
    assert ids.tolist() == [*b"abc", 257]
    assert weights is None


@pytest.mark.parametrize(
    "field, message",
    [
        ([{"text": "a", "weigth": 0}], "part 0 of field 'text' has a field 'weigth'. Did you mean 'weight'?"),
        ([{"text": "a"}, {"weight": 1}], "part 1 of field 'text' has no field 'text'."),
        ([{"text": "a", "weight": -1}], "part 0 of field 'text' has the weight -1. Expected a number, 0 or more."),
        ([{"text": "a", "weight": math.inf}], "has the weight inf."),
        ([{"text": "a", "weight": True}], "has the weight True."),
        ([{"text": [{"text": "a"}]}], "part 0 of field 'text' has parts of its own."),
        ([{"text": None}], "its text is null. Expected text, or a list of token ids."),
        (["a", {"text": "b"}], "Expected text, or a list of token ids."),
        ([[1], [1, 2]], "Expected text, or a list of token ids."),
    ],
)
def test_parts_that_are_none_are_errors_that_name_the_place(write, field, message):
    with pytest.raises(DataError) as e:
        built(JsonLines.Config(files=[write("a.jsonl", [{"text": field}])]))
    assert "a.jsonl:1: " in str(e.value)
    assert message in str(e.value)


def test_names_of_fields_that_make_no_sense_are_config_errors(write, tmp_path):
    file = write("a.jsonl", RECORDS)
    for field, prompt, message in (
        (("a",), None, "is ('a',). Use one name, or two or more whose texts belong together."),
        (("a", "a"), None, "names 'a' twice. Give each field once."),
        ("a", "a", "names 'a' twice. Give each field once."),
    ):
        with pytest.raises(ConfigError) as e:
            JsonLines.Config(files=[file], field=field, prompt=prompt).build(path="source")
        assert str(e.value) == f"source.field: {message}"
        with pytest.raises(ConfigError, match=r"prepare\.field: "):
            Preparation.Config(
                sources=[file], field=field, prompt=prompt, tokenizer=ByteTokenizer.Config(), to=str(tmp_path / "x")
            ).build(path="prepare")
    text = write("a.txt", "some text")
    for fields in ({"prompt": "q"}, {"field": ("a", "b")}):
        cfg = Preparation.Config(sources=[text], tokenizer=ByteTokenizer.Config(), to=str(tmp_path / "x"))
        with pytest.raises(ConfigError, match=r"prepare\.sources: .*a\.txt is a text, which has no fields"):
            cfg.set(**fields).build(path="prepare")
        with pytest.raises(ConfigError, match=r"source\.records: is 'text', which has no fields\. Use 'json'\."):
            ArrayRecord.Config(files=[file]).set(**fields).build(path="source")
    with pytest.raises(DataError, match=r"the record has no field 'question'"):
        JsonLines.Config(files=[file], field="a", prompt="question").build()
    with pytest.raises(DataError, match=r"field 'doc' has parts\. A prompt is a text"):
        JsonLines.Config(files=[file], field="a", prompt="doc").build()


MASKED = [{"text": [{"text": "abc", "weight": 0}]}, {"text": "fine"}]


def test_a_document_that_teaches_nothing_is_an_error_or_is_left_out_and_counted(write):
    file = write("a.jsonl", MASKED)
    data = built(JsonLines.Config(files=[file]))
    with pytest.raises(DataError) as e:
        data.sequences(0)
    assert str(e.value) == f"{file}:1: all weights are 0: it teaches nothing."
    skipping = data.cfg.set(on_bad_document="skip", epochs=1, max_bad_share=1.0).build(tokenizer=BYTES)
    ((row, state),) = skipping.rows(0, 1, None)
    assert row["tokens"][:5].tolist() == [*b"fine", 257]
    assert skipping.figures([state])["skipped"] == 1
    assert "all weights are 0" in skipping.skipped([state])[0].reason
    nothing = built(JsonLines.Config(files=[write("b.jsonl", MASKED[:1])])).cfg.set(on_bad_document="skip")
    with pytest.raises(DataError, match="all 1 documents are empty, or cannot be used"):
        next(nothing.build(tokenizer=BYTES).rows(0, 1, None))


def test_prepared_data_leaves_out_what_teaches_nothing_and_counts_it(write, tmp_path):
    cfg = Preparation.Config(sources=[write("a.jsonl", MASKED)], tokenizer=ByteTokenizer.Config(), workers=0, to="")
    found = cfg.set(to=str(tmp_path / "out")).build().run().statistics
    assert (found["documents"], found["masked"], found["empty"], found["tokens"]) == (1, 1, 0, 5)
    with pytest.raises(DataError, match=r"there is no document in all of it\. All weights of 1 are 0"):
        cfg.set(sources=[write("b.jsonl", MASKED[:1])], to=str(tmp_path / "none")).build().run()


def test_of_a_group_the_prompt_is_before_each_sequence():
    found = document_of_record({"q": "Q", "a": "A", "b": "B"}, ("a", "b"), "q", lambda: "here")
    assert found.sequences == ([Span("Q", 0.0), Span("A")], [Span("Q", 0.0), Span("B")])
