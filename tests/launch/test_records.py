# SPDX-License-Identifier: Apache-2.0
"""What the directory of a run tells of its job, also when it was torn, half written, or moved away meanwhile."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.launch import _records as records
from dovetail.launch._records import (
    Record,
    began_at,
    cancel_in,
    exit_code_in,
    is_cancelled,
    last_event,
    record_in,
    records_below,
    told,
    write_whole,
)

WHOLE = Record(
    engine="slurm",
    id="12",
    name="tiny-lm-ab12",
    directory="/runs/a",
    bundle="ab12",
    files={"job.sh": "#!/bin/bash\nexit\n"},
    log="/runs/a/launch/job-12.log",
    about={"runs": ["/runs/a/sweep/x=1"]},
)
TEXT = json.dumps(dataclasses.asdict(WHOLE), indent=1)
NAMES = [field.name for field in dataclasses.fields(Record)]
texts = st.text(max_size=20)


def placed(directory: Path, text: str | bytes) -> Path:
    """Has a directory that says this of its job."""
    (directory / "launch").mkdir(parents=True, exist_ok=True)
    (directory / "launch" / "job.json").write_bytes(text.encode() if isinstance(text, str) else text)
    return directory


def events(directory: Path, *lines: dict | str) -> Path:
    (directory / "launch").mkdir(parents=True, exist_ok=True)
    with (directory / "launch" / "events.jsonl").open("a") as file:
        for line in lines:
            file.write(f"{json.dumps(line)}\n" if isinstance(line, dict) else line)
    return directory


@given(
    st.builds(
        Record,
        engine=texts,
        id=texts,
        name=texts,
        directory=st.just("run"),
        bundle=texts,
        files=st.dictionaries(texts, texts, max_size=2),
        log=texts,
        about=st.dictionaries(texts, st.lists(texts, max_size=2) | st.integers() | st.none(), max_size=2),
    )
)
@settings(max_examples=30)
def test_what_is_written_is_what_is_read(tmp_path_factory, record):
    directory = tmp_path_factory.mktemp("record")
    there = dataclasses.replace(record, directory=str(directory))
    there.write()
    assert record_in(directory) == there
    assert {path.name for path in (directory / "launch").iterdir()} == {"job.json"}


def test_fields_of_a_later_version_are_passed_over(tmp_path):
    later = {**json.loads(TEXT), "colour": "blue"}
    assert record_in(placed(tmp_path, json.dumps(later))) == WHOLE


@pytest.mark.parametrize("name", NAMES)
def test_a_field_that_is_missing_has_its_default_or_there_is_no_record(tmp_path, name):
    fields = {key: value for key, value in json.loads(TEXT).items() if key != name}
    found = record_in(placed(tmp_path, json.dumps(fields)))
    if name in ("engine", "id", "name", "directory"):
        assert found is None
    else:
        assert found == dataclasses.replace(WHOLE, **{name: {"bundle": "", "log": ""}.get(name, {})})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [None, 7, ["a"]], ids=str)
def test_a_field_of_another_kind_is_no_record(tmp_path, name, value):
    assert record_in(placed(tmp_path, json.dumps({**json.loads(TEXT), name: value}))) is None


@pytest.mark.parametrize("text", ["[]", "null", "7", '"a"', "{}", "", "\n", "\0" * 4096, "{{"], ids=repr)
def test_what_is_no_record_is_nothing_known(tmp_path, text):
    assert record_in(placed(tmp_path, text)) is None


@given(st.integers(0, len(TEXT) - 1), st.sampled_from([b"", b"\0" * 100, b"\xff", b"{"]))
def test_a_record_that_was_torn_anywhere_is_nothing_known(tmp_path_factory, length, rest):
    assert record_in(placed(tmp_path_factory.mktemp("torn"), TEXT[:length].encode() + rest)) is None


def test_where_nothing_was_submitted_there_is_no_record(tmp_path):
    assert record_in(tmp_path) is None
    assert record_in(tmp_path / "nowhere") is None
    (tmp_path / "launch" / "job.json").mkdir(parents=True)
    assert record_in(tmp_path) is None


@pytest.mark.parametrize(
    "last, cancelled, wanted",
    [
        (None, False, ("failed", "nothing is known of it: see its log")),
        (None, True, ("cancelled", "it never ran")),
        ({"event": "launched"}, False, ("failed", "it was lost: the last thing known is 'launched'")),
        ({"event": "start"}, False, ("failed", "it was lost: the last thing known is 'start'")),
        ({"event": "start"}, True, ("cancelled", "it was lost: the last thing known is 'start'")),
        ({"event": "over", "code": 0}, False, ("done", "")),
        ({"event": "over", "code": 0}, True, ("done", "")),  # It came to its end before it was heard.
        ({"event": "over", "code": 85}, True, ("cancelled", "it has saved")),
        ({"event": "over", "code": 1}, True, ("cancelled", "")),
        ({"event": "over", "code": 85}, False, ("failed", "was asked to end, and saved")),
        ({"event": "over", "code": 86}, False, ("failed", "found that its host computes wrongly")),
        ({"event": "over", "code": 2}, False, ("failed", "found something that its user can mend")),
        ({"event": "over", "code": 1}, False, ("failed", "ended with exit code 1")),
        ({"event": "over", "code": -9}, False, ("failed", "was ended by SIGKILL")),
        ({"event": "over"}, False, ("failed", "its supervisor was ended")),
        ({"event": "over", "code": None}, False, ("failed", "its supervisor was ended")),
    ],
)
def test_what_is_told_of_a_job_follows_from_its_last_event(tmp_path, last, cancelled, wanted):
    if last is not None:
        events(tmp_path, {"event": "over", "code": 3}, {"event": "launched"}, {"event": "start"}, last)
        events(tmp_path, {"event": "host", "slot": "0"}, {"event": "failed"})  # Says nothing of the end.
    if cancelled:
        cancel_in(tmp_path, "12")
    assert told(tmp_path, "12") == wanted
    wanted_code = last.get("code") if last is not None and last["event"] == "over" else None
    assert exit_code_in(tmp_path) == wanted_code


def test_a_torn_last_line_counts_not(tmp_path):
    events(tmp_path, {"event": "launched"}, {"event": "start", "slots": ["0"]}, '{"event": "over", "co')
    assert last_event(tmp_path, "over", "start") == {"event": "start", "slots": ["0"]}
    assert exit_code_in(tmp_path) is None
    assert told(tmp_path, "12")[0] == "failed"


@pytest.mark.parametrize(
    "line", ["null\n", "[]\n", "7\n", "\0\0\n", "\n", '"over"\n', '{"event": ["over"]}\n'], ids=repr
)
def test_lines_that_are_no_events_count_not(tmp_path, line):
    events(tmp_path, {"event": "over", "code": 0}, line)
    assert told(tmp_path, "12") == ("done", "")


def test_only_the_end_of_many_events_is_read_and_a_line_that_is_cut_by_that_counts_not(tmp_path):
    events(tmp_path, {"event": "start"}, *[{"event": "host", "text": "x" * 1000}] * 70)
    assert last_event(tmp_path, "start") is None
    assert last_event(tmp_path, "host") == {"event": "host", "text": "x" * 1000}
    events(tmp_path, {"event": "start", "text": "é" * 100})
    assert last_event(tmp_path, "start") == {"event": "start", "text": "é" * 100}


def test_a_job_is_cancelled_by_its_own_id_alone(tmp_path):
    assert not is_cancelled(tmp_path, "12")
    cancel_in(tmp_path / "run", "12")
    cancel_in(tmp_path / "run", "13_4")
    with (tmp_path / "run" / "launch" / "cancelled").open("ab") as file:
        file.write(b"\xff\xfe")  # Torn.
    found = [
        job for job in ("12", "13_4", "1", "2", "13", "13_", "", "12\n", "121") if is_cancelled(tmp_path / "run", job)
    ]
    assert found == ["12", "13_4"]


def runs(directory: Path, *names: str) -> list[str]:
    for name in names:
        dataclasses.replace(WHOLE, directory=str(directory / name)).write()
    return [str(Path(each.directory).relative_to(directory)) for each in records_below(directory)]


def test_runs_are_found_below_a_directory_in_the_order_of_their_names(tmp_path):
    assert runs(tmp_path, "b", "a/x/y/z", "a", "c/sweep/n=1", "c/sweep/n=2") == [
        "a",
        "a/x/y/z",
        "b",
        "c/sweep/n=1",
        "c/sweep/n=2",
    ]
    assert [each.directory for each in records_below(tmp_path / "b")] == [str(tmp_path / "b")]


def test_runs_are_not_looked_for_where_none_are_and_not_for_ever(tmp_path):
    assert runs(tmp_path, "a/b/c/d/e", "a/launch/b", "a/checkpoints/b") == []
    assert list(records_below(tmp_path / "nowhere")) == []
    (tmp_path / "file").write_text("")
    assert list(records_below(tmp_path / "file")) == []


def test_links_are_not_followed(tmp_path):
    (tmp_path / "under").mkdir()
    runs(tmp_path, "elsewhere", "under/a")
    (tmp_path / "under" / "other").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "under" / "a" / "again").symlink_to(tmp_path / "under")
    (tmp_path / "under" / "lost").symlink_to(tmp_path / "nowhere")
    assert [Path(each.directory).name for each in records_below(tmp_path / "under")] == ["a"]
    (tmp_path / "link").symlink_to(tmp_path / "under")  # But for the one that is named.
    assert [Path(each.directory).name for each in records_below(tmp_path / "link")] == ["a"]


def test_who_reads_while_a_file_is_written_sees_all_of_it_and_who_writes_at_once_does_not_mix(tmp_path):
    file, wholes = tmp_path / "a" / "file", [bytes([n]) * 200_000 for n in range(4)]
    write_whole(file, wholes[0])
    seen, over = set[bytes](), threading.Event()

    def read():
        while not over.is_set():
            seen.add(file.read_bytes())

    def write():
        for _ in range(15):
            for whole in wholes:
                write_whole(file, whole)

    reader, writers = threading.Thread(target=read), [threading.Thread(target=write) for _ in range(2)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    over.set()
    reader.join()
    assert seen <= set(wholes)
    assert [path.name for path in file.parent.iterdir()] == ["file"]


def test_what_cannot_be_written_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch):
    write_whole(tmp_path / "file", b"first")

    def full(path, data):
        with path.open("wb") as opened:
            opened.write(data[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "file", b"second")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"first")]


@pytest.fixture
def process():
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def local(directory: Path, pid: int | str, host: str = socket.gethostname(), **about: object) -> Record:
    return Record(engine="local", id=f"{host}-{pid}", name="a", directory=str(directory), about=about)


def test_a_local_launch_runs_while_its_process_does(tmp_path, process):
    record = local(tmp_path, process.pid, began=began_at(process.pid))
    events(tmp_path, {"event": "start"})
    info = record.info()
    assert (info.state, info.detail) == ("running", f"process {process.pid} of this machine")
    record.end()
    assert process.wait() == -15
    assert record.info().state == "cancelled"
    record.end()  # It is over: nothing is done.


def test_one_that_has_ended_and_is_not_waited_for_does_not_run(process):
    assert began_at(os.getpid()) is not None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # Left as it is.
    assert began_at(process.pid) is None


def test_another_process_that_has_its_number_is_left_alone(tmp_path, process):
    began = began_at(process.pid)
    assert began is not None
    record = local(tmp_path, process.pid, began=began - 1)
    events(tmp_path, {"event": "over", "code": 0})
    assert record.info().state == "done"
    record.end()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)


def test_processes_are_told_apart_whatever_their_names(tmp_path):
    (tmp_path / "a) R 1 (b").symlink_to("/bin/sleep")
    with subprocess.Popen([tmp_path / "a) R 1 (b", "60"]) as running:
        began, mine = began_at(running.pid), began_at(os.getpid())
        running.kill()
    assert began is not None
    assert mine is not None
    assert 0 <= began - mine < 100_000_000


@pytest.mark.parametrize("pid", ["", "x", "-1", "999999999", "self"])
def test_what_is_no_process_does_not_run(tmp_path, pid):
    assert local(tmp_path, pid).pid is None
    assert local(tmp_path, pid).info().state in ("failed", "unknown")


def test_of_a_local_launch_elsewhere_only_its_end_is_known_here(tmp_path):
    record = local(tmp_path, os.getpid(), host="elsewhere")
    events(tmp_path, {"event": "start"})
    assert (record.info().state, record.info().detail) == ("unknown", "only elsewhere can tell")
    events(tmp_path, {"event": "over", "code": 85})
    assert (record.info().state, record.info().detail) == ("failed", "was asked to end, and saved")


@pytest.mark.parametrize("last, state", [(None, "unknown"), (85, "unknown"), (0, "done"), (1, "failed"), (2, "failed")])
def test_while_an_engine_does_not_answer_a_job_has_not_failed_unless_its_directory_says_so(tmp_path, last, state):
    record = dataclasses.replace(WHOLE, directory=str(tmp_path))
    events(tmp_path, {"event": "start"}, *([{"event": "over", "code": last}] if last is not None else []))
    info = record.unanswered()
    assert info.state == state
    assert info.detail == ("slurm does not answer" if state == "unknown" else told(tmp_path, record.id)[1])
    assert records.told(tmp_path, record.id)[0] == record.info().state  # What is told if it does not know the job.
