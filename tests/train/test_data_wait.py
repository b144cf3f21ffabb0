# SPDX-License-Identifier: Apache-2.0
"""What is said of an input that is too slow: once, with figures, where there is something to do."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dovetail.data import Input, NumberedInput, Pace, PreparedDataset, TextInput
from dovetail.train import JsonLines, Trainer
from dovetail.train._data_wait import DataWait
from dovetail.train._goodput import Goodput
from dovetail.train._size import Size
from support.objectives import Pairs
from support.prepared import prepared_corpus
from support.runs import tiny

SLOW = {"data_wait": 0.8, "tokens_per_second": 3e5}
LARGE = Size(7 * 10**9, "token", 2**22, 4e10, 4e10)  # A step of a model of 7 billion parameters.
CHIPS = 256 * 459e12  # The peak of tpu-v5p-512.


def wait_of(seconds: float, peak: float | None = None) -> DataWait:
    goodput = Goodput()
    goodput.seconds["data_wait"] = seconds
    made = DataWait(goodput)
    made.peak = peak
    return made


def do_it() -> str:
    return "do it"


def test_a_slow_input_is_told_of_once_with_what_to_do():
    wait = wait_of(10.0)
    assert wait.advice(LARGE, Pace(), {}, do_it) == ""
    assert wait.advice(LARGE, Pace(), SLOW | {"data_wait": 0.05}, do_it) == ""
    assert wait.advice(LARGE, Pace(), SLOW, do_it) == "This input makes 0.3 M tokens/s, the step needs 1.5 M: do it"
    assert wait.advice(LARGE, Pace(), SLOW, do_it) == ""


def test_nothing_is_said_of_a_moment_or_where_nothing_can_be_done():
    assert wait_of(1.0).advice(LARGE, Pace(), SLOW, do_it) == ""
    assert wait_of(10.0).advice(LARGE, Pace(), SLOW, str) == ""


def test_an_input_that_is_clearly_too_slow_is_told_of_before_a_step_is_measured():
    seconds = LARGE.units / 3e5
    wait = wait_of(0.0, CHIPS)
    assert wait.advice(LARGE, Pace(1, seconds, seconds), {}, do_it) == ""  # One batch may be an accident.
    assert wait.advice(LARGE, Pace(2, 2 * seconds, seconds), {}, do_it) == (
        "This input makes 0.3 M tokens/s, the step needs 1.2 M at 40% of the peak: do it"
    )
    assert wait.advice(LARGE, Pace(3, 3 * seconds, seconds), {}, do_it) == ""


@pytest.mark.parametrize(
    "peak, size, seconds",
    [
        pytest.param(None, LARGE, 1e3, id="the peak is not known"),
        pytest.param(CHIPS, LARGE, 6.0, id="not clearly"),  # 3.6 s at 40 % of the peak.
        pytest.param(1e15, Size(10**5, "token", 512, 6e5, 6e5), 0.015, id="a small step has other things to do"),
    ],
)
def test_what_may_be_fast_enough_raises_no_alarm(peak, size, seconds):
    assert wait_of(0.0, peak).advice(size, Pace(9, 90 * seconds, seconds), {}, do_it) == ""


def test_steps_that_are_measured_overrule_what_was_likely():
    wait = wait_of(10.0, CHIPS)
    assert wait.advice(LARGE, Pace(), {"data_wait": 0.0, "tokens_per_second": 1e5}, do_it) == ""
    assert wait.advice(LARGE, Pace(9, 900.0, 100.0), {}, do_it) == ""


class Laborious(NumberedInput):
    """Rows that take a while to make."""

    class Config(NumberedInput.Config):
        inner: Input.Config
        seq_len: int = 32

        def batch_specs(self):
            return self.inner.batch_specs()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self._batch = next(iter(cfg.inner.build()))

    def row(self, number: int) -> Mapping[str, Any]:
        for _ in range(40):
            hashlib.sha256(bytes(1 << 20)).digest()
        return {name: values[number % 4] for name, values in self._batch.items()}

    def when_slow(self) -> str:
        return "do less"


def metrics_of(cfg: Trainer.Config) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(cfg.directory) / "metrics.jsonl").read_text().splitlines()]


def test_a_run_says_so_before_its_first_step_and_has_the_rate_in_its_metrics(tmp_path):
    cfg = tiny(tmp_path, steps=4, evaluators={}, observers=(JsonLines.Config(),))
    cfg = cfg.set(input=Laborious.Config(batch_size=4, inner=cfg.input))
    cfg.build().run()
    found = metrics_of(cfg)
    (at,) = [number for number, each in enumerate(found) if "input" in each]
    assert found[at]["input"].startswith("This input makes ")
    assert found[at]["input"].endswith(" at 40% of the peak: do less")
    assert at <= 1  # Before the second step at the latest: compiling may be over before two batches are made.
    rates = [each["data/rate"] for each in found if "data/rate" in each]
    assert rates
    assert all(0 < rate < math.inf for rate in rates)


def test_a_run_whose_input_is_fast_says_nothing(tmp_path):
    cfg = tiny(tmp_path, steps=3, evaluators={})
    cfg.build().run()
    assert not any("input" in each for each in metrics_of(cfg))


def test_an_input_knows_what_would_make_it_faster():
    prepared = PreparedDataset.Config(path=prepared_corpus())
    made = TextInput.Config(batch_size=8, seq_len=8, dataset=prepared).build(path="input")
    assert made.when_slow() == "divide the work among processes, at most 8 of them: input.num_workers=N"
    numbered: NumberedInput = Pairs.Config(batch_size=4).build()
    assert numbered.when_slow() == ""
