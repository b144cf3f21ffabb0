# SPDX-License-Identifier: Apache-2.0
"""Observers on a full disk: said once, training goes on, and so do they when there is room again."""

import json
import time

import pytest

from dovetail.train import JsonLines, TensorBoard
from dovetail.train._guarded import Guarded
from support.small_disk import fill, small_disk


@pytest.mark.parametrize("config", [JsonLines.Config(), TensorBoard.Config()])
def test_an_observer_that_cannot_write_is_said_once_and_goes_on_when_it_can(config, tmp_path, capfd):
    with small_disk(tmp_path / "disk", 1 << 16) as disk:
        observer = Guarded(config.build())
        observer.start(disk, 1, 100, "")
        observer.metrics(1, {"loss": 1.0})
        filler = fill(disk)
        for step in range(2, 2000):  # More than any buffer or queue has room for.
            observer.metrics(step, {"loss": 1.0 / step, "long" * 20: 1.0})
        time.sleep(0.2)  # TensorBoard's writer is a thread.
        observer.text(2000, "sample", "text")
        filler.unlink()
        for step in range(2001, 2004):
            observer.metrics(step, {"loss": 1.0})
        observer.stop()
        if isinstance(config, JsonLines.Config):
            last = (disk / "metrics.jsonl").read_text().splitlines()[-1]
            assert json.loads(last)["step"] == 2003
    name = type(config).__qualname__.partition(".")[0]
    said = [line for line in capfd.readouterr().err.splitlines() if line]
    assert said == [
        f"{name} cannot write: [Errno 28] No space left on device. Training goes on; what it does not write is lost."
    ]


def test_an_observer_that_cannot_start_is_left_out(tmp_path, capsys):
    observer = Guarded(JsonLines.Config().build())
    observer.start(tmp_path / "absent", 1, 100, "")
    observer.metrics(1, {"loss": 1.0})
    observer.stop()
    assert capsys.readouterr().err.startswith("JsonLines cannot write: [Errno 2] No such file or directory")
