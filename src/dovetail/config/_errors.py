# SPDX-License-Identifier: Apache-2.0
"""The one error a user of configs meets, and the nearest-name hint it carries."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """Something the user can fix: it says where, what was found, what was expected and what to do."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Returns `" Did you mean 'x'?"` for the option nearest to `word`, or an empty string.

    >>> did_you_mean("hiden_dim", ["hidden_dim", "eps"])
    " Did you mean 'hidden_dim'?"
    """
    by_lower = {option.lower(): option for option in options}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""
