# SPDX-License-Identifier: Apache-2.0
"""Positions: exact, small, and good for any number of processes."""

import gc
import json
import subprocess
import sys
import threading
from itertools import islice

import numpy as np
import pytest

from dovetail.data import (
    BestFitPacker,
    ConcatPacker,
    DataError,
    Dataset,
    JsonLines,
    Mixture,
    TextDataset,
    TextInput,
    merge_states,
)

BATCH, SEQ = 8, 16
# With eos 682 tokens, a little more than five steps: tests pass through epochs. Some fill several rows, some none.
SIZES = [17, 1, 0, 40, 3, 90, 8, 15, 16, 2, 31, 0, 64, 5, 200, 11, 7, 120, 1, 33]


@pytest.fixture(scope="module", params=["concat", "best fit", "mixture"])
def dataset(request, tmp_path_factory) -> Dataset.Config:
    directory = tmp_path_factory.mktemp("documents")
    packer = ConcatPacker.Config() if request.param == "concat" else BestFitPacker.Config(window=4)
    parts = {}
    for name, sizes in {"a": SIZES, "b": SIZES[:7]}.items():
        records = [json.dumps({"text": "".join(chr(33 + (i + j) % 90) for j in range(n))}) for i, n in enumerate(sizes)]
        (directory / name).write_text("\n".join(records))
        parts[name] = TextDataset.Config(source=JsonLines.Config(files=[str(directory / name)]), packer=packer)
    return Mixture.Config(parts=parts, weights={"a": 1.0, "b": 2.0}) if request.param == "mixture" else parts["a"]


@pytest.fixture
def config(dataset) -> TextInput.Config:
    return TextInput.Config(batch_size=BATCH, seq_len=SEQ, dataset=dataset, prefetch=0)


def open_all(config: TextInput.Config, processes: int) -> list:
    made = config.build()
    return [made.iterator(shard_index=i, shard_count=processes) for i in range(processes)]


def step(iterators) -> dict[str, np.ndarray]:
    """The next global batch."""
    batches = [next(iterator) for iterator in iterators]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def assert_equal(got: dict, want: dict) -> None:
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


@pytest.mark.parametrize("streams", [1, 2, 4, 8])
def test_global_batches_are_the_same_for_any_number_of_processes(config, streams):
    config = config.set(streams=streams)
    (alone,) = open_all(config, 1)
    several = {processes: open_all(config, processes) for processes in (2, 4, 8)}
    for _ in range(20):
        want = next(alone)
        for iterators in several.values():
            assert_equal(step(iterators), want)


@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize("before, after", [(2, 4), (2, 1), (1, 2), (4, 2)])
def test_run_saved_with_some_processes_goes_on_with_another_number(config, streams, before, after):
    config = config.set(streams=streams)
    (alone,) = open_all(config, 1)
    saved = open_all(config, before)
    for _ in range(7):
        next(alone)
        step(saved)
    state = json.loads(json.dumps(merge_states([iterator.get_state() for iterator in saved])))
    assert state == alone.get_state()
    resumed = open_all(config, after)
    for iterator in resumed:
        iterator.set_state(state)
    for _ in range(7):
        assert_equal(step(resumed), next(alone))
    assert merge_states([iterator.get_state() for iterator in resumed]) == alone.get_state()


def test_with_one_stream_every_process_has_the_position_of_the_run(config):
    iterators = open_all(config, 4)
    step(iterators)
    assert all(iterator.get_state() == iterators[0].get_state() for iterator in iterators)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_position_is_that_of_the_batches_given_not_of_those_prepared(config, prefetch):
    made = config.set(prefetch=prefetch).build()
    reference = [*islice(config.build(), 12)]
    with made.iterator() as first, made.iterator() as second:
        for taken in range(12):
            state = first.get_state()
            assert state["step"] == taken
            second.set_state(state)
            assert_equal(next(second), reference[taken])
            assert_equal(next(first), reference[taken])


def test_going_back_gives_the_same_batches_again(config):
    with config.set(prefetch=2).build().iterator() as iterator:
        start = iterator.get_state()
        first = [next(iterator)["tokens"] for _ in range(5)]
        middle = iterator.get_state()
        second = [next(iterator)["tokens"] for _ in range(5)]
        for state, want in ((middle, second), (start, first)):
            iterator.set_state(state)
            np.testing.assert_array_equal([next(iterator)["tokens"] for _ in range(5)], want)


def test_batch_size_may_change_when_a_run_goes_on(config):
    (rows,) = open_all(config.set(batch_size=1), 1)
    expected = [next(rows)["tokens"][0] for _ in range(20)]
    (before,) = open_all(config, 1)
    next(before)
    (after,) = open_all(config.set(batch_size=4), 1)
    after.set_state(before.get_state())
    np.testing.assert_array_equal(next(after)["tokens"], expected[8:12])


def test_position_is_small_plain_data(config):
    (iterator,) = open_all(config, 1)
    for _ in range(30):
        next(iterator)
    state = iterator.get_state()
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) < 1500
    assert len(json.dumps(state["streams"])) < 250


def test_position_taken_is_not_changed_by_going_on(config):
    (iterator,) = open_all(config, 1)
    next(iterator)
    state = iterator.get_state()
    before = json.dumps(state)
    next(iterator)
    assert json.dumps(state) == before


def error_of(call) -> str:
    with pytest.raises(DataError) as e:
        call()
    return str(e.value)


def test_position_of_some_streams_only_is_refused_where_others_are_needed(config):
    iterators = open_all(config.set(streams=4), 2)
    step(iterators)
    (whole,) = open_all(config.set(streams=4), 1)
    assert error_of(lambda: whole.set_state(iterators[0].get_state())) == (
        "this process needs streams [2, 3], the position has [0, 1].\n"
        "  Each process knows the position of its own streams: join them all with merge_states."
    )


def test_position_of_another_input_is_refused_with_the_differences(write):
    def config(documents, **fields):
        source = JsonLines.Config(files=[write("a.jsonl", [{"text": text} for text in documents])])
        return TextInput.Config(batch_size=1, seq_len=4, dataset=TextDataset.Config(source=source), **fields)

    (old,) = open_all(config(["abc", "def"]), 1)
    next(old)
    state = old.get_state()
    (new,) = open_all(config(["abc", "def", "ghi"], seed=1).set(seq_len=8), 1)
    assert error_of(lambda: new.set_state(state)) == (
        "this position belongs to another input:\n"
        "  seq_len was 4, is 8\n"
        "  dataset.documents was 2, is 3\n"
        "  dataset.bytes was 32, is 48\n"
        "  dataset.packer was 'ConcatPacker.Config(seq_len=4, pad_id=258)', "
        "is 'ConcatPacker.Config(seq_len=8, pad_id=258)'\n"
        "  dataset.seed was 0, is 1\n"
        "  Go on with the data and settings of then, or decide what the position means now:\n"
        "  --data-change keep, restart or skip-to-step (in Python: run(data_change=...))."
    )


@pytest.mark.parametrize("state", [{}, {"step": 3}, None, [1]])
def test_what_is_no_position_is_refused(config, state):
    (iterator,) = open_all(config, 1)
    assert error_of(lambda: iterator.set_state(state)) == (
        f"not a position of an input: {state!r}. Pass what get_state() returned."
    )


def test_refused_position_leaves_the_iterator_where_it_was(config):
    first, second = open_all(config, 1) + open_all(config, 1)
    next(first)
    next(second)
    error_of(lambda: first.set_state({}))
    assert_equal(next(first), next(second))


def test_positions_of_different_steps_are_not_joined(config):
    first, second = open_all(config, 2)
    next(first)
    assert error_of(lambda: merge_states([first.get_state(), second.get_state()])) == (
        "positions of different runs or steps cannot be joined: step 1 and 0."
    )


@pytest.mark.parametrize("prefetch", [0, 2])
def test_error_in_the_data_comes_at_its_place_and_again_at_every_further_call(write, prefetch):
    file = write("a.jsonl", [{"text": "abc"}, {"text": None}])
    dataset = TextDataset.Config(source=JsonLines.Config(files=[file]), shuffle=False)
    with TextInput.Config(batch_size=1, seq_len=4, dataset=dataset, prefetch=prefetch).build().iterator() as iterator:
        start = iterator.get_state()
        next(iterator)
        message = (
            f"{file}:2: field 'text' is null. Expected text, or a list of token ids.\n"
            "  To leave out what is bad: dataset.on_bad_document=skip"
        )
        assert [error_of(lambda: next(iterator)) for _ in range(3)] == [message] * 3
        iterator.set_state(start)
        assert next(iterator)["tokens"].tolist() == [[*b"abc", 257]]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_closed_iterator_says_so(config, prefetch):
    iterator = config.set(prefetch=prefetch).build().iterator()
    next(iterator)
    iterator.close()
    iterator.close()
    for call in (lambda: next(iterator), iterator.get_state):
        with pytest.raises(ValueError, match=r"^this iterator is closed\.$"):
            call()


def test_iterator_forgotten_leaves_no_thread(config):
    before = set(threading.enumerate())  # Those of other tests may end in between.
    iterator = config.set(prefetch=2).build().iterator()
    next(iterator)
    (own,) = set(threading.enumerate()) - before
    del iterator
    gc.collect()
    assert not own.is_alive()


def test_program_that_does_not_close_its_iterator_ends_quietly():
    program = (
        "from dovetail.data import *\n"
        "data = TextDataset.Config(source=ShippedCorpus.Config())\n"
        "iterator = iter(TextInput.Config(batch_size=2, seq_len=8, dataset=data).build())\n"
        "print(next(iterator)['tokens'].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("(2, 8)\n", "")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_that_are_made_ahead_and_held_change_neither_batches_nor_positions(config, prefetch):
    config = config.set(streams=4, prefetch=prefetch)
    plain, held = iter(config.set(prefetch=0).build()), iter(config.build())
    for number in range(12):
        if number % 4 == 1:
            assert held.left(3) == 3
        assert held.get_state() == plain.get_state()
        assert_equal(next(held), next(plain))
    assert held.left(2) == 2
    position = plain.get_state()
    want = next(plain)
    held.set_state(position)  # What was held is of another place.
    assert_equal(next(held), want)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_end_and_an_error_are_known_ahead_and_come_after_what_is_held(tmp_path, prefetch):
    lines = [json.dumps({"text": "x" * 15})] * 10
    (tmp_path / "good").write_text("\n".join(lines))
    (tmp_path / "bad").write_text("\n".join([*lines[:6], "{", *lines[7:]]))

    def reading(name, **fields):
        dataset = TextDataset.Config(source=JsonLines.Config(files=[str(tmp_path / name)]), shuffle=False, **fields)
        return iter(TextInput.Config(batch_size=2, seq_len=16, dataset=dataset, prefetch=prefetch).build())

    ends = reading("good", epochs=1)
    assert [ends.left(4), ends.left(9), ends.left(2)] == [4, 5, 2]
    assert isinstance(ends.next_error, StopIteration)
    assert len(list(ends)) == 5
    assert ends.left(3) == 0
    broken = reading("bad")
    assert next(broken) is not None
    assert broken.left(3) == 2
    assert isinstance(broken.next_error, DataError)
    for held in (2, 1):
        assert broken.left(3) == held
        next(broken)
    with pytest.raises(DataError, match="bad:7: not JSON"):
        next(broken)
    assert broken.get_state()["step"] == 3
