# SPDX-License-Identifier: Apache-2.0
"""Packing, against references that share no code with it, and by what must hold for any documents."""

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data import FIELDS, BestFitPacker, ConcatPacker, ConsecutivePacker, Packer, Tokens
from dovetail.data._fitting import Piece
from dovetail.data._packing import best_fit, make_row
from dovetail.data._run import NumberedReader, Reader, Run

PAD = 99
document_lists = st.lists(st.lists(st.integers(0, 98), max_size=25), max_size=12)
lengths = st.integers(1, 12)
packers = [ConcatPacker.Config(), BestFitPacker.Config(window=1), BestFitPacker.Config(window=3)]
all_packers = [
    *packers,
    ConsecutivePacker.Config(),
    *(BestFitPacker.Config(window=2, too_long=what) for what in ("truncate", "leave-out")),
]


def weights_of(document) -> list[float]:
    """Weights that follow from a document, so that no list of them needs to be handed around."""
    return [float((7 * i + len(document)) % 3) / 2 for i in range(len(document))]


def tokens(document, weighted: bool) -> Tokens:
    weights = np.array(weights_of(document), np.float32) if weighted else None
    return Tokens(np.array(document, np.int32), weights)


def reader(documents, weighted=False):
    return NumberedReader(lambda number: [tokens(documents[number], weighted)] if number < len(documents) else None)


class Runs(Reader):
    """Documents in runs of some: a place is the number of the run, and of the document in it."""

    def __init__(self, documents, size: int, weighted: bool = False) -> None:
        self._runs = [documents[i : i + size] for i in range(0, len(documents), size)]
        self._weighted = weighted

    @property
    def first(self):
        return 0, 0

    def read(self, place):
        number, skip = place
        if number == len(self._runs):
            return None
        documents = self._runs[number]
        tokens = np.array([token for document in documents[skip:] for token in document], np.uint16)
        after = [(number, skip + n) for n in range(len(documents) - skip)] + [(number + 1, 0)]
        weights = [w for document in documents[skip:] for w in weights_of(document)]
        ends = np.cumsum(list(map(len, documents[skip:])))
        return Run(tokens, ends, after.__getitem__, np.array(weights, np.float32) if self._weighted else None)


def pack(config: Packer.Config, seq_len: int, documents, state=None, *, weighted=False) -> list:
    packer: Packer = config.set(seq_len=seq_len, pad_id=PAD).build()
    return list(packer.rows(reader(documents, weighted), state))


def as_lists(row) -> dict:
    return {name: values.tolist() for name, values in row.items()}


def row_reference(pieces, seq_len: int, *, weighted=False, positions_go_on=False) -> dict:
    """A row, one token at a time; a piece is (document, start, stop)."""
    row = {name: [] for name in FIELDS}
    for segment, (document, start, stop) in enumerate(pieces, 1):
        for i in range(start, stop):
            is_last = i + 1 == len(document)
            row["tokens"].append(document[i])
            row["targets"].append(PAD if is_last else document[i + 1])
            row["weights"].append(0.0 if is_last else weights_of(document)[i + 1] if weighted else 1.0)
            row["segments"].append(segment)
            row["positions"].append(i if positions_go_on else i - start)
    missing = seq_len - len(row["tokens"])
    for name, filler in {"tokens": PAD, "targets": PAD, "weights": 0.0, "segments": 0, "positions": 0}.items():
        row[name] += [filler] * missing
    return row


def concat_reference(documents, seq_len: int, **how) -> list[dict]:
    """All tokens in a line, cut into rows; neighbours of one document make a piece."""
    line = [(number, i) for number, document in enumerate(documents) for i in range(len(document))]
    rows = []
    for start in range(0, len(line), seq_len):
        places = line[start : start + seq_len]
        pieces = []
        for number in dict.fromkeys(number for number, _ in places):
            inside = [i for n, i in places if n == number]
            pieces.append((documents[number], inside[0], inside[-1] + 1))
        rows.append(row_reference(pieces, seq_len, **how))
    return rows


def best_fit_reference(sizes, capacity: int) -> list[list[int]]:
    """Best fit by trying every group for every item, longest first."""
    groups: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        free = [capacity - sum(sizes[i] for i in group) for group in groups]
        fitting = [(space, number) for number, space in enumerate(free) if space >= sizes[index]]
        if fitting:
            groups[min(fitting)[1]].append(index)
        else:
            groups.append([index])
    return [sorted(group) for group in groups]


def best_fit_rows_reference(documents, seq_len: int, window: int, **how) -> list[dict]:
    rows, number = [], 0
    while number < len(documents):
        pieces, tokens = [], 0
        while tokens < window * seq_len and number < len(documents):
            document = documents[number]
            cuts = [*range(0, len(document), seq_len), len(document)]
            pieces += [(document, a, b) for a, b in pairwise(cuts)]
            tokens, number = tokens + len(document), number + 1
        groups = best_fit_reference([b - a for _, a, b in pieces], seq_len)
        groups.sort(key=lambda group: min((pieces[i][1] - pieces[i][2], i) for i in group)[1])
        rows += [row_reference([pieces[i] for i in group], seq_len, **how) for group in groups]
    return rows


@given(document_lists, lengths, st.booleans())
def test_concat_matches_the_reference(documents, seq_len, weighted):
    got = [as_lists(row) for row, _ in pack(ConcatPacker.Config(), seq_len, documents, weighted=weighted)]
    assert got == concat_reference(documents, seq_len, weighted=weighted)


@given(document_lists, lengths, st.booleans())
def test_consecutive_rows_match_the_reference_with_positions_in_the_document(documents, seq_len, weighted):
    got = [as_lists(row) for row, _ in pack(ConsecutivePacker.Config(), seq_len, documents, weighted=weighted)]
    assert got == concat_reference(documents, seq_len, weighted=weighted, positions_go_on=True)
    starts = [token for row in got for token, at in zip(row["tokens"], row["positions"], strict=True) if at == 0]
    assert [token for token in starts if token != PAD] == [document[0] for document in documents if document]


@given(document_lists, lengths, st.integers(1, 4), st.booleans())
def test_best_fit_matches_the_reference(documents, seq_len, window, weighted):
    config = BestFitPacker.Config(window=window)
    got = [as_lists(row) for row, _ in pack(config, seq_len, documents, weighted=weighted)]
    assert got == best_fit_rows_reference(documents, seq_len, window, weighted=weighted)


@given(st.lists(st.integers(1, 20), max_size=40))
def test_best_fit_groups_match_the_reference(sizes):
    got = best_fit(sizes, 20)
    assert sorted(got) == sorted(best_fit_reference(sizes, 20))
    assert sorted(i for group in got for i in group) == list(range(len(sizes)))
    assert all(sum(sizes[i] for i in group) <= 20 for group in got)


def unpack(rows) -> list[list[int]]:
    """The documents of rows in which each document goes on where the row before ended: the weights say so."""
    documents, open_document = [], False
    for row in rows:
        for segment in range(1, row["segments"].max(initial=0) + 1):
            inside = row["segments"] == segment
            if not open_document:
                documents.append([])
            documents[-1] += row["tokens"][inside].tolist()
            open_document = bool(row["weights"][inside][-1])
    assert not open_document
    return documents


@given(document_lists, lengths)
def test_unpacking_what_concat_packed_gives_the_documents_back(documents, seq_len):
    rows = [row for row, _ in pack(ConcatPacker.Config(), seq_len, documents)]
    assert unpack(rows) == [document for document in documents if document]


@pytest.mark.parametrize("config", packers)
@given(document_lists, lengths)
def test_no_token_is_lost_or_doubled_and_each_is_predicted_once(config, documents, seq_len):
    distinct = [[100 * n + i for i in range(len(document))] for n, document in enumerate(documents)]
    rows = [row for row, _ in pack(config, seq_len, distinct)]
    tokens = [token for row in rows for token in row["tokens"][row["segments"] > 0].tolist()]
    assert sorted(tokens) == sorted(token for document in distinct for token in document)
    pairs = [
        (int(token), int(target))
        for row in rows
        for token, target, weight in zip(row["tokens"], row["targets"], row["weights"], strict=True)
        if weight
    ]
    assert sorted(pairs) == sorted(pair for d in distinct for pair in pairwise(d))


@pytest.mark.parametrize("config", [*packers, ConsecutivePacker.Config()])
@given(document_lists, lengths)
def test_each_target_counts_as_much_as_its_document_says(config, documents, seq_len):
    distinct = [[100 * n + i for i in range(len(document))] for n, document in enumerate(documents)]
    found = {
        int(target): float(weight)
        for row, _ in pack(config, seq_len, distinct, weighted=True)
        for target, weight in zip(row["targets"], row["weights"], strict=True)
        if weight
    }
    wanted = {
        token: weight
        for document in distinct
        for token, weight in [*zip(document, weights_of(document), strict=True)][1:]
        if weight
    }
    assert found == wanted


@pytest.mark.parametrize("config", all_packers)
@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 98), min_size=1, max_size=25), max_size=12), lengths)
def test_a_position_counts_the_documents_that_are_over(config, documents, seq_len):
    documents = [[0], *documents]  # One that fits: to leave out all is an error.
    rows, over = pack(config, seq_len, documents), 0
    for row, state in rows:
        segments = row["segments"][row["segments"] > 0]
        lasts = row["weights"][: len(segments)][np.diff(segments, append=0) != 0]
        # The last token of a document has no target; only one that is cut short has another after it.
        over += len(lasts) if state.get("truncated") is not None else int((lasts == 0).sum())
        assert state["ended"] - state.get("left_out", 0) == over
    if rows and "left_out" not in rows[-1][1]:
        assert over == len(documents)


@pytest.mark.parametrize("config", packers)
@given(document_lists, lengths)
def test_within_a_row_a_document_is_in_order_and_positions_and_segments_count_it(config, documents, seq_len):
    distinct = [[100 * n + i for i in range(len(document))] for n, document in enumerate(documents)]
    for row, _ in pack(config, seq_len, distinct):
        used = int((row["segments"] > 0).sum())
        assert 0 < used <= seq_len
        assert (row["segments"][used:] == 0).all()
        assert set(row["segments"][:used].tolist()) == set(range(1, row["segments"].max() + 1))
        for segment in range(1, row["segments"].max() + 1):
            inside = row["segments"] == segment
            assert (np.diff(row["tokens"][inside]) == 1).all()
            assert row["positions"][inside].tolist() == list(range(inside.sum()))


@pytest.mark.parametrize("config", packers)
@given(document_lists, lengths)
def test_weight_is_zero_exactly_where_the_target_is_not_of_the_same_document(config, documents, seq_len):
    for row, _ in pack(config, seq_len, documents):
        assert set(row["weights"].tolist()) <= {0.0, 1.0}
        assert (row["targets"][row["weights"] == 0] == PAD).all()
        same = (row["segments"][:-1] == row["segments"][1:]) & (row["segments"][:-1] > 0)
        assert (row["weights"][:-1] == same).all()
        assert (row["targets"][:-1][same] == row["tokens"][1:][same]).all()


@given(st.lists(st.lists(st.integers(0, 98), max_size=30), max_size=12), lengths)
def test_best_fit_cuts_only_documents_longer_than_a_row(documents, seq_len):
    whole = sorted(tuple(document) for document in documents if 0 < len(document) <= seq_len)
    pieces = []
    for row, _ in pack(BestFitPacker.Config(window=4), seq_len, documents):
        for segment in range(1, row["segments"].max() + 1):
            inside = row["segments"] == segment
            pieces.append(tuple(row["tokens"][inside].tolist()))
    for document in whole:
        pieces.remove(document)
    assert sum(map(len, pieces)) == sum(len(document) for document in documents if len(document) > seq_len)


@pytest.mark.parametrize("config", all_packers)
@settings(max_examples=40)
@given(document_lists, lengths)
def test_rows_go_on_from_the_position_that_came_with_any_row(config, documents, seq_len):
    documents = [[0], *documents]
    rows = pack(config, seq_len, documents)
    for number, (_, state) in enumerate(rows, 1):
        rest = pack(config, seq_len, documents, state)
        assert [as_lists(row) for row, _ in rest] == [as_lists(row) for row, _ in rows[number:]]
        assert [after for _, after in rest] == [after for _, after in rows[number:]]


@pytest.mark.parametrize("config", packers)
def test_packer_reads_no_further_than_it_must(config):
    asked = []

    def read(number):
        asked.append(number)
        return [Tokens(np.arange(4))]

    packer = config.set(seq_len=8, pad_id=PAD).build()
    list(islice(packer.rows(NumberedReader(read), None), 3))
    assert max(asked) <= 12


@given(
    documents=st.lists(st.lists(st.integers(0, 98), min_size=1, max_size=25), max_size=30),
    seq_len=lengths,
    weighted=st.booleans(),
)
@settings(max_examples=40)
@pytest.mark.parametrize("config", all_packers)
def test_rows_are_the_same_for_documents_one_by_one_and_in_runs(config, documents, seq_len, weighted):
    documents = [[0], *documents]
    wanted = [as_lists(row) for row, _ in pack(config, seq_len, documents, weighted=weighted)]
    packer = config.set(seq_len=seq_len, pad_id=PAD).build()
    for size in (2, 7, 30):
        runs = Runs(documents, size, weighted)
        rows = list(packer.rows(runs, None))
        assert [as_lists(row) for row, _ in rows] == wanted
        assert all({name: v.dtype for name, v in row.items()} == FIELDS for row, _ in rows)
        for number in {0, len(rows) // 2, len(rows) - 1} & set(range(len(rows))):
            again = list(packer.rows(runs, rows[number][1]))
            assert [as_lists(row) for row, _ in again] == wanted[number + 1 :]


def test_no_documents_give_no_rows():
    assert all(pack(config, 4, []) == pack(config, 4, [[], []]) == [] for config in packers)


def test_fields_have_their_types_and_lengths():
    row = make_row([Piece(np.array([7, 8]), 9), Piece(np.array([1]), None)], seq_len=5, pad_id=PAD)
    assert {name: values.dtype for name, values in row.items()} == FIELDS
    assert as_lists(row) == {
        "tokens": [7, 8, 1, PAD, PAD],
        "targets": [8, 9, PAD, PAD, PAD],
        "weights": [1.0, 1.0, 0.0, 0.0, 0.0],
        "segments": [1, 1, 2, 0, 0],
        "positions": [0, 1, 0, 0, 0],
    }


def test_long_and_short_documents_are_spread_over_a_window():
    rng = np.random.default_rng(0)
    documents = [list(range(n)) for n in rng.permutation([60] * 100 + [3] * 300)]
    rows = [row for row, _ in pack(BestFitPacker.Config(window=200), 64, documents)]
    long = [bool((row["positions"] == 59).any()) for row in rows]
    assert 0.3 < np.mean(np.flatnonzero(long)) / len(rows) < 0.7


def test_window_below_one_is_a_config_error():
    with pytest.raises(ConfigError) as e:
        pack(BestFitPacker.Config(window=0), 4, [])
    assert str(e.value) == "BestFitPacker.Config.window: is 0. Use 1 or more rows."
