# SPDX-License-Identifier: Apache-2.0
"""What every input must keep: batches as declared, the same for any number of processes, from any position.

A new input joins `INPUTS`, finite or not.
"""

from itertools import islice

import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.data import (
    BestFitPacker,
    ConsecutivePacker,
    DataError,
    GroupPacker,
    JsonLines,
    PreparedDataset,
    ShippedCorpus,
    TextDataset,
    TextInput,
    merge_states,
    spec_of,
)
from support.objectives import Captions, Pairs
from support.prepared import grouped_lines, prepared_corpus

DATA = TextDataset.Config(source=ShippedCorpus.Config(split="held-out"))
PREPARED = PreparedDataset.Config(path=prepared_corpus())
GROUPS = TextDataset.Config(
    source=JsonLines.Config(files=[grouped_lines()], field=("better", "worse"), prompt="question"),
    packer=GroupPacker.Config(),
)
INPUTS = {
    "text": TextInput.Config(batch_size=4, seq_len=16, dataset=DATA),
    "text in streams": TextInput.Config(batch_size=4, seq_len=16, dataset=DATA, streams=2),
    "text, once": TextInput.Config(batch_size=4, seq_len=4096, dataset=DATA.set(epochs=1, shuffle=False)),
    "prepared": TextInput.Config(batch_size=4, seq_len=16, dataset=PREPARED),
    "prepared, in streams": TextInput.Config(batch_size=4, seq_len=16, dataset=PREPARED.set(blocks=1), streams=4),
    "prepared, once": TextInput.Config(
        batch_size=4, seq_len=700, dataset=PREPARED.set(epochs=1, part="held-out", held_out=0.2)
    ),
    "consecutive": TextInput.Config(
        batch_size=4, seq_len=16, dataset=DATA.set(packer=ConsecutivePacker.Config()), streams=4
    ),
    "prepared, consecutive": TextInput.Config(
        batch_size=4, seq_len=16, dataset=PREPARED.set(packer=ConsecutivePacker.Config(), blocks=2), streams=None
    ),
    "truncated": TextInput.Config(
        batch_size=4, seq_len=64, dataset=PREPARED.set(packer=BestFitPacker.Config(window=4, too_long="truncate"))
    ),
    "groups": TextInput.Config(batch_size=4, seq_len=64, dataset=GROUPS, streams=2),
    "groups, once": TextInput.Config(batch_size=4, seq_len=64, dataset=GROUPS.set(epochs=1)),
    "pairs": Pairs.Config(batch_size=4),
    "pairs, some": Pairs.Config(batch_size=4, num_pairs=9),
    "captions, some": Captions.Config(batch_size=4, num_images=6),
}
SOME = 4  # Batches that a test looks at.


def some(iterator):
    return list(islice(iterator, SOME))


def assert_equal(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("name", INPUTS)
def test_batches_are_as_declared_from_the_config_alone(name):
    specs = INPUTS[name].batch_specs()
    for batch in some(INPUTS[name].build()):
        spec = spec_of(batch, specs, name)
        assert 0 < spec.count(batch) <= spec.num_units
        assert spec.rows == 4


@pytest.mark.parametrize("name", INPUTS)
def test_values_are_below_their_bounds(name):
    made = INPUTS[name].build()
    for batch in some(made):
        assert all(batch[field].max() < bound for field, bound in made.bounds().items())


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", INPUTS)
def test_the_parts_of_all_processes_are_the_batch(name, count):
    made = INPUTS[name].build()
    parts = [some(made.iterator(shard_index=i, shard_count=count)) for i in range(count)]
    specs = INPUTS[name].batch_specs()
    assert all(spec_of(batch, specs, name, shards=count) for part in parts for batch in part)
    joined = [
        {field: np.concatenate([b[field] for b in each]) for field in each[0]} for each in zip(*parts, strict=True)
    ]
    assert_equal(joined, some(made))


@pytest.mark.parametrize("name", INPUTS)
def test_it_goes_on_from_a_position_with_any_number_of_processes(name):
    made = INPUTS[name].build()
    wanted = some(made)[1:]
    parts = [made.iterator(shard_index=i, shard_count=2) for i in range(2)]
    for part in parts:
        next(part)
    position = merge_states(part.get_state() for part in parts)
    again = iter(made)
    again.set_state(position)
    assert_equal(list(islice(again, SOME - 1)), wanted)


@pytest.mark.parametrize("name", INPUTS)
def test_it_ends_or_not_as_it_says_and_fills_up_its_last_batch(name):
    made = INPUTS[name].build()
    if made.is_endless:
        assert len(some(made)) == SOME
        return
    *_, last = batches = list(made)
    spec = spec_of(last, INPUTS[name].batch_specs(), name)
    assert len(batches) > 1
    padded = [field for field, each in spec.fields.items() if each.padding is not None]
    assert all((last[field][-1] == spec.fields[field].padding).all() for field in padded)


def test_the_units_of_a_batch_without_padding_do_not_count_it():
    last = list(INPUTS["captions, some"].build())[-1]
    assert INPUTS["captions, some"].batch_specs()[0].count(last) == 2


def test_files_are_those_of_the_tokenizer_or_not_known():
    assert INPUTS["pairs"].build().files() is None
    assert INPUTS["text"].build().files() == {}
    assert INPUTS["text"].shares_files(INPUTS["text in streams"])
    assert not INPUTS["pairs"].shares_files(INPUTS["pairs"])


def test_impossible_shards_of_numbered_rows_are_config_errors():
    made = INPUTS["pairs"].build(path="input")
    for index, count, message in ((2, 2, "there is no shard 2 of 2"), (0, 3, "must divide batch_size")):
        with pytest.raises(ConfigError, match=message):
            made.iterator(shard_index=index, shard_count=count)
    with pytest.raises(DataError, match="belongs to another input"):
        Pairs.Config(batch_size=4, seed=1).build().iterator().set_state(next_state(made))


def next_state(made):
    iterator = iter(made)
    next(iterator)
    return iterator.get_state()
