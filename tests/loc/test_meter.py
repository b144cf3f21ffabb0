# SPDX-License-Identifier: Apache-2.0
"""What counts as a line of code."""

import pytest

from dovetail.loc.meter import added_lines, code_lines

SOURCE = '''\
"""Says what it is.

On two lines."""
# A comment.

import a  # Why.


class B(
    a.B,
):
    """Text."""

    text = """not a
docstring # no comment

"""
    "A string that stands alone says nothing to Python."
'''


def test_comments_blank_lines_and_docstrings_do_not_count():
    assert code_lines(SOURCE) == {
        6: "import a",
        9: "class B(",
        10: "    a.B,",
        11: "):",
        14: '    text = """not a',
        15: "docstring # no comment",
        17: '"""',
    }


@pytest.mark.parametrize("source", ["def f(:", "x = (", "\0", "'"])
def test_what_is_not_python_is_a_syntax_error(source):
    with pytest.raises(SyntaxError):
        code_lines(source)


def test_added_lines_are_new_or_changed_ones():
    before = "a = 1\nb = 2\nc = 3\n"
    after = "# More.\na = 1\nb = 4\nc = 3\nd = 5\n\n"
    assert added_lines(before, after) == ["b = 4", "d = 5"]
    assert added_lines(after, before) == ["b = 2"]
    assert added_lines(before, before) == []
