# SPDX-License-Identifier: Apache-2.0
"""`Mixture`: proportions, positions, and wrong weights."""

import json
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data import ByteTokenizer, JsonLines, Mixture, TextDataset, TextInput, WeightSchedule, merge_states
from dovetail.data._weights import bounds_of, choose

BYTES = ByteTokenizer.Config().build()


@pytest.fixture
def part(write):
    def make(name: str, count: int = 10, **fields) -> TextDataset.Config:
        records = [{"text": f"{name}{i:02d}"} for i in range(count)]  # Rows of four tokens, with eos.
        return TextDataset.Config(source=JsonLines.Config(files=[write(f"{name}.jsonl", records)]), **fields)

    return make


@pytest.fixture
def mixture(part):
    def build(weights, rows_per_step: int = 1, **fields) -> Mixture:
        config = Mixture.Config(parts={name: part(name) for name in weights}, weights=weights, seq_len=4, seed=0)
        return config.set(**fields).build(tokenizer=BYTES, path="dataset", rows_per_step=rows_per_step)

    return build


def names(rows) -> list[str]:
    return [BYTES.decode(row["tokens"]) for row, _ in rows]


def test_rows_come_in_the_proportion_of_the_weights(mixture):
    got = Counter(name[0] for name in names(islice(mixture({"a": 6, "b": 3, "c": 1}).rows(0, 1, None), 1000)))
    assert abs(got["a"] - 600) <= 3
    assert abs(got["b"] - 300) <= 3
    assert abs(got["c"] - 100) <= 3


@given(st.lists(st.floats(0.05, 1), min_size=1, max_size=5), st.integers(0, 2**64), st.integers(1, 400))
def test_at_any_time_each_part_is_near_its_share(weights, seed, number):
    got = Counter(choose(i, bounds_of(weights), seed) for i in range(number))
    for index, weight in enumerate(weights):
        assert abs(got[index] - number * weight / sum(weights)) < 6


def test_each_part_is_the_data_set_it_is_alone(mixture, part):
    mixed = mixture({"a": 2, "b": 1})
    got = [name for name in names(islice(mixed.rows(0, 1, None), 90)) if name[0] == "a"]
    alone = mixed._parts["a"]
    assert got == names(islice(alone.rows(0, 1, None), len(got)))


def test_parts_are_shuffled_independently(mixture):
    mixed = mixture({"a": 1, "b": 1})
    orders = [[name[1:] for name in names(islice(mixed._parts[p].rows(0, 1, None), 10))] for p in "ab"]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("num_streams", [2, 4])
def test_each_batch_over_all_streams_is_mixed(mixture, num_streams):
    mixed = mixture({"a": 1, "b": 1})
    streams = [names(islice(mixed.rows(s, num_streams, None), 50)) for s in range(num_streams)]
    kinds = ["".join(sorted({name[0] for name in batch})) for batch in zip(*streams, strict=True)]
    assert kinds.count("ab") >= {2: 25, 4: 50}[num_streams]  # Not one step all of one part, the next of another.
    total = Counter(name[0] for stream in streams for name in stream)
    assert abs(total["a"] - total["b"]) <= 6


def test_rows_go_on_from_a_position(mixture):
    mixed = mixture({"a": 3, "b": 2, "c": 1})
    rows = list(islice(mixed.rows(1, 2, None), 40))
    for i, (_, state) in enumerate(rows, 1):
        assert names(islice(mixed.rows(1, 2, state), 40 - i)) == names(rows[i:])


def test_position_is_not_changed_by_going_on(mixture):
    rows = mixture({"a": 1, "b": 1}).rows(0, 1, None)
    _, state = next(rows)
    before = repr(state)
    list(islice(rows, 10))
    assert repr(state) == before


def test_mixtures_nest(mixture, part):
    inner = Mixture.Config(parts={"a": part("a"), "b": part("b")}, weights={"a": 1, "b": 1})
    mixed = mixture({"x": 1, "y": 1}, parts={"x": inner, "y": part("c")})
    rows = list(islice(mixed.rows(0, 1, None), 400))
    got = Counter(name[0] for name in names(rows))
    assert abs(got["c"] - 200) <= 4
    assert abs(got["a"] - 100) <= 8
    assert names(islice(mixed.rows(0, 1, rows[99][1]), 300)) == names(rows[100:])


def error_of(call) -> str:
    with pytest.raises(ConfigError) as e:
        call()
    return str(e.value)


@pytest.mark.parametrize(
    "weights, message",
    [
        ({"web": 1.0}, "dataset.weights: no weight for 'books'."),
        ({"web": 1.0, "books": 1.0, "wbe": 1.0}, "dataset.weights: there is no part 'wbe'. Did you mean 'web'?"),
        ({"web": 0.0, "books": 1.0}, "dataset.weights.web: is 0.0. Use a number above 0, or leave the part out."),
        ({"web": 1.0, "books": -2.0}, "dataset.weights.books: is -2.0. Use a number above 0, or leave the part out."),
        (
            {"web": 1.0, "books": float("nan")},
            "dataset.weights.books: is nan. Use a number above 0, or leave the part out.",
        ),
    ],
)
def test_wrong_weights_are_config_errors(part, weights, message):
    parts = {"web": part("web"), "books": part("books")}
    config = Mixture.Config(parts=parts, weights=weights, seq_len=4, seed=0)
    assert error_of(lambda: config.build(tokenizer=BYTES, path="dataset")) == message


def test_mixture_of_nothing_is_a_config_error():
    config = Mixture.Config(parts={}, weights={}, seq_len=4, seed=0)
    assert error_of(lambda: config.build(tokenizer=BYTES, path="dataset")) == "dataset.parts: is empty."


def test_part_that_has_given_its_epochs_gives_no_more_and_its_share_goes_to_the_others(mixture, part):
    parts = {"a": part("a", epochs=2), "b": part("b"), "c": part("c")}
    mixed = mixture({"a": 2, "b": 1, "c": 3}, parts=parts)
    rows = list(islice(mixed.rows(0, 1, None), 600))
    got = [name[0] for name in names(rows)]
    assert mixed.is_endless
    assert Counter(names(row for row, kind in zip(rows, got, strict=True) if kind == "a")) == {
        f"a{i:02d}": 2 for i in range(10)
    }
    last = len(got) - 1 - got[::-1].index("a")
    assert abs(last - 60) <= 3
    rest = Counter(got[last + 1 :])
    assert abs(rest["c"] - 3 * rest["b"]) <= 8
    figures = mixed.figures([rows[-1][1]])
    assert (figures["a/ended"], figures["a/rows"], figures["a/epochs"]) == (1.0, 20.0, 2.0)
    assert "b/ended" not in figures


def test_mixture_of_parts_that_end_gives_all_of_them_and_ends(mixture, part):
    mixed = mixture({"a": 5, "b": 1}, parts={"a": part("a", epochs=1), "b": part("b", epochs=3)})
    assert not mixed.is_endless
    got = Counter(names(mixed.rows(0, 1, None)))
    assert got == {**{f"a{i:02d}": 1 for i in range(10)}, **{f"b{i:02d}": 3 for i in range(10)}}


def test_what_each_part_has_given_is_counted(mixture):
    mixed = mixture({"a": 3, "b": 1})
    states, kinds = [], Counter()
    for stream in range(2):
        rows = list(islice(mixed.rows(stream, 2, None), 50))
        kinds += Counter(name[0] for name in names(rows))
        states.append(rows[-1][1])
    figures = mixed.figures(states)
    for name in "ab":
        assert figures[f"{name}/rows"] == kinds[name] == figures[f"{name}/documents"]
        assert figures[f"{name}/tokens"] == 4 * kinds[name]
        assert figures[f"{name}/epochs"] == kinds[name] / 10


def schedule(*points, **fields) -> WeightSchedule:
    return WeightSchedule(points=points, **fields)


def test_a_weight_is_linear_between_its_points_or_holds_until_the_next():
    linear = schedule((10, 1.0), (20, 3.0), (30, 0.0))
    assert [linear.at(count) for count in (0, 10, 15, 20, 25, 30, 99)] == [1.0, 1.0, 2.0, 3.0, 1.5, 0.0, 0.0]
    constant = linear.set(shape="constant")
    assert [constant.at(count) for count in (0, 10, 19, 20, 29, 30)] == [1.0, 1.0, 1.0, 3.0, 3.0, 0.0]


def test_rows_come_in_the_proportion_of_the_weights_of_their_time(mixture):
    weights = {"a": 1.0, "b": schedule((0, 0.0), (300, 0.0), (600, 1.0), unit="row")}
    got = names(islice(mixture(weights).rows(0, 1, None), 1000))
    shares = [sum(name[0] == "b" for name in got[start : start + 100]) for start in range(0, 1000, 100)]
    assert shares[:3] == [0, 0, 0]
    for share, weight in zip(shares[3:6], (1 / 6, 1 / 2, 5 / 6), strict=True):
        assert abs(share - 100 * weight / (1 + weight)) <= 4
    assert all(abs(share - 50) <= 3 for share in shares[6:])


def test_a_part_may_come_at_a_step(mixture):
    weights = {"a": schedule((0, 1.0), (5, 0.0), shape="constant"), "b": schedule((0, 0.0), (5, 1.0), shape="constant")}
    got = names(islice(mixture(weights, rows_per_step=8).rows(0, 1, None), 80))
    assert "".join(name[0] for name in got) == "a" * 40 + "b" * 40


@settings(max_examples=30)
@given(
    points=st.lists(st.tuples(st.integers(0, 12), st.floats(0.1, 2)), min_size=1, max_size=4, unique_by=lambda p: p[0]),
    shape=st.sampled_from(["linear", "constant"]),
    unit=st.sampled_from(["step", "row"]),
    epochs=st.sampled_from([None, 1, 2]),
    streams=st.sampled_from([1, 2, 4]),
    before=st.sampled_from([1, 2, 4]),
    after=st.sampled_from([1, 2, 4]),
    taken=st.integers(1, 12),
)
def test_with_schedules_and_ends_batches_are_those_of_any_number_of_processes_from_any_position(
    points, shape, unit, epochs, streams, before, after, taken
):
    with tempfile.TemporaryDirectory() as directory:
        parts = {}
        for name, count in {"a": 7, "b": 23}.items():
            file = Path(directory, name)
            file.write_text("\n".join(json.dumps({"text": name * (1 + 5 * i % 17)}) for i in range(count)))
            source = JsonLines.Config(files=[str(file)])
            parts[name] = TextDataset.Config(source=source, epochs=epochs if name == "a" else None)
        weights = {"a": schedule(*sorted(points), shape=shape, unit=unit), "b": 0.5}
        mixed = Mixture.Config(parts=parts, weights=weights)
        made = TextInput.Config(batch_size=4, seq_len=16, dataset=mixed, streams=streams, prefetch=0).build()
        alone, several = made.iterator(), [made.iterator(shard_index=i, shard_count=before) for i in range(before)]
        for _ in range(taken):
            want = next(alone)["tokens"]
            assert np.concatenate([next(part)["tokens"] for part in several]).tolist() == want.tolist()
        position = json.loads(json.dumps(merge_states(part.get_state() for part in several)))
        assert position == alone.get_state()
        again = [made.iterator(shard_index=i, shard_count=after) for i in range(after)]
        for part in again:
            part.set_state(position)
        for _ in range(5):
            want = next(alone)["tokens"]
            assert np.concatenate([next(part)["tokens"] for part in again]).tolist() == want.tolist()
        figures = made.figures(merge_states(part.get_state() for part in again))
        assert figures == made.figures(alone.get_state())
        assert figures["a/rows"] + figures["b/rows"] == 4 * (taken + 5)


def test_another_batch_size_goes_on_at_the_step_of_a_schedule(part):
    weights = {
        "a": schedule((0, 1.0), (10, 0.0), shape="constant"),
        "b": schedule((0, 0.0), (10, 1.0), shape="constant"),
    }
    mixed = Mixture.Config(parts={name: part(name) for name in weights}, weights=weights)
    before = TextInput.Config(batch_size=2, seq_len=4, dataset=mixed, prefetch=0)

    def kinds(cfg, steps, position=None) -> tuple[list[str], Any]:
        iterator = iter(cfg.build())
        if position is not None:
            iterator.set_state(position)
        batches = [next(iterator)["tokens"] for _ in range(steps)]
        return ["".join(BYTES.decode(row)[0] for row in batch) for batch in batches], iterator.get_state()

    _, position = kinds(before, 6)
    for size in (8, 4):
        position, _ = before.set(batch_size=size).build().carry(position)
        found, position = kinds(before.set(batch_size=size), 2, position)
        assert found == ["a" * size] * 2
    assert kinds(before.set(batch_size=4), 2, position)[0] == ["bbbb"] * 2


@pytest.mark.parametrize(
    "weights, message",
    [
        (
            {"a": schedule(), "b": 1.0},
            "dataset.weights.a.points: is (). Use points from 0 on, each after the one before.",
        ),
        (
            {"a": schedule((5, 1.0), (5, 2.0)), "b": 1.0},
            "dataset.weights.a.points: is ((5, 1.0), (5, 2.0)). Use points from 0 on, each after the one before.",
        ),
        (
            {"a": schedule((0, 0.0)), "b": 1.0},
            "dataset.weights.a.points: is ((0, 0.0),). Use weights from 0 on, not all of them 0.",
        ),
        (
            {"a": schedule((0, 1.0), (9, 0.0)), "b": schedule((5, 1.0), (9, 0.0))},
            "dataset.weights: all are 0 after 9 steps. Give one of the parts a weight then.",
        ),
    ],
)
def test_wrong_schedules_are_config_errors(part, weights, message):
    config = Mixture.Config(parts={"a": part("a"), "b": part("b")}, weights=weights, seq_len=4, seed=0)
    assert error_of(lambda: config.build(tokenizer=BYTES, path="dataset")) == message
