# SPDX-License-Identifier: Apache-2.0
"""Shards: documents are whole up to a bound, weights lie beside tokens, groups stay together; format 1 is read."""

import json
import zipfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.data import (
    BestFitPacker,
    ByteTokenizer,
    ConcatPacker,
    DataError,
    JsonLines,
    Manifest,
    Preparation,
    PreparedData,
    PreparedDataset,
    TextDataset,
    TextInput,
)

BYTES = ByteTokenizer.Config()


def prepare(home: Path, records, **fields) -> tuple[PreparedData, Manifest]:
    home.mkdir(exist_ok=True, parents=True)
    (home / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    cfg = Preparation.Config(sources=[f"{home}/a.jsonl"], tokenizer=BYTES, to=f"{home}/out", workers=0)
    manifest = cfg.set(**fields).build().run()
    return PreparedData(f"{home}/out"), manifest


def stored(data: PreparedData) -> list[list[tuple[list[int], list[float]]]]:
    """What is in each block: sequences, and what their tokens weigh."""
    found = []
    for block in data.read(range(len(data))):
        weights = np.ones(len(block.tokens)) if block.weights is None else block.weights
        cuts = np.cumsum(block.lengths)[:-1]
        pairs = zip(np.split(block.tokens, cuts), np.split(weights, cuts), strict=True)
        found.append([(ids.tolist(), own.tolist()) for ids, own in pairs])
    return found


@settings(max_examples=10)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=20),
    block_tokens=st.integers(1, 40),
    most=st.integers(1, 80),
    shard_bytes=st.integers(30, 400),
)
def test_a_document_is_in_one_block_unless_it_is_longer_than_the_bound(
    tmp_path_factory, lengths, block_tokens, most, shard_bytes
):
    sizes = {"block_tokens": block_tokens, "max_document_tokens": most, "shard_bytes": shard_bytes}
    records = [{"text": chr(97 + i) * n} for i, n in enumerate(lengths)]
    data, manifest = prepare(tmp_path_factory.mktemp("whole"), records, **sizes)
    blocks = stored(data)
    wanted = []
    for record in records:
        ids = [*record["text"].encode(), 257]
        wanted += [ids[i : i + most] for i in range(0, len(ids), most)]
    assert [ids for block in blocks for ids, _ in block] == wanted
    assert manifest.statistics["split"] == sum(n + 1 > most for n in lengths)
    assert manifest.statistics["documents"] == len(lengths)
    for block in blocks:
        assert sum(len(ids) for ids, _ in block[:-1]) < block_tokens, "a block ends with the document that fills it"


weights = st.sampled_from([0, 0.5, 1, 2])
spans = st.lists(st.tuples(st.text("ab", max_size=6), weights), min_size=1, max_size=3)


@settings(max_examples=15)
@given(documents=st.lists(spans, min_size=1, max_size=12), block_tokens=st.integers(1, 20), most=st.integers(3, 30))
def test_weights_are_those_of_the_parts_and_what_teaches_nothing_is_left_out(
    tmp_path_factory, documents, block_tokens, most
):
    records = [{"text": [{"text": text, "weight": weight} for text, weight in spans]} for spans in documents]
    wanted, masked, empty, has_weights = [], 0, 0, False
    for parts in documents:
        ids = [token for text, _ in parts for token in text.encode()]
        own = [float(weight) for text, weight in parts for _ in text]
        if not ids:
            empty += 1
            continue
        ids, own = [*ids, 257], [*own, float(parts[-1][1])]
        cut = [(ids[i : i + most], own[i : i + most]) for i in range(0, len(ids), most)]
        kept = [(a, b) for a, b in cut if any(b[1:]) or all(b)]
        if not kept:
            masked += 1
            continue
        wanted += kept
        has_weights |= any(w != 1 for _, b in kept for w in b)
    sizes = {"block_tokens": block_tokens, "max_document_tokens": most, "shard_bytes": 40}
    home = tmp_path_factory.mktemp("weights")
    if not wanted:
        with pytest.raises(DataError, match="there is no document in all of it"):
            prepare(home, records, **sizes)
        return
    data, manifest = prepare(home, records, **sizes)
    assert [each for block in stored(data) for each in block] == wanted
    assert (manifest.statistics["masked"], manifest.statistics["empty"]) == (masked, empty)
    assert bool(list(Path(data.path).rglob("*.weights"))) == has_weights
    assert [found for _, found in data.problems()] == [[]] * len(data.shards)


@settings(max_examples=20)
@given(
    groups=st.lists(st.lists(st.text("ab", max_size=8), min_size=3, max_size=3), min_size=1, max_size=12),
    block_tokens=st.integers(1, 40),
)
def test_the_sequences_of_a_group_are_neighbours_in_a_block_and_all_there(tmp_path_factory, groups, block_tokens):
    records = [dict(zip("abc", group, strict=True)) for group in [["x", "y", "z"], *groups]]
    fields = {"field": ("a", "b", "c"), "block_tokens": block_tokens, "shard_bytes": 60}
    data, manifest = prepare(tmp_path_factory.mktemp("groups"), records, **fields)
    wanted = [[[*text.encode(), 257] for text in record.values()] for record in records if all(record.values())]
    blocks = [[ids for ids, _ in block] for block in stored(data)]
    assert all(len(block) % 3 == 0 for block in blocks)
    assert [block[i : i + 3] for block in blocks for i in range(0, len(block), 3)] == wanted
    assert manifest.group == 3
    assert manifest.statistics["documents"] == len(wanted)
    assert manifest.statistics["empty"] == len(records) - len(wanted)


def test_a_sequence_of_a_group_that_is_too_long_to_be_whole_is_an_error(tmp_path):
    with pytest.raises(DataError) as e:
        prepare(tmp_path, [{"a": "x", "b": "x" * 30}], field=("a", "b"), max_document_tokens=20)
    assert str(e.value) == (
        f"{tmp_path}/a.jsonl:1: a sequence of a group has 30 tokens, more than max_document_tokens (20).\n"
        "  Cut it before, or raise max_document_tokens: a group is never in parts."
    )


def test_damaged_weights_are_named(tmp_path):
    records = [{"text": [{"text": "abc", "weight": 0}, {"text": "def"}]}] * 10
    data, _ = prepare(tmp_path, records, block_tokens=14)
    (file,) = Path(data.path).rglob("*.weights")
    content = bytearray(file.read_bytes())
    content[60] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"0000000-0\.weights, bytes 56 to 112: is damaged: its checksum is"):
        PreparedData(data.path).read(range(5))
    ((_, problems),) = PreparedData(data.path).problems()
    assert len(problems) == 1


def test_data_differs_for_other_weights(tmp_path):
    records = [[{"text": [{"text": "abc", "weight": weight}, {"text": "def"}]}] for weight in (3, 4)]
    one, two = (prepare(tmp_path / str(i), each)[1] for i, each in enumerate(records))
    assert one.digest != two.digest


def test_a_text_that_is_one_document_is_in_parts_so_that_some_can_be_held_out(tmp_path):
    (tmp_path / "a.txt").write_text("call me ishmael " * 10_000)
    cfg = Preparation.Config(sources=[f"{tmp_path}/a.txt"], tokenizer=BYTES, to=f"{tmp_path}/out", workers=0)
    manifest = cfg.build().run()
    assert manifest.settings["max_document_tokens"] == 2000
    assert manifest.statistics["split"] == 1
    assert manifest.shards["blocks"] > 20
    whole = cfg.set(separator="\n\n", to=f"{tmp_path}/whole").build().run()
    assert whole.settings["max_document_tokens"] == 1 << 20
    assert whole.shards["blocks"] == 1


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Path:
    """Prepared data of format 1, its source, and positions of runs in both, as they were written then."""
    home = tmp_path_factory.mktemp("old")
    with zipfile.ZipFile(Path(__file__).with_name("prepared_format_1.zip")) as archive:
        archive.extractall(home)
    return home


def test_data_of_format_1_has_the_documents_that_it_had(old):
    data = PreparedData(f"{old}/prepared")
    assert data.manifest.format == 1
    assert [found for _, found in data.problems()] == [[]]
    found = [token for block in stored(data) for ids, _ in block for token in ids]
    texts = [json.loads(line)["text"] for line in (old / "a.jsonl").read_text().splitlines()]
    assert found == [token for text in texts for token in [*text.encode(), 257]]


@pytest.mark.parametrize("number", range(4))
def test_runs_from_before_there_were_weights_groups_and_counts_go_on_where_they_were(old, number):
    run = json.loads((old / "runs.json").read_text())[number]
    packer = {"concat": ConcatPacker.Config(), "best fit": BestFitPacker.Config(window=2)}[run["packer"]]
    data = {
        "text": TextDataset.Config(source=JsonLines.Config(files=[f"{old}/a.jsonl"]), packer=packer),
        "prepared": PreparedDataset.Config(path=f"{old}/prepared", packer=packer, blocks=4),
    }[run["data"]]
    cfg = TextInput.Config(batch_size=2, seq_len=8, dataset=data, streams=2, prefetch=0)
    made = cfg.build()
    iterator = iter(made)
    iterator.set_state(run["position"])
    assert [batch["tokens"].tolist() for batch in islice(iterator, 5)] == run["next"]
    states = iterator.get_state()["streams"]
    assert sum(state["ended"] for state in states.values()) > 0
    assert "documents" in made.figures(iterator.get_state())
