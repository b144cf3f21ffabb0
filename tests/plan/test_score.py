# SPDX-License-Identifier: Apache-2.0
"""The score of predictions against measured steps."""

import pytest

from dovetail.config import ConfigError
from dovetail.plan import score
from dovetail.zoo.measured import rebuild

ROW = {
    "system": "AXLearn",
    "model": "Llama2-7B",
    "hw": "TPU v5p",
    "chips": "256",
    "precision": "bf16",
    "seq": "4096",
    "gbs": "1024",
    "parallelism": "fsdp=256",
    "remat": "minimal",
    "step_s": "2.5",
    "source": "a paper",
}


def test_rows_are_predicted_or_say_why_not():
    found = score([ROW, {**ROW, "model": "Unheard-of 7B"}, {**ROW, "hw": "abacus"}], rebuild)
    assert (found.rebuilt, len(found.rows)) == (1, 3)
    assert found.rows[0]["error"] == pytest.approx(found.rows[0]["predicted_seconds"] / 2.5 - 1)
    assert found.rows[1]["reason"] == "the shape of 'Unheard-of 7B' is not known."
    assert found.rows[2]["reason"] == "the chip 'abacus' is not known."
    assert found.left_out == {}  # Too little to fit anything to.


def test_errors_and_the_share_in_intervals_follow_from_the_rows():
    exact = score([ROW], rebuild).rows[0]["predicted_seconds"]
    rows = [{**ROW, "step_s": str(exact * factor)} for factor in (1.0, 1.1, 3.0)]
    found = score(rows, rebuild)
    assert found.median_error == pytest.approx(1 - 1 / 1.1, rel=1e-6)
    assert found.coverage == pytest.approx(2 / 3)
    assert found.by["system"]["AXLearn"].rows == 3


def test_pairs_are_in_order_where_the_faster_one_is_predicted_to_be():
    slow, fast = {**ROW, "chips": "128", "parallelism": "fsdp=128", "step_s": "5.0"}, ROW
    wrong = {**ROW, "remat": "full", "step_s": "2.0"}  # It computes more, and should not be faster.
    assert score([fast, wrong], rebuild).ordered == 0
    assert score([fast, {**wrong, "step_s": "3.0"}, slow], rebuild).ordered == 1


def test_a_table_without_a_row_to_rebuild_is_refused():
    with pytest.raises(ConfigError, match="no row of the table can be rebuilt; the first says: the chip 'x' is not"):
        score([{**ROW, "hw": "x"}], rebuild)
