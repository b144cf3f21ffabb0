# SPDX-License-Identifier: Apache-2.0
"""Amounts as people write them: 2T tokens, 30 days."""

import re

from dovetail.config import ConfigError

_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_NUMBER = re.compile(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)")


def count(text: str, option: str) -> float:
    """Returns a count.

    >>> count("2T", "--tokens"), count("1.5e9", "--tokens")
    (2000000000000.0, 1500000000.0)
    """
    return _amount(text, option, {name.lower(): size for name, size in _COUNTS.items()}, "300B, 2T or 1.5e12")


def seconds(text: str, option: str) -> float:
    """Returns a time.

    >>> seconds("30d", "--deadline"), seconds("12h", "--deadline")
    (2592000.0, 43200.0)
    """
    return _amount(text, option, _SECONDS, "30d, 12h or 90min")


def _amount(text: str, option: str, units: dict[str, float], examples: str) -> float:
    match = _NUMBER.fullmatch(text.replace(",", "").replace("_", "").strip())
    unit = match[2].lower() if match else ""
    if match is None or unit not in units or float(match[1]) <= 0:
        raise ConfigError(f"{option} is {text!r}, expected an amount such as {examples}.")
    return float(match[1]) * units[unit]
