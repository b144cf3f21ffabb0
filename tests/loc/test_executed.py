# SPDX-License-Identifier: Apache-2.0
"""Which lines a function needs: whole definitions that run, and tables that they look into."""

from dovetail.loc._executed import run_and_count

SMALL = {"b": 2}
TABLE = {
    "a": 1,
    **SMALL,
}


def plain(x):
    """Nothing but this."""
    return sorted(  # Code of others is not counted.
        x
    )


def inner(x):
    def never(y):
        return y + 1

    return (lambda y: y)(x)


def by_helper(x):
    if x == "a":
        return first(x)
    return second(x)


def first(x):
    return x


def second(x):
    x = x + x
    return x


def by_table(x):
    return TABLE[x]


def count(function, *args):
    return len(run_and_count(function, *args)[1])


def test_the_result_is_that_of_the_function():
    assert run_and_count(plain, [2, 1])[0] == [1, 2]


def test_a_definition_counts_as_a_whole_without_its_docstring():
    assert count(plain, [1]) == 4
    assert count(inner, 1) == 4


def test_helpers_count_when_they_run():
    assert count(by_helper, "a") == 4 + 2
    assert count(by_helper, "b") == 4 + 3


def test_tables_count_and_so_do_those_in_them():
    assert count(by_table, "a") == 2 + 4 + 1


def test_a_trace_that_was_there_before_is_there_again():
    import sys

    before = sys.gettrace()
    run_and_count(plain, [1])
    assert sys.gettrace() is before
