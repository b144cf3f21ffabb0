# SPDX-License-Identifier: Apache-2.0
"""Texts, tables, histograms and pictures, as they were written; and nothing that is no picture is given out as one."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.board import DirectoryRuns
from support.boards import PNG, write_metrics, write_run

HOSTILE = '<img src=x onerror="alert(1)">\u2028</script>'


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[DirectoryRuns]:
    found = DirectoryRuns(tmp_path)
    yield found
    found.close()


def test_names_of_all_that_was_logged(tmp_path: Path, runs: DirectoryRuns) -> None:
    table = {"columns": ["a"], "rows": [[1]]}
    write_metrics(
        write_run(tmp_path / "run", 3),
        [
            {"step": 3, "sample": "text"},
            {"step": 3, HOSTILE: "text"},
            {"step": 3, "tables": {"answers": table}},
            {"step": 3, "pictures": {"seen": "pictures/seen/3.png"}},
            {"step": 3, "histograms": {"norms": {"edges": [0, 1], "counts": [5]}}},
        ],
    )
    about = runs.about("run")
    assert about["texts"] == ["sample", HOSTILE]
    assert (about["tables"], about["pictures"], about["histograms"]) == (["answers"], ["seen"], ["norms"])
    assert {"loss", "eval/loss", "tokens"} <= set(about["metrics"])
    assert HOSTILE not in about["metrics"]


def test_texts_come_newest_first_fifty_at_a_time(tmp_path: Path, runs: DirectoryRuns) -> None:
    # Alike but for their digits.
    write_metrics(tmp_path / "run", [{"step": step, "sample": f"{HOSTILE} {step}"} for step in range(1, 121)])
    first = runs.samples("run", "texts", "sample", None)
    assert [each["step"] for each in first["texts"]] == list(range(120, 70, -1))
    assert first["texts"][0]["text"] == f"{HOSTILE} 120"
    assert first["more"] is True
    last = runs.samples("run", "texts", "sample", 21)
    assert ([each["step"] for each in last["texts"]], last["more"]) == (list(range(20, 0, -1)), False)


def test_a_step_that_was_made_again_has_its_later_text(tmp_path: Path, runs: DirectoryRuns) -> None:
    records = [{"step": 5, "sample": "old"}, {"step": 9, "note": "kept"}, {"step": 5, "sample": "new"}]
    write_metrics(tmp_path / "run", records)
    assert [each["text"] for each in runs.samples("run", "texts", "sample", None)["texts"]] == ["new"]
    assert [each["text"] for each in runs.samples("run", "texts", "note", None)["texts"]] == ["kept"]


def test_a_text_is_cut_where_it_is_too_long(tmp_path: Path, runs: DirectoryRuns) -> None:
    write_metrics(tmp_path / "run", [{"step": 1, "sample": "x" * 200_000}])
    (found,) = runs.samples("run", "texts", "sample", None)["texts"]
    assert 100_000 < len(found["text"]) < 100_100


def test_tables_have_what_json_can_say(tmp_path: Path, runs: DirectoryRuns) -> None:
    rows = [[1, 2.5, "nan", None, True, HOSTILE, {"a": 1}], "no row"]
    long = {"columns": ["a"], "rows": [[i] for i in range(1500)]}
    write_metrics(
        tmp_path / "run",
        [{"step": 1, "tables": {"t": {"columns": ["a", 3], "rows": rows}}}, {"step": 1, "tables": {"u": long}}],
    )
    (found,) = runs.samples("run", "tables", "t", None)["tables"]
    assert found["columns"] == ["a", "3"]
    assert found["rows"] == [[1.0, 2.5, "nan", None, True, HOSTILE, "{'a': 1}"], []]
    (found,) = runs.samples("run", "tables", "u", None)["tables"]
    assert (len(found["rows"]), found["note"]) == (1000, "500 more rows are not shown.")


def test_histograms_that_are_none_are_left_out_and_lost_ones_too(tmp_path: Path, runs: DirectoryRuns) -> None:
    good = {"edges": [0, 1, "inf"], "counts": [3, 4]}
    bad: list[Any] = [{"edges": [0], "counts": [1]}, {"edges": "x", "counts": 3}, {}, 7, None]
    records = [{"step": i, "histograms": {"h": each}} for i, each in enumerate([*bad, good])]
    write_metrics(
        tmp_path / "run", [*records, {"step": 9, "histograms": {"h": good}}, {"step": 7, "histograms": {"h": good}}]
    )
    found = runs.samples("run", "histograms", "h", None)["histograms"]
    assert found == [{"step": step, "edges": [0, 1, "inf"], "counts": [3, 4]} for step in (5, 7)]


def test_pictures_are_what_their_bytes_say(tmp_path: Path, runs: DirectoryRuns) -> None:
    write_metrics(tmp_path / "run", [{"step": 3, "pictures": {"a/b": "pictures/a/b/3.png"}}])
    folder = tmp_path / "run/pictures/a/b"
    folder.mkdir(parents=True)
    (folder / "3.png").write_bytes(PNG)
    (folder / "4.png").write_bytes(b"\xff\xd8\xff\xe0rest")
    (where,) = runs.samples("run", "pictures", "a/b", None)["pictures"]
    assert where["file"] == "pictures/a/b/3.png"
    assert runs.picture("run", where["file"]) == ("image/png", PNG)
    assert runs.picture("run", "pictures/a/b/4.png")[0] == "image/jpeg"
    for name, content in {
        "x.svg": b"<svg onload='alert(1)'/>",
        "x.html": b"<html>",
        "x.png": b"GIF89a",
        "empty": b"",
    }.items():
        (folder / name).write_bytes(content)
        with pytest.raises(ValueError, match="neither a PNG nor a JPEG"):
            runs.picture("run", f"pictures/a/b/{name}")


@pytest.mark.parametrize(
    "file",
    [
        "metrics.jsonl",
        "../run/pictures/x.png",
        "pictures/../../x.png",
        "/etc/passwd",
        "pictures/link.png",
        "pictures/\0",
    ],
)
def test_a_picture_is_below_pictures_or_is_not_there(tmp_path: Path, runs: DirectoryRuns, file: str) -> None:
    write_run(tmp_path / "run", 1)
    (tmp_path / "run/pictures").mkdir()
    (tmp_path / "x.png").write_bytes(PNG)
    (tmp_path / "run/pictures/link.png").symlink_to(tmp_path / "x.png")
    with pytest.raises(Exception, match=r"no such picture|Pictures of a run are in"):
        runs.picture("run", file)


def test_a_picture_that_is_too_large_is_not_read(tmp_path: Path, runs: DirectoryRuns) -> None:
    write_run(tmp_path / "run", 1)
    (tmp_path / "run/pictures").mkdir()
    (tmp_path / "run/pictures/x.png").write_bytes(PNG)
    os.truncate(tmp_path / "run/pictures/x.png", (16 << 20) + 1)
    with pytest.raises(ValueError, match="more than 16 MiB"):
        runs.picture("run", "pictures/x.png")
