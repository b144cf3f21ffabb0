# SPDX-License-Identifier: Apache-2.0
"""What is said of an input that is too slow: once, with figures, where there is something to do."""

from dovetail.data import NumberedInput, PreparedDataset, ShippedCorpus, TextDataset, TextInput
from dovetail.train._data_wait import DataWait
from dovetail.train._goodput import Goodput
from support.objectives import Pairs
from support.prepared import prepared_corpus

SLOW = {"data_wait": 0.8, "tokens_per_second": 3e5}


def wait_of(seconds: float) -> DataWait:
    goodput = Goodput()
    goodput.seconds["data_wait"] = seconds
    return DataWait(goodput)


def test_a_slow_input_is_told_of_once_with_what_to_do():
    wait = wait_of(10.0)
    assert wait.advice({}, "token", "Do it.") == wait.advice(SLOW | {"data_wait": 0.05}, "token", "Do it.") == ""
    assert wait.advice(SLOW, "token", "Do it.") == (
        "This input makes 0.3 M tokens/s, the step could take 1.5 M. Do it."
    )
    assert wait.advice(SLOW, "token", "Do it.") == ""


def test_nothing_is_said_of_a_moment_or_where_nothing_can_be_done():
    assert wait_of(1.0).advice(SLOW, "token", "Do it.") == ""
    assert wait_of(10.0).advice(SLOW, "token", "") == ""


def test_an_input_knows_what_would_make_it_faster():
    raw = TextDataset.Config(source=ShippedCorpus.Config())
    assert "dovetail data prepare" in TextInput.Config(batch_size=1, seq_len=8, dataset=raw).build().when_slow()
    prepared = PreparedDataset.Config(path=prepared_corpus())
    assert "num_workers" in TextInput.Config(batch_size=1, seq_len=8, dataset=prepared).build().when_slow()
    numbered: NumberedInput = Pairs.Config(batch_size=4).build()
    assert numbered.when_slow() == ""
