# SPDX-License-Identifier: Apache-2.0
"""What looks at a run: profiles of real steps by config path, on time and on request, and its status while it runs."""

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.config import ConfigError
from dovetail.progress import STATUS, Status, Watcher, supervised
from dovetail.train import Profile, read_profile
from support.runs import evaluated_at_the_end, tiny


class Asks(Watcher):
    """Asks the run for its status, and for what a token allows, in the middle of it."""

    def __init__(self, directory: Path, token: str) -> None:
        self._directory, self._token, self.found = directory, token, {}

    def started(self, name):
        pass

    def ended(self, name, seconds):
        pass

    def advanced(self, done, total, waited):
        if done == 4:
            url = json.loads((self._directory / STATUS).read_text())["url"]
            for path in ("status", "healthz"):
                self.found[path] = urllib.request.urlopen(f"{url}/{path}").read().decode()
            os.kill(os.getpid(), signal.SIGUSR2)
        if done == 12:
            url = json.loads((self._directory / STATUS).read_text())["url"]
            headers = {"Authorization": f"Bearer {self._token}"}
            self.found["code"] = urllib.request.urlopen(
                urllib.request.Request(f"{url}/stop", data=b"", headers=headers)
            ).status


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run that profiles its second and third step, and is then asked for its status, for a profile, and to stop."""
    directory = tmp_path_factory.mktemp("watched")
    token = directory / "token"
    token.write_text("0123456789abcdef\n")
    cfg = evaluated_at_the_end(tiny(directory, steps=1000, save_every=1000))
    cfg = cfg.set(profile=Profile(steps="2-3"), status=Status(token_file=str(token)))
    asks = Asks(Path(cfg.directory), "0123456789abcdef")
    with supervised(asks):
        state = cfg.build().run()
    return Path(cfg.directory), asks.found, int(state.step)


def test_a_run_tells_its_status_and_stops_when_it_is_asked_with_the_token(watched):
    directory, found, last = watched
    status = json.loads(found["status"])
    assert (status["run"], status["steps"], status["problem"]) == (str(directory), 1000, "")
    assert 2 <= status["step"] <= 4
    assert status["loss"] > 0
    assert status["goodput"]["seconds"]["compile"] > 0
    assert found["healthz"] == "ok\n"
    assert found["code"] == 202
    assert 12 <= last < 1000
    assert not (directory / STATUS).exists()


def test_a_profile_has_the_parts_of_the_model_and_its_sum_is_the_time_in_which_devices_compute(watched, capsys):
    directory, _, _ = watched
    found = read_profile(directory / "profile/step_2")
    paths = {each.path for each in found.operations}
    assert {"model.stack.layer.ffn.up", "model.stack.layer.mixer.query", "learner"} <= paths
    assert (found.first, found.last, found.devices) == (2, 3, 1)
    assert 0.1 * found.step_seconds < found.busy_seconds <= found.step_seconds
    known = sum(each.seconds for each in found.operations if each.path)
    assert known > 0.5 * found.busy_seconds
    (product,) = {each.times for each in found.operations if each.opcode == "dot" and each.path.endswith("ffn.up")}
    assert product >= 2  # In two microbatches.

    assert main(["profile", str(directory / "profile/step_2")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("steps 2 to 3: ")
    assert "\nmodel.stack.layer.ffn.up " in out
    assert "\n(nothing ran) " in out
    assert main(["profile", str(directory / "profile/step_2"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sum(part["seconds"] for part in told["paths"]) == pytest.approx(told["busy_seconds"])
    assert told["busy_seconds"] + told["nothing_ran_seconds"] == pytest.approx(told["step_seconds"])


def test_a_signal_asks_for_a_profile_of_the_next_three_steps(watched):
    directory, _, _ = watched
    found = read_profile(directory)  # The newest.
    assert found.where != directory / "profile/step_2"
    assert found.last - found.first == 2
    assert found.first > 4


@pytest.mark.parametrize("steps", ["", "0-3", "5-4", "1-101", "all", "3-"])
def test_steps_of_a_profile_that_are_none_are_refused(steps):
    with pytest.raises(
        ConfigError, match=r"^profile\.steps is .*, expected steps as in 10-12, counted from 1, at most"
    ):
        Profile(steps=steps).range()


def test_where_there_is_no_profile_it_is_said_how_to_make_one(tmp_path, capsys):
    assert main(["profile", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith(
        "there is no profile in it. Train with profile.steps=10-12, or send SIGUSR2 to the process.\n"
    )
