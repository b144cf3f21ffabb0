# SPDX-License-Identifier: Apache-2.0
"""Pools of chips: what a file says, what it may not, and which parts of a pool are tried."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.hardware import CHIPS
from dovetail.plan import Pool, pools_on, read_pools

GOOD = """
[mine]
hardware = "tpu-v5p"
count = 1024
price = 2
price_date = 2026-03-01
kind = "reserved"

[cheap]
hardware = "gpu-h100"
count = 512
price = 2.35
kind = "spot"
interruptions = 1e-3
checkpoint_seconds = 20
recovery_seconds = 600.0
"""


def read(tmp_path, text):
    file = tmp_path / "pools.toml"
    file.write_text(text)
    return read_pools(str(file))


def test_a_file_has_a_table_for_each_pool(tmp_path):
    mine, cheap = read(tmp_path, GOOD)
    assert (mine.name, mine.count, mine.chip_hour, mine.price_date) == ("mine", 1024, 2.0, "2026-03-01")
    assert (cheap.kind, cheap.interruptions, cheap.recovery_seconds) == ("spot", 1e-3, 600.0)
    assert cheap.goodput(512).share < mine.goodput(512).share
    assert any("no date" in note for note in cheap.assumptions())
    assert any("power of Google TPU v5p is not published" in note for note in mine.assumptions())


@pytest.mark.parametrize(
    "text, message",
    [
        ("[a\n", "it is not TOML"),
        ("", "there is no pool in it"),
        ("a = 3", r"\[a\]: it is 3, expected a table"),
        ('[a]\nhardware = "tpu-v5p"', r"\[a\]: count is missing"),
        ('[a]\nhardware = "tpu-v9"\ncount = 8', r"\[a\]: there is no chip 'tpu-v9'"),
        ('[a]\nhardware = "tpu-v5p-8"\ncount = 8', "there is no chip 'tpu-v5p-8'. Did you mean"),
        ('[a]\nhardware = "tpu-v5p"\ncount = 0', "count is 0, expected at least 1"),
        ('[a]\nhardware = "tpu-v5p"\ncount = "many"', "count: expected int, found 'many'"),
        ('[a]\nhardware = "tpu-v5p"\ncount = 8\nprize = 3', "no field 'prize'. Did you mean 'price'"),
        ('[a]\nhardware = "tpu-v5p"\ncount = 8\nprice = -3', "price is -3.0, expected a number of at least 0"),
        ('[a]\nhardware = "tpu-v5p"\ncount = 8\nkind = "borrowed"', "kind"),
        ('[a]\nhardware = "tpu-v5p"\ncount = 8\nkind = "spot"', "nothing says how often chips are taken away"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_pool(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"nowhere\.toml: it cannot be read"):
        read_pools("nowhere.toml")


@given(st.sampled_from([name for name in CHIPS if name != "cpu"]), st.integers(1, 20_000))
@settings(max_examples=60, deadline=None)
def test_parts_of_a_pool_are_hardware_of_that_chip_and_no_more_than_there_is(chip, count):
    try:
        found = Pool(name="a", hardware=chip, count=count).amounts()
    except ConfigError:
        assert CHIPS[chip].torus is not None or count < 1
        return
    chips = [each.num_chips for each in found]
    assert all(each.chip.name == chip for each in found)
    assert chips == sorted(set(chips), reverse=True)
    assert 0.75 * min(count, 2 ** (count.bit_length() - 1)) <= chips[0] <= count


@pytest.mark.parametrize(
    "chip, count, wanted",
    [
        ("tpu-v5p", 1024, ["tpu-v5p-2048", "tpu-v5p-1024", "tpu-v5p-512"]),
        ("tpu-v6e", 1024, ["tpu-v6e-256x4", "tpu-v6e-256x2", "tpu-v6e-256"]),
        ("gpu-h100", 1000, ["gpu-h100-1000", "gpu-h100-512", "gpu-h100-496"]),
    ],
)
def test_large_parts_come_first_and_powers_of_two_are_among_them(chip, count, wanted):
    assert [each.name for each in Pool(name="a", hardware=chip, count=count).amounts()][:3] == wanted


def test_named_hardware_is_used_as_a_whole():
    (pool,) = pools_on(["tpu-v5p-512"])
    assert [each.name for each in pool.amounts()] == ["tpu-v5p-512"]
    assert pool.count == 256
