# SPDX-License-Identifier: Apache-2.0
"""`Mixture`: proportions, positions, and wrong weights."""

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data import ByteTokenizer, JsonLines, Mixture, TextDataset
from dovetail.data._mixture import bounds_of, choose

BYTES = ByteTokenizer.Config().build()


@pytest.fixture
def part(write):
    def make(name: str, count: int = 10, **fields) -> TextDataset.Config:
        records = [{"text": f"{name}{i:02d}"} for i in range(count)]  # Rows of four tokens, with eos.
        return TextDataset.Config(source=JsonLines.Config(files=[write(f"{name}.jsonl", records)]), **fields)

    return make


@pytest.fixture
def mixture(part):
    def build(weights: dict[str, float], **fields) -> Mixture:
        config = Mixture.Config(parts={name: part(name) for name in weights}, weights=weights, seq_len=4, seed=0)
        return config.set(**fields).build(tokenizer=BYTES, path="dataset")

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


def test_part_that_ends_is_a_config_error(part):
    config = Mixture.Config(parts={"a b": part("a", epochs=2)}, weights={"a b": 1.0}, seq_len=4, seed=0)
    assert error_of(lambda: config.build(tokenizer=BYTES, path="dataset")) == (
        "dataset.parts['a b']: ends, and a mixture draws from its parts without end. Set epochs=None."
    )
