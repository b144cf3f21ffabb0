# SPDX-License-Identifier: Apache-2.0
"""What is kept of a file of metrics, while it grows and several ask at a time."""

import threading
from pathlib import Path

from dovetail.board._metrics import Kept, Metrics, unit_in
from support.boards import write_metrics


def test_many_may_ask_while_the_file_grows(tmp_path: Path) -> None:
    kept, errors, done = Kept(200_000), list[BaseException](), threading.Event()
    write_metrics(tmp_path, [{"step": 0, "loss": 0.0}])

    def ask(number: int) -> None:
        last = 0
        try:
            with (tmp_path / "metrics.jsonl").open("rb") as file:
                while not done.is_set():
                    metrics = kept.of("run")
                    curve = metrics.curve(file.fileno(), ("loss", "x1", "x2")[number % 3], "time", most=50)
                    seen = metrics.seen(file.fileno())
                    kept.trim()
                    assert len(seen.samples) >= last
                    last = len(seen.samples)
                    assert curve.x == sorted(curve.x)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for step in range(1, 200):
        record = {"step": step, "loss": 1.0, f"x{step % 50}": 2.0, **({"sample": "t"} if step % 5 == 0 else {})}
        write_metrics(tmp_path, [record])
    done.set()
    for thread in threads:
        thread.join(60)
    assert not errors
    with (tmp_path / "metrics.jsonl").open("rb") as file:
        metrics = Metrics()
        assert metrics.curve(file.fileno(), "loss", "step", most=1000).total == 200
        assert len(metrics.seen(file.fileno()).samples) == 39


def test_what_was_asked_for_least_lately_is_forgotten_first(tmp_path: Path) -> None:
    kept = Kept(20_000)
    for name in "abc":
        write_metrics(tmp_path / name, [{"step": step, "loss": 1.0} for step in range(300)])
    for name in "abac":
        with (tmp_path / name / "metrics.jsonl").open("rb") as file:
            kept.of(name).curve(file.fileno(), "loss", "step", most=10)
        kept.trim()
    assert list(kept._runs) == ["a", "c"]
    assert 0 < kept.size <= 20_000


def test_the_unit_is_what_is_counted_by_the_second() -> None:
    assert unit_in(["loss", "rows_per_second"]) == "row"
    assert unit_in(["data/web/tokens_per_second", "loss"]) is None
