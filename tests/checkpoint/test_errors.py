# SPDX-License-Identifier: Apache-2.0
"""How lists are shown in messages."""

from dovetail.checkpoint._errors import bullets


def test_bullets_show_ten_lines():
    assert bullets(["a"]) == "\n  a"
    assert bullets([str(n) for n in range(12)]).splitlines()[-2:] == ["  9", "  ... and 2 more."]
