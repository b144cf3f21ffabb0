# SPDX-License-Identifier: Apache-2.0
"""Documents longer than a row: what becomes of them, what is counted, and when it is too much."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data import BestFitPacker, ByteTokenizer, DataError, JsonLines, TextDataset, Tokens
from dovetail.data._run import NumberedReader

PAD = 99
BYTES = ByteTokenizer.Config().build()


def packed(too_long, seq_len, documents, weights=None, window=2):
    packer = BestFitPacker.Config(seq_len=seq_len, pad_id=PAD, window=window, too_long=too_long).build(path="packer")

    def read(number):
        if number == len(documents):
            return None
        own = None if weights is None else np.array(weights[number], np.float32)
        return [Tokens(np.array(documents[number]), own)]

    return list(packer.rows(NumberedReader(read, lambda number: f"a.jsonl:{number + 1}"), None))


def pieces(rows) -> Counter:
    """Tokens of each segment of rows, with the target of its last token, or None."""
    found = Counter()
    for row, _ in rows:
        for segment in range(1, row["segments"].max() + 1):
            inside = row["segments"] == segment
            last = int(row["targets"][inside][-1]) if row["weights"][inside][-1] else None
            found[(*row["tokens"][inside].tolist(), last)] += 1
    return found


documents_and_length = st.tuples(
    st.lists(st.lists(st.integers(0, 98), min_size=1, max_size=20), max_size=15), st.integers(1, 12)
)


@given(documents_and_length)
def test_truncated_documents_keep_their_start_and_the_others_are_whole(case):
    documents, length = case
    rows = packed("truncate", length, documents)
    wanted = Counter((*d[:length], d[length] if len(d) > length else None) for d in documents)
    assert pieces(rows) == wanted
    if rows:
        assert rows[-1][1]["truncated"] == sum(len(d) > length for d in documents)
        assert rows[-1][1]["ended"] == len(documents)


@given(documents_and_length)
def test_documents_that_are_left_out_are_counted_and_the_others_are_whole(case):
    documents, length = case
    documents = [[7], *documents]
    rows = packed("leave-out", length, documents)
    assert pieces(rows) == Counter((*d, None) for d in documents if len(d) <= length)
    last_given = max(i for i, d in enumerate(documents) if len(d) <= length)
    before, in_all = (sum(len(d) > length for d in some) for some in (documents[:last_given], documents))
    assert before <= rows[-1][1]["left_out"] <= in_all  # Those at the end may come with a window that has no row.


def test_a_document_that_is_too_long_can_be_an_error_that_names_it(tmp_path):
    with pytest.raises(DataError) as e:
        packed("error", 4, [[1], [1] * 4, [1] * 5])
    assert str(e.value) == (
        "a.jsonl:3: has 5 tokens, more than a row (seq_len=4), and too_long is 'error'.\n"
        "  Use longer rows, or another too_long."
    )
    (tmp_path / "b.jsonl").write_text('{"text": "abc"}\n{"text": "abcd"}\n')
    source = JsonLines.Config(files=[f"{tmp_path}/b.jsonl"])
    packer = BestFitPacker.Config(too_long="error")
    data = TextDataset.Config(source=source, packer=packer, seq_len=4, seed=0, shuffle=False).build(tokenizer=BYTES)
    with pytest.raises(DataError, match=r"b\.jsonl:2: has 5 tokens, more than a row"):
        list(data.rows(0, 1, None))


def test_a_document_of_which_no_target_is_left_is_left_out_and_counted():
    documents = [[1, 2, 3, 4], [5, 6, 7, 8], [9]]
    weights = [[0, 0, 0, 1], [0, 1, 0, 1], [1]]
    rows = packed("truncate", 2, documents, weights)
    assert pieces(rows) == Counter({(5, 6, None): 1, (9, None): 1})
    assert {name: rows[-1][1][name] for name in ("masked", "truncated", "ended")} == {
        "masked": 1,
        "truncated": 1,
        "ended": 3,
    }


@pytest.mark.parametrize("count", [1, 3])
def test_to_leave_out_all_is_an_error_and_no_empty_training(count):
    with pytest.raises(DataError) as e:
        packed("leave-out", 4, [[1] * 5] * count)
    assert str(e.value) == (
        f"packer: all of the documents are left out: {count} are longer than a row (seq_len=4), and of 0 nothing is "
        "left that counts as a target.\n  Use longer rows, or another too_long."
    )


def test_data_without_end_of_which_all_is_left_out_is_an_error():
    packer = BestFitPacker.Config(seq_len=4, pad_id=PAD, too_long="leave-out").build(path="packer")
    with pytest.raises(DataError, match="packer: 10,000 in a row of the documents are left out"):
        next(packer.rows(NumberedReader(lambda number: [Tokens(np.ones(5, int))]), None))


def test_positions_from_before_there_were_counts_go_on():
    documents = [[n] * (1 + n % 5) for n in range(40)]
    packer = BestFitPacker.Config(seq_len=6, pad_id=PAD, window=3).build()

    def rows(state):
        reader = NumberedReader(lambda n: [Tokens(np.array(documents[n]))] if n < len(documents) else None)
        return list(packer.rows(reader, state))

    whole = rows(None)
    for number, (_, state) in enumerate(whole, 1):
        old = {name: state[name] for name in ("document", "row")}
        rest = rows(old)
        assert [row["tokens"].tolist() for row, _ in rest] == [row["tokens"].tolist() for row, _ in whole[number:]]
        assert [s["ended"] for _, s in rest] == [s["ended"] - state["ended"] for _, s in whole[number:]]
