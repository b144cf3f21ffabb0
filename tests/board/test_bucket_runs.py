# SPDX-License-Identifier: Apache-2.0
"""Runs whose checkpoints are in a store of objects: what is there is shown, and what is not is said."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.board import Api, BucketRuns
from dovetail.board._api import Query
from dovetail.board._child import Unavailable
from dovetail.board._runs import NotFound, View
from dovetail.config import ConfigError
from dovetail.storage import Objects
from support.s3 import BUCKET, environment, s3_server

URL = f"s3://{BUCKET}/team"


class Child:
    """Answers as a child does that has read the config of a checkpoint."""

    def __init__(self, config: str | None) -> None:
        self.config, self.asked = config, list[tuple[str, ...]]()

    def ask(self, *arguments: str) -> Any:
        self.asked.append(arguments)
        if self.config is None:
            raise Unavailable("The config of step 40 cannot be built here.")
        return {"step": 40, "config": self.config}

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    pytest.importorskip("moto", reason="the S3 server of the tests: install the extra dev")
    with s3_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(endpoint).items():
            patch.setenv(name, value)
        objects = Objects(URL, where="test")
        for key in ("a/finished/step_5.json", "a/finished/step_40.json", "deep/er/b/finished/step_0.json"):
            objects.write(key, b"{}")
        for key in ("a/data/step_40-00000000/arrays/0+00000", "none/making/x", "c/finished/step_x.json", "readme"):
            objects.write(key, b"")
        yield endpoint


@pytest.mark.usefixtures("store")
def test_runs_are_prefixes_with_finished_steps_and_it_is_said_what_is_missing() -> None:
    child = Child("model.dim = 8\nsteps = 40\n")
    runs = BucketRuns(URL, children=child)  # pyright: ignore[reportArgumentType]
    found = Api(runs).listed()
    shown = [(run["id"], run["name"], run["step"], run["steps"], run["state"]) for run in found["runs"]]
    assert shown == [("a", "a", 40, None, "lost"), ("deep/er/b", "b", 0, None, "lost")]
    assert found["directory"] == URL
    assert not child.asked
    about = runs.about("a")
    assert about["config"] == [("model.dim", "8"), ("steps", "40")]
    assert "Only checkpoints are kept here" in about["run"]["problems"][0]
    assert runs.listed()["runs"][0]["state"] == "done"
    assert child.asked == [("config", f"{URL}/a")]
    assert list(runs.stamps()) == ["a", "deep/er/b"]
    assert runs.log("a", 5, None)["lines"][0]["text"].startswith("Only checkpoints")
    assert runs.goodput("a") == {"kinds": {}, "spans": [], "events": []}
    assert runs.samples("a", "texts", "x", None) == {"texts": [], "more": False}
    for asked in (lambda: runs.curve("a", View("loss", "step", None, None, 9)), lambda: runs.about("none")):
        with pytest.raises(NotFound):
            asked()
    assert BucketRuns(f"{URL}/a").listed()["runs"][0]["id"] == "."


@pytest.mark.usefixtures("store")
def test_a_config_that_cannot_be_built_is_a_problem_and_the_steps_are_shown() -> None:
    runs = BucketRuns(URL, children=Child(None))  # pyright: ignore[reportArgumentType]
    about = runs.about("a")
    assert (about["run"]["step"], about["config"]) == (40, [])
    assert about["run"]["problems"][1] == "The config of step 40 cannot be built here."
    assert runs.memory("a", None)["note"] == "The config of step 40 cannot be built here."
    with pytest.raises(Exception, match="cannot be built here"):
        Api(runs).answer("/api/diff", Query("run=a"))


def test_a_store_that_does_not_answer_is_said_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for name, value in environment(f"http://127.0.0.1:{closed.getsockname()[1]}").items():
            monkeypatch.setenv(name, value)
        found = BucketRuns(URL, seconds=0.3).listed()
    assert found["runs"] == []
    assert URL in found["problems"][0]


def test_an_address_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match=r"board: expected a path, s3://BUCKET/NAME or gs://BUCKET/NAME"):
        BucketRuns("http://x/y")
