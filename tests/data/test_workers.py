# SPDX-License-Identifier: Apache-2.0
"""Worker processes: they change nothing about the batches. Each takes seconds to start, so these tests are few."""

import numpy as np
import pytest

from dovetail.data import DataError, JsonLines, Mixture, ShippedCorpus, TextDataset, TextInput


def test_batches_and_positions_do_not_depend_on_the_number_of_workers():
    part = TextDataset.Config(source=ShippedCorpus.Config(split="held-out"))
    dataset = Mixture.Config(parts={"a": part, "b": part}, weights={"a": 1.0, "b": 3.0})
    config = TextInput.Config(batch_size=4, seq_len=32, streams=2, dataset=dataset)
    alone = config.build().iterator()
    expected = [(next(alone), alone.get_state()) for _ in range(12)]
    alone.close()
    state = None
    for workers, steps in ((1, range(0, 4)), (2, range(4, 8)), (0, range(8, 10)), (1, range(10, 12))):
        with config.set(num_workers=workers).build().iterator() as iterator:
            if state is not None:
                iterator.set_state(state)
            for step in steps:
                batch, (want, position) = next(iterator), expected[step]
                for name in want:
                    np.testing.assert_array_equal(batch[name], want[name])
                    assert batch[name].flags.owndata
                    assert batch[name].dtype == want[name].dtype
                assert iterator.get_state() == position
            state = iterator.get_state()


def test_end_of_the_data_and_a_new_start_pass_through_a_worker():
    dataset = TextDataset.Config(source=ShippedCorpus.Config(split="held-out"), epochs=1, shuffle=False)
    config = TextInput.Config(batch_size=64, seq_len=512, dataset=dataset)
    expected = [batch["weights"].sum() for batch in config.build()]
    with config.set(num_workers=1).build().iterator() as iterator:
        assert [batch["weights"].sum() for batch in iterator] == expected
        assert list(iterator) == []


def test_error_in_a_worker_is_that_of_the_data_at_every_call(write):
    file = write("a.jsonl", [{"text": "abc"}, {"text": [1, 300]}])
    dataset = TextDataset.Config(source=JsonLines.Config(files=[file]), shuffle=False)
    config = TextInput.Config(batch_size=1, seq_len=4, dataset=dataset, num_workers=1)
    with config.build().iterator() as iterator:
        next(iterator)
        for _ in range(2):
            with pytest.raises(DataError) as e:
                next(iterator)
            assert str(e.value) == (
                f"{file}:2: token 1 of 2 is 300, outside the vocabulary of 259.\n"
                "  Was it made with another tokenizer?\n  To leave out what is bad: dataset.on_bad_document=skip"
            )
