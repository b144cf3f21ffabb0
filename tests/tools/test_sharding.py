# SPDX-License-Identifier: Apache-2.0
"""Random cases of the sharding contract: the same for a seed, and none that aborts ends the run."""

import sharding
from sharding_cases import draw

CASE = """
import os, sys
number = int(sys.argv[sys.argv.index("--first") + 1])
if number == 0:
    print("F1118 00:00:00.1 1 rendezvous.h:314] Check failed: id < num_threads", file=sys.stderr, flush=True)
    os.abort()
print('{"error": 1e-06, "allowed": 2e-05, "where": "here"}')
"""


def test_a_seed_stands_for_the_same_cases_each_time():
    assert [str(draw(3, number)) for number in range(4)] == [str(draw(3, number)) for number in range(4)]
    assert len({str(draw(3, number)) for number in range(4)}) == 4


def test_a_case_that_aborts_is_a_line_of_the_record_and_the_next_ones_run(tmp_path, monkeypatch):
    script = tmp_path / "case.py"
    script.write_text(CASE)
    monkeypatch.setattr(sharding, "__file__", str(script))
    monkeypatch.setattr(sharding, "RECORDS", tmp_path)
    assert sharding.main(["--random", "2", "--seed", "3"]) == 1
    assert sharding.main(["--random", "1", "--seed", "3", "--first", "3"]) == 0
    text = (tmp_path / "sharding_random.md").read_text()
    assert "3 random cases of seed 3, of which 1 are bad" in text
    rows = [line for line in text.splitlines() if line.startswith("| 3/")]
    assert rows[0].endswith("| fast | BAD | exit code -6: Check failed: id < num_threads |")
    assert rows[1] == f"| 3/1 | {draw(3, 1)} | fast | ok | 1.0e-06 of 2.0e-05 |"
    assert rows[2].endswith("| normal | ok | 1.0e-06 of 2.0e-05 |")
