# SPDX-License-Identifier: Apache-2.0
"""What is answered to which address, and what to questions that make no sense."""

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.board import Api, Board, DirectoryRuns, Refused
from dovetail.board._api import json_bytes
from dovetail.board._child import Unavailable
from support.boards import PNG, ask, write_metrics, write_run


def get(board: Board, target: str) -> Any:
    found = ask(board, target)
    assert found.status == 200, found.body
    return found.json


def test_the_list_has_all_runs_and_where_they_are(board: Board, place: Path) -> None:
    found = get(board, "/api/runs")
    assert found["directory"] == str(place)
    assert [(run["id"], run["name"], run["step"]) for run in found["runs"]] == [("a", "a", 40), ("b/c", "c", 30)]
    assert found["problems"] == ["1 symbolic links are not followed. To see what one leads to, name that directory."]


def test_a_run_says_what_it_has(board: Board) -> None:
    found = get(board, "/api/run?run=a")
    assert {"loss", "eval/loss", "tokens"} <= set(found["metrics"])
    assert (found["texts"], found["pictures"], found["tables"], found["histograms"]) == (["sample"], ["p"], [], [])
    assert found["config"] == [["(root)", "dovetail.train.Trainer.Config"], ["seed", "0"], ["steps", "100"]]
    assert "config_at" not in found


def test_curves_of_several_runs_over_each_axis(board: Board) -> None:
    found = get(board, "/api/curves?run=a&run=b%2Fc&name=loss&x=step&points=10")["curves"]
    assert [(each["run"], each["count"], len(each["x"])) for each in found] == [("a", 40, 10), ("b/c", 30, 10)]
    assert found[0]["high"][0] == 10.0
    whole = get(board, "/api/curves?run=a&name=loss&x=units")["curves"][0]
    assert (whole["x"][:2], whole["y"][:2], whole["low"]) == ([64, 128], [10.0, 5.0], None)
    time = get(board, "/api/curves?run=a&name=loss&x=time&from=13&to=14")["curves"][0]
    assert (time["x"], time["y"], time["count"]) == ([13, 14], [1.0, 0.9090909], 2)  # The first start was 3 s before.
    assert get(board, "/api/curves?run=a&name=none")["curves"][0]["count"] == 0


def test_a_run_without_units_has_no_curve_over_them(tmp_path: Path) -> None:
    write_metrics(tmp_path / "run", [{"step": 1, "loss": 1.0}])
    with DirectoryContext(tmp_path) as api:
        assert count(api) == 1
        with pytest.raises(Refused, match="has not logged how many units it does in a second"):
            api.answer("/api/curves", query("run=run&name=loss&x=units"))


def test_runs_that_are_not_there_are_left_out_of_an_answer_about_several(board: Board) -> None:
    assert [each["run"] for each in get(board, "/api/curves?run=gone&run=a&name=loss")["curves"]] == ["a"]
    assert get(board, "/api/diff?run=a&run=gone&run=b/c") == {
        "runs": ["a", "b/c"],
        "paths": [{"path": "seed", "values": ["0", "1"]}],
        "same": 2,
    }
    assert ask(board, "/api/curves?run=gone&name=loss").status == 404


def test_samples_pictures_goodput_and_log(board: Board) -> None:
    assert get(board, "/api/texts?run=a&name=sample")["texts"][0]["text"] == "hello"
    (picture,) = get(board, "/api/pictures?run=a&name=p")["pictures"]
    found = ask(board, f"/api/picture?run=a&file={picture['file']}")
    assert (found.status, found.body, found.headers["content-type"]) == (200, PNG, "image/png")
    assert get(board, "/api/goodput?run=a")["kinds"]["step"] == 40
    assert get(board, "/api/goodput?run=b/c") == {
        "kinds": dict.fromkeys(get(board, "/api/goodput?run=a")["kinds"], 0),
        "spans": [],
        "events": [],
    }
    assert get(board, "/api/log?run=a&lines=5") == {"lines": [], "files": []}
    for kind in ("tables", "histograms", "texts", "pictures"):
        assert not get(board, f"/api/{kind}?run=b/c&name=none")[kind]


WRONG = {
    "/api/run": "The parameter 'run' is missing.",
    "/api/run?run=a&run=b": "The parameter 'run' is there 2 times, expected once.",
    "/api/curves?run=a": "The parameter 'name' is missing.",
    "/api/curves?run=a&name=loss&x=other": "x is 'other', expected step, units, time.",
    "/api/curves?run=a&name=loss&from=nan": "from is 'nan', expected a number.",
    "/api/curves?run=a&name=loss&to=1e999": "to is '1e999', expected a number.",
    "/api/curves?run=a&name=loss&points=1000000": "points is 1e+06, expected 2 to 4000.",
    "/api/curves?run=a&name=loss&points=2.5": "points is 2.5, expected 2 to 4000.",
    "/api/log?run=a&lines=0": "lines is 0, expected 1 to 5000.",
    "/api/log?run=a&file=../x.log": "The run has no log '../x.log'.",
    "/api/picture?run=a&file=metrics.jsonl": "Pictures of a run are in its directory pictures.",
    "/api/memory?run=a&on=a/b": "on is 'a/b', expected hardware, as in tpu-v5p-512.",
    "/api/texts?run=a&name=%ff": "The parameters are not what a browser sends.",
    "/api/curves?"
    + "&".join(f"run={i}" for i in range(200))
    + "&name=loss": "There are 200 of 'run', expected at most 128.",
    "/api/curves?"
    + "&".join(f"name={i}" for i in range(200))
    + "&run=a&run=b": "These are 400 curves, expected at most 256.",
    "/api/curves?" + "&" * 600: "The parameters are not what a browser sends.",
}


@pytest.mark.parametrize("target", WRONG, ids=range(len(WRONG)))
def test_a_question_that_makes_no_sense_is_told_why(board: Board, target: str) -> None:
    found = ask(board, target)
    assert (found.status, found.json) == (400, {"error": WRONG[target]})


@pytest.mark.parametrize("target", ["/api/", "/api/nothing", "/api", "/apix/runs", "/api/runs/", "/nothing"])
def test_there_is_nothing_elsewhere(board: Board, target: str) -> None:
    assert (ask(board, target).status, ask(board, target).json) == (404, {"error": "There is nothing at this address."})


def test_what_json_cannot_say_is_said_in_words_or_replaced() -> None:
    assert json_bytes({"a": [float("nan"), 1.5], "b": float("-inf")}) == b'{"a":["nan",1.5],"b":"-inf"}'
    assert json.loads(json_bytes({"half": "\ud800"})) == {"half": "?"}


def test_a_run_is_read_on_as_it_grows_and_anew_if_it_was_replaced(tmp_path: Path) -> None:
    with DirectoryContext(tmp_path) as api:
        write_run(tmp_path / "run", 10)
        assert count(api) == 10
        write_metrics(tmp_path / "run", [{"step": 11, "loss": 1.0}])
        assert count(api) == 11
        (tmp_path / "run/metrics.jsonl").unlink()
        write_metrics(tmp_path / "run", [{"step": step, "loss": 5.0} for step in range(1, 31)])
        assert count(api) == 30
        with (tmp_path / "run/metrics.jsonl").open("r+b") as file:  # Written over, and as long.
            text = file.read().replace(b"5.0", b"7.0")
            file.seek(0)
            file.write(text)
        write_metrics(tmp_path / "run", [{"step": 31, "loss": 5.0}])
        assert curve(api)["y"] == [7.0] * 30 + [5.0]
        with (tmp_path / "run/metrics.jsonl").open("r+b") as file:
            file.truncate(0)
        assert count(api) == 0


def test_a_run_that_is_deleted_while_it_is_shown_is_gone_and_others_are_not(tmp_path: Path) -> None:
    with DirectoryContext(tmp_path) as api:
        write_run(tmp_path / "run", 10)
        write_run(tmp_path / "other", 10)
        assert {run["id"] for run in api.listed()["runs"]} == {"run", "other"}
        for file in (tmp_path / "run").iterdir():
            file.unlink()
        (tmp_path / "run").rmdir()
        assert {run["id"] for run in api.listed()["runs"]} == {"other"}
        with pytest.raises(Refused, match=r"gone|no run"):
            count(api)


def test_memory_is_bounded_and_what_was_forgotten_is_read_again(tmp_path: Path) -> None:
    runs = DirectoryRuns(tmp_path, memory=40_000)
    api = Api(runs)
    for name in "abcdefgh":
        write_run(tmp_path / name, 500)
    for _ in range(2):
        for name in "abcdefgh":
            assert count(api, name) == 500
            assert runs._kept.size <= 40_000
    runs.close()


class NoChildren:
    """A child that cannot do it."""

    def ask(self, *arguments: str) -> Any:
        raise Unavailable("It took more than 60 seconds, and was ended.")

    def close(self) -> None:
        pass


def test_what_cannot_be_computed_is_said_beside_what_was_measured(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 30, mfu=0.5)
    runs = DirectoryRuns(tmp_path, children=NoChildren())  # pyright: ignore[reportArgumentType]
    found = runs.memory("run", None)
    assert found["measured"] == {"step_seconds": 1.0, "mfu": 0.5, "tokens_per_second": 640.0}
    assert found["note"] == "The run has no checkpoint in its directory, from whose config this is computed."
    (tmp_path / "run/checkpoints.url").write_text("s3://bucket/x\n")
    assert runs.memory("run", None)["note"].startswith(
        "The checkpoints of the run are at s3://bucket/x: `dovetail board"
    )
    (tmp_path / "run/checkpoints").mkdir()
    found = runs.memory("run", None)
    assert (found["parts"], found["predicted"]) == ([], None)
    assert found["note"] == "It took more than 60 seconds, and was ended."


def test_torn_lines_and_lines_that_are_no_records_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    with (tmp_path / "run/metrics.jsonl").open("ab") as file:
        file.write(b'no json\n\xff\xfe\n{"step": 4, "ti\n{"step": 5, "time": 1')
    with DirectoryContext(tmp_path) as api:
        problems = json.loads(api.answer("/api/run", query("run=run")).body)["run"]["problems"]
        assert problems == ["metrics.jsonl: 3 lines are torn, or no records, and are passed over."]
        assert count(api) == 3


def query(text: str) -> Any:
    from dovetail.board._api import Query

    return Query(text)


def curve(api: Api, run: str = "run") -> Any:
    (found,) = json.loads(api.answer("/api/curves", query(f"run={run}&name=loss")).body)["curves"]
    return found


def count(api: Api, run: str = "run") -> int:
    return curve(api, run)["count"]


class DirectoryContext:
    """An API over a directory."""

    def __init__(self, directory: Path) -> None:
        self._runs = DirectoryRuns(directory)

    def __enter__(self) -> Api:
        return Api(self._runs)

    def __exit__(self, *_: object) -> None:
        self._runs.close()
