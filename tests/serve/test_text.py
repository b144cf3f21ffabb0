# SPDX-License-Identifier: Apache-2.0
"""Text as it comes: the same as `decode` of all tokens, never half a character, never the start of a stop string."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.serve import TextStream
from dovetail.serve._request import RequestError
from dovetail.serve._text import token_text, token_texts
from support.small_tokenizers import KINDS, TEXTS, small_tokenizer

BROKEN = "\N{REPLACEMENT CHARACTER}"
STABLE = [kind for kind in KINDS if kind != "fallback"]  # Whose `decode` never takes back what it said of fewer ids.


def pushed(stream, ids, cuts=()):
    """What a stream shows of ids in parts, with the end."""
    places = [0, *sorted({cut % (len(ids) + 1) for cut in cuts}), len(ids)]
    return [stream.push(ids[a:b]) for a, b in itertools.pairwise(places)] + [stream.finish()]


def single(stream, ids):
    return [stream.push([each]) for each in ids] + [stream.finish()]


ids_and_cuts = (st.lists(st.integers(0, 10**6), max_size=24), st.lists(st.integers(0, 24), max_size=6))


@pytest.mark.parametrize("kind", STABLE)
@settings(max_examples=80)
@given(numbers=ids_and_cuts[0], cuts=ids_and_cuts[1])
def test_parts_of_any_ids_make_the_text_of_all(kind, numbers, cuts):
    tokenizer = small_tokenizer(kind)
    ids = [number % (tokenizer.vocab_size + 3) for number in numbers]  # The model may have room for more tokens.
    want = tokenizer.decode([i for i in ids if i < tokenizer.vocab_size])
    assert "".join(pushed(TextStream(tokenizer), ids, cuts)) == want


@settings(max_examples=150)
@given(numbers=ids_and_cuts[0], cuts=ids_and_cuts[1])
def test_where_decode_takes_text_back_what_was_shown_stays(numbers, cuts):
    tokenizer = small_tokenizer("fallback")
    ids = [number % tokenizer.vocab_size for number in numbers]
    text = "".join(pushed(TextStream(tokenizer), ids, cuts))
    assert text == "".join(single(TextStream(tokenizer), ids))  # Whatever the parts.
    whole = tokenizer.decode(ids)
    if BROKEN not in whole:
        assert text == whole


def test_a_run_of_bytes_that_breaks_keeps_the_characters_before():
    tokenizer = small_tokenizer("fallback")
    a, half = 3 + ord("A"), 3 + 0xE2
    assert tokenizer.decode([a, half]) == BROKEN * 2
    assert single(TextStream(tokenizer), [a, half]) == ["A", "", BROKEN]


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.sampled_from("".join(TEXTS)), max_size=20), cuts=ids_and_cuts[1])
@settings(max_examples=40)
def test_real_text_is_never_shown_with_half_a_character(kind, text, cuts):
    tokenizer = small_tokenizer(kind)
    ids = tokenizer.encode(text).tolist()
    parts = pushed(TextStream(tokenizer), ids, cuts)
    assert "".join(parts) == tokenizer.decode(ids)
    assert BROKEN not in "".join(parts)
    assert "".join(single(TextStream(tokenizer), ids)[:-1]) == tokenizer.decode(ids)  # Nothing is held to the end.


@pytest.mark.parametrize("kind", ["bytes", "byte_level", "fallback", "sentence_piece"])
@pytest.mark.parametrize("text", TEXTS)
def test_ids_that_end_within_a_character_end_with_the_replacement_character(kind, text):
    tokenizer = small_tokenizer(kind)
    ids = tokenizer.encode(text).tolist()
    for end in range(len(ids)):
        stream = TextStream(tokenizer)
        shown, rest = stream.push(ids[:end]), stream.finish()
        assert text.lstrip("▁").startswith(shown)
        assert rest == "" or set(rest) == {BROKEN}
        if kind != "fallback":
            assert shown + rest == tokenizer.decode(ids[:end])


def test_words_keep_the_space_before_them_and_special_tokens_are_not_shown():
    for kind in ("fallback", "metaspace", "sentence_piece"):
        tokenizer = small_tokenizer(kind)
        ids = tokenizer.encode("the lazy dog").tolist()
        middle = [*ids[:1], tokenizer.bos_id, tokenizer.bos_id, *ids[1:], tokenizer.eos_id]
        assert "".join(single(TextStream(tokenizer), [tokenizer.bos_id, *middle])) == "the lazy dog"


def test_a_text_that_never_makes_sense_is_shown_as_it_comes():
    tokenizer = small_tokenizer("byte_level")
    bad = next(i for i in range(tokenizer.vocab_size) if token_text(tokenizer, i).bytes == b"\xff")
    parts = single(TextStream(tokenizer), [bad] * 600)
    assert "".join(parts) == BROKEN * 600
    assert max(map(len, parts)) <= 5


def reference(text, stops):
    """Letter by letter: the text before the first stop string that is complete, and that string."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@settings(max_examples=300)
@given(
    text=st.text("ab€", max_size=16),
    stops=st.lists(st.text("ab€", min_size=1, max_size=5), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=6),
    include=st.booleans(),
)
def test_stop_strings_end_a_text_wherever_its_parts_end(text, stops, cuts, include):
    tokenizer = small_tokenizer("bytes")
    stream = TextStream(tokenizer, stops, include_stop=include)
    parts = pushed(stream, tokenizer.encode(text).tolist(), cuts)
    want, stopped = reference(text, stops)
    assert stream.stopped == stopped
    assert "".join(parts) == want + (stopped if include and stopped else "")


@settings(max_examples=100)
@given(text=st.text("ab", max_size=16), stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_only_what_may_become_a_stop_string_is_held_back(text, stops):
    stream, shown = TextStream(small_tokenizer("bytes"), stops), ""
    for end, letter in enumerate(text, 1):
        shown += stream.push([ord(letter)])
        before, stopped = reference(text[:end], stops)
        if stopped:
            assert shown == before
            break
        held = max(k for k in range(end + 1) if any(stop[:k] == text[end - k : end] for stop in stops) or k == 0)
        assert shown == text[: end - held]


def test_stop_strings_are_found_within_and_across_tokens():
    tokenizer = small_tokenizer("byte_level")
    ids = tokenizer.encode("the quick brown fox 漢字 👍🏽 jumps").tolist()
    for stop, want in ((" 漢", "the quick brown fox"), ("👍", "the quick brown fox 漢字 "), ("k br", "the quic")):
        stream = TextStream(tokenizer, ["never", stop])
        assert "".join(single(stream, ids)) == want
        assert stream.stopped == stop
    with pytest.raises(RequestError, match="a stop string is empty"):
        TextStream(tokenizer, ["a", ""])


def test_finish_shows_what_was_held_once():
    stream = TextStream(small_tokenizer("bytes"), ["END"])
    assert stream.push(b"the EN") == "the "
    assert (stream.finish(), stream.finish(), stream.stopped) == ("EN", "", None)
    stream = TextStream(small_tokenizer("bytes"), ["END"])
    assert (stream.push(b"END"), stream.push(b" more"), stream.finish(), stream.stopped) == ("", "", "", "END")


# Parts of a text that are single tokens'.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_make_the_text(kind, text):
    tokenizer = small_tokenizer(kind)
    ids = tokenizer.encode(text).tolist()
    found = token_texts(tokenizer, ids)
    whole = tokenizer.decode(ids)
    assert b"".join(each.bytes for each in found).decode() == whole
    for each in found:
        before = whole.encode()[: each.start]
        assert each.offset == len(before.decode(errors="ignore"))
        assert whole.encode()[each.start : each.start + len(each.bytes)] == each.bytes
        assert each.text == each.bytes.decode(errors="replace") or not each.bytes


@pytest.mark.parametrize("kind", ["bytes", "byte_level"])
@given(numbers=ids_and_cuts[0])
def test_bytes_of_any_tokens_are_known_where_tokens_are_bytes(kind, numbers):
    tokenizer = small_tokenizer(kind)
    ids = [number % tokenizer.vocab_size for number in numbers]
    found = token_texts(tokenizer, ids)
    assert b"".join(each.bytes for each in found).decode(errors="replace") == tokenizer.decode(ids)
    assert [each.bytes for each in found] == [token_text(tokenizer, i).bytes for i in ids]


def test_a_character_of_several_tokens_is_part_of_each():
    tokenizer = small_tokenizer("bytes")
    found = token_texts(tokenizer, tokenizer.encode("a€b"))
    assert [each.bytes for each in found] == [b"a", b"\xe2", b"\x82", b"\xac", b"b"]
    assert [each.text for each in found] == ["a", BROKEN, BROKEN, BROKEN, "b"]
    assert [(each.offset, each.start) for each in found] == [(0, 0), (1, 1), (1, 2), (1, 3), (2, 4)]


def test_special_tokens_have_a_name_and_no_bytes():
    tokenizer = small_tokenizer("byte_level")
    assert tokenizer.eos_id is not None
    found = token_texts(tokenizer, [*tokenizer.encode("a").tolist(), tokenizer.eos_id])
    assert [(each.text, each.bytes, each.offset) for each in found] == [("a", b"a", 0), ("</s>", b"", 1)]
    assert token_text(tokenizer, tokenizer.eos_id).text == "</s>"
    assert token_text(tokenizer, 10**6).text == ""


def test_a_token_by_itself_keeps_its_space():
    for kind in ("fallback", "metaspace", "sentence_piece"):
        tokenizer = small_tokenizer(kind)
        spaced = {token_text(tokenizer, i).text for i in range(tokenizer.vocab_size)}
        assert {" ", "t", "n"} <= spaced
        assert any(len(text) > 2 and text.startswith(" ") for text in spaced)
