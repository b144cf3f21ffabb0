# SPDX-License-Identifier: Apache-2.0
"""A board over two runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.board import Board
from support.boards import PNG, START, served, write_ledger, write_metrics, write_run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory with runs `a` and `b/c`, and a secret beside it."""
    base = tmp_path_factory.mktemp("base")
    (base / "secret.txt").write_text("TOP SECRET")
    place = base / "runs"
    write_run(place / "a", 40)
    write_run(place / "b/c", 30)
    (place / "b/c/config.txt").write_text("(root) = dovetail.train.Trainer.Config\nseed = 1\nsteps = 100\n")
    write_metrics(place / "a", [{"step": 40, "sample": "hello"}, {"step": 40, "pictures": {"p": "pictures/p/40.png"}}])
    (place / "a/pictures/p").mkdir(parents=True)
    (place / "a/pictures/p/40.png").write_bytes(PNG)
    first = {"event": "open", "life": "a", "wall": START - 3}
    write_ledger(
        place / "a", [first, {"life": "a", "wall": START + 41, "step": 40, "seconds": {"step": 40}, "ended": "done"}]
    )
    (place / "link").symlink_to(base)
    return place


@pytest.fixture(scope="module")
def board(place: Path) -> Iterator[Board]:
    """Yields a board without a token."""
    with served(place) as found:
        yield found
