# SPDX-License-Identifier: Apache-2.0
"""`Stride`, and mixtures by tokens and by documents: at any time, what parts give is near their shares."""

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.data import (
    BestFitPacker,
    ByteTokenizer,
    ConcatPacker,
    JsonLines,
    Mixture,
    TextDataset,
    TextInput,
    WeightSchedule,
    merge_states,
)
from dovetail.data._stride import Stride

BYTES = ByteTokenizer.Config()
SEQ_LEN = 16


@settings(deadline=None)
@given(
    weights=st.lists(st.floats(0.02, 1), min_size=1, max_size=5),
    longest=st.integers(1, 100),
    seed=st.integers(0, 2**32),
    stream=st.integers(0, 63),
)
def test_what_parts_give_is_near_their_shares_at_any_time(weights, longest, seed, stream):
    shares = {f"part{i}": weight / sum(weights) for i, weight in enumerate(weights)}
    stride, rng = Stride(seed, stream), np.random.default_rng(seed)
    turns, given_so_far = {}, Counter()
    for _ in range(300):
        name, turns = stride.choose(turns, shares, longest / 2)
        amount = int(rng.integers(0, longest + 1))
        turns = json.loads(json.dumps(stride.done(turns, name, shares[name], amount)))
        given_so_far[name] += amount
        for part, share in shares.items():  # A turn of its own, and one of each of the others, at most.
            assert abs(given_so_far[part] - share * given_so_far.total()) <= longest * (1 + len(shares) * share)


def test_what_was_missed_without_a_share_is_not_made_up_for():
    stride, turns = Stride(0, 0), {}
    for _ in range(1000):
        name, turns = stride.choose(turns, {"a": 1.0, "b": 0.0}, 1.0)
        turns = stride.done(turns, name, 1.0, 1.0)
    got = Counter()
    for _ in range(100):
        name, turns = stride.choose(turns, {"a": 0.5, "b": 0.5}, 1.0)
        turns, got[name] = stride.done(turns, name, 0.5, 1.0), got[name] + 1
    assert abs(got["a"] - 50) <= 1


def test_streams_side_by_side_choose_different_parts():
    shares = {"a": 0.6, "b": 0.3, "c": 0.1}
    streams, turns = [Stride(1, stream) for stream in range(64)], [{} for _ in range(64)]
    for _ in range(20):
        row = Counter()
        for stream, stride in enumerate(streams):
            name, turns[stream] = stride.choose(turns[stream], shares, 10.0)
            turns[stream] = stride.done(turns[stream], name, shares[name], 10.0)
            row[name] += 1
        assert all(abs(row[name] - 64 * share) <= 10 for name, share in shares.items()), row


@pytest.fixture
def mixture(write):
    def build(weights, by, *, packers=None, **fields) -> Mixture.Config:
        """Documents of "a" have 3 tokens, of "b" 9, of "c" 40."""
        sizes = {"a": 2, "b": 8, "c": 39}
        parts = {}
        for name in weights:
            records = [{"text": name * sizes[name]} for _ in range(50)]
            source = JsonLines.Config(files=[write(f"{name}.jsonl", records)])
            packer = (packers or {}).get(name, BestFitPacker.Config(window=4))
            parts[name] = TextDataset.Config(source=source, packer=packer)
        return Mixture.Config(parts=parts, weights=weights, by=by).set(**fields)

    return build


def build(cfg: Mixture.Config, **given) -> Mixture:
    return cfg.set(seq_len=SEQ_LEN, seed=3).build(tokenizer=BYTES.build(), path="dataset", **given)


def tokens_of(rows) -> Counter:
    found = Counter()
    for row, _ in rows:
        text = BYTES.build().decode(row["tokens"])
        found[text[0]] += int(np.count_nonzero(row["segments"]))
    return found


def test_weights_by_tokens_are_shares_of_tokens_where_rows_have_padding(mixture):
    """Rows of "b" have 9 of 16 tokens, so by rows its share of tokens is less than its weight."""
    weights = {"a": 1.0, "b": 2.0, "c": 1.0}
    by_rows, by_tokens = (
        tokens_of(islice(build(mixture(weights, by)).rows(0, 1, None), 800)) for by in ("rows", "tokens")
    )
    assert by_rows["b"] / by_rows.total() < 0.45
    for name, weight in weights.items():
        assert abs(by_tokens[name] - weight / 4 * by_tokens.total()) <= 3 * SEQ_LEN


def test_weights_by_documents_are_shares_of_documents(mixture):
    data = build(mixture({"a": 1.0, "b": 1.0, "c": 2.0}, "documents", packers={"a": ConcatPacker.Config()}))
    *_, (_, state) = islice(data.rows(0, 1, None), 2000)
    found = {name: state["given"][name][2] for name in "abc"}
    total = sum(found.values())
    assert total > 500
    for name, share in {"a": 0.25, "b": 0.25, "c": 0.5}.items():
        assert abs(found[name] - share * total) <= 12, found
    figures = data.figures([state])
    assert (figures["a/rows"], figures["a/tokens"]) == (state["given"]["a"][0], state["given"]["a"][1])


@pytest.mark.parametrize("by", ["tokens", "documents"])
def test_batches_are_the_same_for_any_number_of_processes_and_go_on_from_any_position(mixture, by):
    schedule = WeightSchedule(points=((0, 1.0), (4, 0.0), (8, 3.0)))
    cfg = TextInput.Config(
        batch_size=8, seq_len=SEQ_LEN, tokenizer=BYTES, streams=4, dataset=mixture({"a": schedule, "b": 1.0}, by)
    )
    whole = cfg.build()
    batches = [batch["tokens"] for batch in islice(whole.iterator(), 12)]
    halves = [whole.iterator(shard_index=i, shard_count=2) for i in range(2)]
    for expected in batches[:6]:
        np.testing.assert_array_equal(np.concatenate([next(half)["tokens"] for half in halves]), expected)
    position = merge_states([half.get_state() for half in halves])
    other = cfg.build().iterator()
    other.set_state(json.loads(json.dumps(position)))
    for expected in batches[6:]:
        np.testing.assert_array_equal(next(other)["tokens"], expected)


def test_a_run_goes_on_with_weights_of_something_else_and_other_parts(mixture):
    def made(dataset, streams=2):
        given = {"tokenizer": BYTES, "streams": streams, "dataset": dataset}
        return TextInput.Config(batch_size=4, seq_len=SEQ_LEN, **given).build()

    old = made(mixture({"a": 1.0, "b": 1.0}, "rows")).iterator()
    list(islice(old, 5))
    position, notes = made(mixture({"a": 1.0, "b": 1.0}, "tokens")).carry(old.get_state())
    assert "weights: they are of tokens from here on" in notes
    now = made(mixture({"a": 1.0, "b": 1.0}, "tokens"))
    iterator = now.iterator()
    iterator.set_state(position)
    before = now.figures(position)
    list(islice(iterator, 100))
    after = now.figures(iterator.get_state())
    gained = {name: after[f"{name}/tokens"] - before[f"{name}/tokens"] for name in "ab"}
    assert abs(gained["a"] - gained["b"]) <= 4 * SEQ_LEN
    more = made(mixture({"a": 1.0, "c": 1.0}, "tokens"))
    position, _ = more.carry(iterator.get_state())
    iterator = more.iterator()
    iterator.set_state(position)
    before = more.figures(position)
    list(islice(iterator, 100))
    after = more.figures(iterator.get_state())
    gained = {name: after[f"{name}/tokens"] - before[f"{name}/tokens"] for name in "ac"}
    assert abs(gained["a"] - gained["c"]) <= 4 * SEQ_LEN
