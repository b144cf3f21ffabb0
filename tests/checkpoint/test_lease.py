# SPDX-License-Identifier: Apache-2.0
"""One run at a time: who gets a directory, who is told that it is taken, and who writes no more."""

import dataclasses
import re
import signal
import subprocess
import time

import pytest

from checkpoint.helpers import abstract, assert_identical, config_in, save_steps, small_state, start_python
from dovetail.checkpoint import LeaseError, _lease
from dovetail.checkpoint._lease import Lease, _myself, _Watch
from dovetail.checkpoint._store_open import open_store
from dovetail.config import ConfigError
from dovetail.storage import born

HOLD = """
import sys
from checkpoint.helpers import config_in, save_steps, small_state
from dovetail.checkpoint import _lease
from dovetail.config import ConfigError
_lease.EVERY = 0.2
cfg = config_in(sys.argv[1])
checkpointer = cfg.build()
print("ready", flush=True)
sys.stdin.readline()
try:
    checkpointer.prepare()
except ConfigError as e:
    print("refused:", str(e).replace(chr(10), "|"), flush=True)
    sys.exit(2)
print("holds", flush=True)
for line in sys.stdin:
    checkpointer.save(int(line), small_state(int(line)), config=cfg)
    try:
        checkpointer.wait()
    except Exception as e:
        print(type(e).__name__, str(e).replace(chr(10), "|"), flush=True)
    else:
        print("saved", flush=True)
"""


def holder(place: str, **env: str):
    """Starts a process that holds a place, when it is told to."""
    process = start_python(HOLD, place, **env)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def told(process, line: str = "") -> str:
    """Returns what a process says to a line."""
    tell(process, line)
    return heard(process)


def tell(process, line: str = "") -> None:
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def heard(process) -> str:
    return process.stdout.readline().rstrip("\n")


def end(process) -> None:
    process.kill()
    process.communicate()


def test_of_two_processes_that_race_exactly_one_wins_and_the_other_is_told_who_has_it(place):
    first, second = processes = [holder(place), holder(place)]
    try:
        for process in processes:
            tell(process)
        said = [heard(process) for process in processes]
        winner = processes[said.index("holds")]
        (refused,) = (text for text in said if text != "holds")
        time_ = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
        where = re.escape(place)
        assert re.fullmatch(
            rf"refused: {where}: another run is writing there: process {winner.pid} on \S+, since {time_}, last "
            rf"renewed {time_} by its clock.\|  Stop that one first, or give this run a directory of its own: "
            r"directory=runs/NAME\|  \(One that was killed need not be stopped: its place is free at once on the same "
            r"host, and 30 seconds later on another.\)",
            refused,
        )
        assert told(winner, "1") == "saved"
    finally:
        end(first)
        end(second)


@pytest.mark.slow
def test_after_a_kill_the_next_run_starts_at_once(place, monkeypatch):
    monkeypatch.setattr(_lease, "PATIENCE", 1e9)  # It does not wait for that.
    process = holder(place)
    try:
        assert told(process) == "holds"
        assert told(process, "1") == "saved"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with config_in(place).build() as checkpointer:
        checkpointer.prepare()
        checkpointer.save(2, small_state(2), config=checkpointer.cfg)
    assert checkpointer.steps() == [1, 2]


def test_a_process_that_was_stopped_and_wakes_up_after_another_took_over_saves_nothing(place, monkeypatch):
    monkeypatch.setattr(_lease, "PATIENCE", 2.0)
    process = holder(place)
    try:
        assert told(process) == "holds"
        assert told(process, "1") == "saved"
        process.send_signal(signal.SIGSTOP)
        checkpointer = config_in(place).build()
        checkpointer.save(2, small_state(2), config=checkpointer.cfg)
        checkpointer.wait()
        process.send_signal(signal.SIGCONT)
        said = told(process, "3")
        assert re.match(
            rf"LeaseError checkpoint {re.escape(place)}/step_3 was not saved: .* has lost its directory", said
        )
        assert checkpointer.steps() == [1, 2]
        checkpointer.save(3, small_state(5), config=checkpointer.cfg)
        assert_identical(checkpointer.restore(abstract(small_state()), 3).state, small_state(5))
        checkpointer.close()
    finally:
        end(process)


@pytest.mark.slow
def test_a_restarted_gang_takes_over_from_the_start_before_it_and_never_from_a_later_one(place, monkeypatch):
    monkeypatch.setenv("DOVETAIL_LAUNCH", "a")
    process = holder(place, DOVETAIL_START="1")
    try:
        assert told(process) == "holds"
        for start in ("0", "1"):
            monkeypatch.setenv("DOVETAIL_START", start)
            with pytest.raises(ConfigError, match="another run is writing there"):
                config_in(place).build().prepare()
        monkeypatch.setattr(_lease, "PATIENCE", 1e9)
        monkeypatch.setenv("DOVETAIL_START", "2")
        with config_in(place).build() as checkpointer:
            checkpointer.prepare()  # The one before is alive, and not waited for.
            assert told(process, "1").startswith("LeaseError")
    finally:
        end(process)


def test_whoever_lets_go_is_followed_at_once_and_leaves_no_trace(place):
    for step in (1, 2):
        with save_steps(place, step) as checkpointer:
            assert checkpointer.store.notes().names() == ["lease-00000001"]
        assert checkpointer.store.notes().names() == []


def test_several_checkpointers_of_a_process_share_its_lease_until_the_last_is_closed(place):
    first, second = save_steps(place, 1), save_steps(place, 2)
    first.close()
    assert len(second.store.notes().names()) == 1
    second.close()
    assert second.store.notes().names() == []


@pytest.mark.slow
def test_reading_needs_no_lease(place):
    save_steps(place, 1).close()
    process = holder(place)
    try:
        assert told(process) == "holds"
        assert config_in(place).build().restore(abstract(small_state())).step == 1
    finally:
        end(process)


def test_a_lease_is_renewed_and_a_note_that_is_gone_is_not_made_again(place, monkeypatch):
    monkeypatch.setattr(_lease, "EVERY", 0.05)
    store = open_store(place, where="test")
    store.reach()
    notes = store.notes()
    lease = Lease(notes, place)
    (name,) = notes.names()
    seen = notes.read(name)
    wait_until(lambda: notes.read(name) != seen)
    lease.check()
    notes.delete(name)
    wait_until(lambda: not lease.is_mine())
    with pytest.raises(LeaseError, match=r"has lost its directory. (It is not held now|Another run has it, or had it)"):
        lease.check()
    lease.release()
    assert notes.names() == []


def wait_until(condition) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_whoever_was_seen_to_change_is_alive_and_whoever_was_not_for_long_is_dead(host):
    me, clock = _myself(), Clock()
    other = dataclasses.replace(me, token="other", kernel=me.kernel if host == "here" else "another")
    for renewed in ("2035-01-01", "1970-01-01"):  # Whatever its clock says.
        note = dataclasses.replace(other, renewed=renewed).to_bytes()
        watch = _Watch("runs/x", me, clock)
        assert not watch.is_free(note)
        clock.now += _lease.PATIENCE - 1
        assert not watch.is_free(note)
        clock.now += 1
        assert watch.is_free(note)
        watch = _Watch("runs/x", me, clock)
        assert not watch.is_free(note)
        with pytest.raises(ConfigError, match="another run is writing there: process"):
            watch.is_free(dataclasses.replace(other, renewed="1999-01-01").to_bytes())


def test_a_process_of_this_host_that_is_gone_is_known_to_be_by_its_number_and_when_it_was_started():
    me = _myself()
    for gone in ({"pid": 2**22 + 1}, {"born": "1"}):  # No such process; another one with that number.
        assert _Watch("x", me).is_free(dataclasses.replace(me, token="other", **gone).to_bytes())
    with subprocess.Popen(["true"]) as process:
        wait_until(lambda: born(process.pid) is None)  # A dead child that nobody has waited for.


def test_rubbish_in_place_of_a_note_is_watched_like_one():
    watch, clock = _Watch("x", _myself()), Clock()
    watch._clock = clock
    assert not watch.is_free(b"{")
    clock.now += _lease.PATIENCE
    assert watch.is_free(b"{")
