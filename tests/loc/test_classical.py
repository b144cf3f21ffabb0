# SPDX-License-Identifier: Apache-2.0
"""The classical designs: their programs work, and the meter sees how they grow."""

import pytest

from dovetail.loc._classical import KINDS, PROGRAMS, check, lines
from dovetail.loc._fit import growth


@pytest.mark.parametrize("feature", KINDS)
@pytest.mark.parametrize("design, exponents", [("flat", (0, 1)), ("subclass", (1, 1))])
def test_flat_configs_grow_with_variants_and_subclasses_with_both(design, exponents, feature):
    found = growth(range(4), KINDS[feature], lambda n, m: lines(design, feature, n, m), draws=1)
    assert (found.models.value, found.variants.value) == pytest.approx(exponents, abs=0.2)


def test_lines_are_those_that_were_written():
    plain, linear = KINDS["rope"][:2]
    assert lines("flat", "rope", [0, 1, 2], [plain]) == 2  # A branch: the question, and the call.
    assert lines("flat", "rope", [0, 1, 2], [plain, linear]) == 5  # And a field of the second.
    assert lines("subclass", "rope", [0, 1, 2], [plain]) == 9  # The class, its method, and the call.


@pytest.mark.parametrize("design", PROGRAMS)
def test_a_program_that_builds_something_else_is_caught(design):
    program = PROGRAMS[design]([0, 1], "moe", KINDS["moe"])
    check(program, "moe", [0, 1], KINDS["moe"])
    with pytest.raises(AssertionError, match=r"M0, eight: .* parameters, expected"):
        check(program.replace("num_layers, *shape", "num_heads, 2, *shape"), "moe", [0], KINDS["moe"])
    with pytest.raises((KeyError, AttributeError)):
        check(program, "moe", [2], KINDS["moe"])
