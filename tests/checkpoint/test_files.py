# SPDX-License-Identifier: Apache-2.0
"""Files with checksums, and JSON that cannot change unnoticed."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.checkpoint._files import seal, sum_file, unseal, write_file

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(JSON)
def test_what_is_sealed_comes_back(content):
    assert unseal(seal(content)) == content


@given(JSON, st.data())
def test_not_a_bit_of_what_is_sealed_can_change(content, data):
    sealed = bytearray(seal(content))
    bit = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError):  # noqa: PT011 - of any text: it may not even be JSON
        unseal(bytes(sealed))


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b'{"content": 1}', b'{"content": 1, "crc32": "00000000"}\n'])
def test_what_is_not_sealed_is_refused(data):
    with pytest.raises(ValueError):  # noqa: PT011
        unseal(data)


def test_sums_of_written_and_read_files_are_equal(tmp_path):
    data = bytes(range(256)) * 5000  # More than the megabyte that is read at a time.
    written = write_file(tmp_path / "a", data)
    assert written == sum_file(tmp_path / "a") == {"size": len(data), "crc32": f"{zlib.crc32(data):08x}"}


def test_a_file_is_not_overwritten(tmp_path):
    write_file(tmp_path / "a", b"old")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
