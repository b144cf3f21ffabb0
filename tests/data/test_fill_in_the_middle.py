# SPDX-License-Identifier: Apache-2.0
"""Fill-in-the-middle: what is moved where, undone by hand; how often; and which tokens it needs."""

import collections

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data import ByteTokenizer, FillInTheMiddle, HuggingFaceTokenizer, Tokens

NAMES = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")


@pytest.fixture(scope="module")
def tokenizer(hugging_face_file, tmp_path_factory):
    library = tokenizers.Tokenizer.from_file(hugging_face_file)
    library.add_special_tokens(list(NAMES))
    file = tmp_path_factory.mktemp("fim") / "tokenizer.json"
    library.save(str(file))
    return HuggingFaceTokenizer.Config(file=str(file), bos_token="<s>", eos_token="</s>").build()


def undone(ids, special) -> tuple[list, str]:
    """The document that was, and how it was changed: read from left to right, one token at a time."""
    prefix, middle, suffix, bos, eos = special
    if prefix not in ids:
        return list(ids), "none"
    rest, head, tail = list(ids), [], []
    if rest[0] == bos:
        head = [rest.pop(0)]
    if rest[-1] == eos:
        tail = [rest.pop()]
    assert rest.pop(0) == prefix
    at, end = rest.index(suffix), rest.index(middle)
    if at:  # PSM; or SPM, which starts with the suffix at once.
        return [*head, *rest[:at], *rest[end + 1 :], *rest[at + 1 : end], *tail], "psm"
    return [*head, *rest[end + 1 :], *rest[1:end], *tail], "spm or psm"


documents = st.lists(st.integers(3, 299), min_size=1, max_size=20)


@given(documents, st.integers(0, 2**64 - 1), st.booleans(), st.booleans())
def test_undone_it_gives_the_document_back_with_bos_first_and_eos_last(tokenizer, ids, seed, bos, eos):
    special = [tokenizer.vocabulary()[name] for name in (*NAMES, "<s>", "</s>")]
    ids = [0] * bos + ids + [1] * eos
    for spm_rate in (0.0, 1.0):
        transform = FillInTheMiddle.Config(rate=1.0, spm_rate=spm_rate).build(tokenizer=tokenizer)
        weights = np.array([i + 1 for i in range(len(ids))], np.float32)
        found = transform.apply(Tokens(np.array(ids, np.uint16), weights), seed)
        assert undone(found.ids.tolist(), special)[0] == ids
        assert (found.ids[0] == 0) == bos
        assert (found.ids[-1] == 1) == eos
        # Each token has brought its weight, and each new one has that of the token after it.
        assert found.weights is not None
        own = [w for t, w in zip(found.ids.tolist(), found.weights.tolist(), strict=True) if t not in special[:3]]
        assert sorted(own) == weights.tolist()
        new = [i for i, t in enumerate(found.ids.tolist()) if t in special[:3]]
        for i in new:
            after = found.weights[i + 1] if i + 1 < len(found.ids) else weights[len(ids) - 1]
            assert found.weights[i] == after


def test_spm_has_the_suffix_first_and_the_prefix_with_the_middle(tokenizer):
    prefix, middle, suffix = (tokenizer.vocabulary()[name] for name in NAMES)
    document = Tokens(np.arange(3, 23))
    for spm_rate in (0.0, 1.0):
        transform = FillInTheMiddle.Config(rate=1.0, spm_rate=spm_rate).build(tokenizer=tokenizer)
        found = transform.apply(document, seed=5).ids.tolist()
        if spm_rate:
            assert found[:2] == [prefix, suffix]
            end = found.index(middle)
            assert found[end + 1 :] + found[2:end] == document.ids.tolist()
        else:
            assert found[0] == prefix
            assert found.index(suffix) < found.index(middle)


def test_rates_are_kept_and_cuts_are_anywhere(tokenizer):
    transform = FillInTheMiddle.Config(rate=0.3, spm_rate=0.25).build(tokenizer=tokenizer)
    prefix, middle, suffix = (tokenizer.vocabulary()[name] for name in NAMES)
    document, counts, lengths = Tokens(np.arange(3, 13)), collections.Counter(), collections.Counter()
    for seed in range(4000):
        found = transform.apply(document, seed).ids.tolist()
        kind = "none" if prefix not in found else "spm" if found[1] == suffix and found.index(middle) > 2 else "psm"
        counts[kind] += 1
        if kind == "psm":
            lengths[len(found) - 1 - found.index(middle)] += 1
    assert counts["none"] / 4000 == pytest.approx(0.7, abs=0.03)  # 4 standard deviations.
    # Of two cuts at 11 places, both are the same with probability 1/11: the middle is empty.
    total = sum(lengths.values())
    assert lengths[0] / total == pytest.approx(1 / 11, abs=0.05)
    assert set(lengths) == set(range(11))


def test_a_rate_of_zero_changes_nothing(tokenizer):
    transform = FillInTheMiddle.Config(rate=0.0).build(tokenizer=tokenizer)
    document = Tokens(np.arange(3, 13))
    assert all(transform.apply(document, seed) is document for seed in range(50))


def test_a_document_of_special_tokens_alone_stays(tokenizer):
    transform = FillInTheMiddle.Config(rate=1.0).build(tokenizer=tokenizer)
    assert transform.apply(Tokens(np.array([0, 1])), 3).ids.tolist() == [0, 1]


def test_tokens_that_are_not_there_are_config_errors_that_name_near_ones(tokenizer):
    with pytest.raises(ConfigError) as e:
        FillInTheMiddle.Config(middle="<fim_middle>").build(tokenizer=tokenizer, path="dataset.transforms[0]")
    assert str(e.value) == (
        "dataset.transforms[0].middle: the tokenizer has no token '<fim_middle>'. It has '<|fim_middle|>', "
        "'<|fim_prefix|>', '<|fim_suffix|>'.\n"
        "  Name one that it has, or add one to it: fill-in-the-middle needs three that text never has."
    )
    with pytest.raises(ConfigError, match=r"prefix: the tokenizer has no token '<\|fim_prefix\|>'\.\n"):
        FillInTheMiddle.Config().build(tokenizer=ByteTokenizer.Config().build())
    with pytest.raises(ConfigError, match=r"are '<\|fim_prefix\|>', '<\|fim_prefix\|>' and .*Name three tokens\."):
        FillInTheMiddle.Config(middle=NAMES[0]).build(tokenizer=tokenizer)
    with pytest.raises(ConfigError, match=r"rate: is 1\.5\. Use a number from 0 to 1\."):
        FillInTheMiddle.Config(rate=1.5).build(tokenizer=tokenizer)
