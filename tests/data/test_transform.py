# SPDX-License-Identifier: Apache-2.0
"""What every transform of documents must keep. A new one joins `TRANSFORMS`."""

import json
from itertools import islice

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.data import (
    BestFitPacker,
    ConcatPacker,
    FillInTheMiddle,
    HuggingFaceTokenizer,
    JsonLines,
    Preparation,
    PreparedDataset,
    TextDataset,
    TextInput,
    Tokens,
    merge_states,
)

NAMES = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>")
FIM = FillInTheMiddle.Config(prefix=NAMES[0], middle=NAMES[1], suffix=NAMES[2])
TRANSFORMS = {"fim": FIM, "fim, always": FIM.set(rate=1.0), "fim, spm": FIM.set(rate=1.0, spm_rate=1.0)}
TEXTS = ["call me ishmael " * (1 + i % 5) + str(i) for i in range(30)]


@pytest.fixture(scope="module")
def tokenizer(hugging_face_file, tmp_path_factory) -> HuggingFaceTokenizer.Config:
    """A byte-level BPE that has the three tokens."""
    library = tokenizers.Tokenizer.from_file(hugging_face_file)
    library.add_special_tokens(list(NAMES))
    file = tmp_path_factory.mktemp("fim") / "tokenizer.json"
    library.save(str(file))
    return HuggingFaceTokenizer.Config(file=str(file), bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="module", params=["text", "prepared"])
def data(request, tokenizer, tmp_path_factory):
    """A data set without transforms, from records and from prepared data."""
    home = tmp_path_factory.mktemp("transform")
    (home / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    files = [str(home / "a.jsonl")]
    if request.param == "text":
        return TextDataset.Config(source=JsonLines.Config(files=files))
    cfg = Preparation.Config(sources=files, tokenizer=tokenizer, to=str(home / "out"), workers=0, block_tokens=30)
    cfg.build().run()
    return PreparedDataset.Config(path=str(home / "out"), blocks=3)


@pytest.mark.parametrize("name", TRANSFORMS)
@given(
    ids=st.lists(st.integers(0, 299), min_size=1, max_size=30), seed=st.integers(0, 2**64 - 1), weighted=st.booleans()
)
def test_the_same_document_and_seed_give_the_same_and_what_is_given_stays(name, tokenizer, ids, seed, weighted):
    transform = TRANSFORMS[name].build(tokenizer=_built(tokenizer), path="transform")
    given = np.array(ids, np.uint16)
    weights = np.arange(len(ids), dtype=np.float32) if weighted else None
    kept = given.copy()
    one, two = (transform.apply(Tokens(given, weights), seed) for _ in range(2))
    assert one.ids.tolist() == two.ids.tolist()
    assert one.ids.dtype == given.dtype
    assert (given == kept).all()
    assert (one.weights is None) == (not weighted)
    assert one.weights is None or (len(one.weights) == len(one.ids) and one.weights.dtype == np.float32)


_TOKENIZERS = {}


def _built(config):
    if config not in _TOKENIZERS:
        _TOKENIZERS[config] = config.build()
    return _TOKENIZERS[config]


@pytest.mark.parametrize("name", TRANSFORMS)
@settings(max_examples=8)
@given(
    packer=st.sampled_from([ConcatPacker.Config(), BestFitPacker.Config(window=2)]),
    streams=st.sampled_from([1, 2, 4]),
    steps=st.integers(0, 10),
)
def test_rows_are_those_of_any_number_of_processes_from_any_position(name, data, tokenizer, packer, streams, steps):
    transformed = data.set(packer=packer, transforms=(TRANSFORMS[name],))
    cfg = TextInput.Config(
        batch_size=4, seq_len=16, dataset=transformed, tokenizer=tokenizer, streams=streams, prefetch=0
    )
    made = cfg.build()
    alone = iter(made)
    before = list(islice(alone, steps))
    position, wanted = alone.get_state(), [each["tokens"].tolist() for each in islice(alone, 3)]
    parts = [made.iterator(shard_index=i, shard_count=2) for i in range(2)]
    for i, part in enumerate(parts):
        for batch in before:
            assert (next(part)["tokens"] == batch["tokens"][2 * i : 2 * i + 2]).all()
    if steps:
        assert merge_states(part.get_state() for part in parts) == position
    again = iter(cfg.build())
    again.set_state(position)
    assert [each["tokens"].tolist() for each in islice(again, 3)] == wanted


@pytest.mark.parametrize("name", TRANSFORMS)
def test_each_epoch_has_choices_of_its_own(name, data, tokenizer):
    transformed = data.set(transforms=(TRANSFORMS[name],), shuffle=False, epochs=2, seq_len=100_000, seed=0)
    ((row, _),) = transformed.build(tokenizer=_built(tokenizer)).rows(0, 1, None)
    documents = np.split(row["tokens"], np.flatnonzero(np.diff(row["segments"])) + 1)[: 2 * len(TEXTS)]
    first, second = ([each.tolist() for each in some] for some in (documents[:30], documents[30:]))
    assert first != second
    assert [sorted(set(a) - {300, 301, 302}) for a in first] == [sorted(set(b) - {300, 301, 302}) for b in second]


def test_a_position_belongs_to_its_transforms(data, tokenizer):
    cfg = TextInput.Config(batch_size=2, seq_len=8, dataset=data, tokenizer=tokenizer, prefetch=0)
    changed = cfg.set_in("dataset.transforms", (FIM,))
    iterator = iter(cfg.build())
    for _ in range(5):
        next(iterator)
    position, notes = changed.build().carry(iterator.get_state())
    assert notes == ["documents that were begun, or packed together and not all given, come again from their start"]
    assert position["streams"]["0"]["token"] == 0
    goes_on = iter(changed.build())
    goes_on.set_state(position)
    next(goes_on)
    assert "transforms" not in cfg.build()._dataset.fingerprint()
