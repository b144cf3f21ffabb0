# SPDX-License-Identifier: Apache-2.0
"""Lines of examples: of classes, outside of them, and those that only pass the context on."""

from count_examples import Lines, count_lines

SOURCE = '''"""An example."""

import jax


class Twice(Layer):
    """A comment, and a docstring, are no code."""

    def forward(self, x, context: Context):  # It passes it on, ...
        y = self.inner(x, context)
        return y + context.get("x", y)  # ... and this uses it.


def run():
    return Twice
'''


def test_lines_of_code_are_in_a_class_or_outside_and_some_only_pass_the_context_on():
    assert count_lines(SOURCE) == Lines(classes=4, outside=2, passing=2)
