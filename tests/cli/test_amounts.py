# SPDX-License-Identifier: Apache-2.0
"""Amounts on the command line."""

import pytest

from dovetail.cli._amounts import count, seconds
from dovetail.config import ConfigError


@pytest.mark.parametrize(
    "text, wanted",
    [("2T", 2e12), ("300B", 3e11), ("1.5e12", 1.5e12), ("15.6t", 15.6e12), ("4,096", 4096), ("7 M", 7e6)],
)
def test_counts_have_a_number_and_a_unit(text, wanted):
    assert count(text, "--tokens") == pytest.approx(wanted)


@pytest.mark.parametrize("text, wanted", [("30d", 2_592_000), ("12h", 43_200), ("90min", 5400), ("2w", 1_209_600)])
def test_times_have_a_number_and_a_unit(text, wanted):
    assert seconds(text, "--deadline") == wanted


@pytest.mark.parametrize("text", ["", "T", "2Q", "-3T", "0", "nan", "2T3"])
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(ConfigError, match=r"--tokens is .*expected an amount such as 300B"):
        count(text, "--tokens")
    with pytest.raises(ConfigError, match=r"--deadline is .*expected an amount such as 30d"):
        seconds(text or "3x", "--deadline")
