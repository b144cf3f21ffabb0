# SPDX-License-Identifier: Apache-2.0
"""Who may ask, by headers alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.board._api import Refused
from dovetail.board._guard import Guard, is_local


def passes(guard: Guard, host: str) -> bool:
    try:
        guard.check({"host": host}, is_page=False)
    except Refused:
        return False
    return True


@given(
    st.one_of(
        st.text(max_size=30),
        st.sampled_from(["127.0.0.1", "localhost"]).flatmap(lambda name: st.text().map(name.__add__)),
    )
)
def test_no_name_but_those_of_this_machine_passes(host: str) -> None:
    name = host.rpartition("@")[2].lower()
    is_ours = name.startswith(("127.", "[", "localhost")) or ".localhost" in name
    assert is_ours or not passes(Guard("127.0.0.1", 80, None), host)


@given(st.text(max_size=40))
def test_no_text_but_the_token_is_it(text: str) -> None:
    token = "0123456789abcdef"
    assert Guard("0.0.0.0", 80, token).is_token(text) == (text == token)


def test_without_a_token_nothing_is_one() -> None:
    assert not Guard("127.0.0.1", 80, None).is_token("")


def test_cookies_of_boards_at_other_ports_are_others() -> None:
    token = "0123456789abcdef"
    one, two = Guard("::1", 1, token), Guard("::1", 2, token)
    assert one.cookie.partition("=")[0] != two.cookie.partition("=")[0]
    pair = one.cookie.partition(";")[0]
    one.check({"cookie": pair}, is_page=False)
    with pytest.raises(Refused):
        two.check({"cookie": pair}, is_page=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "a.localhost"])
def test_names_of_this_machine(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.com", "127.0.0.1.nip.io", ""])
def test_names_that_others_can_have_or_reach(host: str) -> None:
    assert not is_local(host)
