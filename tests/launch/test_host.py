# SPDX-License-Identifier: Apache-2.0
"""What a host of a job knows of itself, by what its engine has set, and what it does before there is anything to run.

`test_pods.py` has whole jobs.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.clusters.slurm_cluster import SlurmCluster

from dovetail.config import ConfigError
from dovetail.launch import Supervision
from dovetail.launch import _host as hosts
from dovetail.launch._agent import free_port
from dovetail.launch._host import Identity, Work, addresses, slot_of, worker_environment
from dovetail.progress import Status

SLURM = {
    "SLURM_JOB_ID": "12",
    "SLURM_CLUSTER_NAME": "lab",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
POD = {"JOB_INDEX": "2", "COMPLETIONS": "4", "JOB_COMPLETION_INDEX": "3"}
OWN = {"DOVETAIL_TOKEN": "secret", "DOVETAIL_SUPERVISOR": "10.0.0.1:7077"}


@pytest.mark.parametrize(
    "environ, slot",
    [
        (SLURM, 1),
        (POD, 11),
        ({"DOVETAIL_SLOT": "5"}, 5),
        ({"DOVETAIL_SLOT": "0", **SLURM, **POD}, 0),  # Who says it outright is believed first.
        ({"DOVETAIL_SLOT": "", **SLURM}, 1),
        ({"DOVETAIL_SLOT": "first", **POD}, 11),
        ({**POD, "COMPLETIONS": "", "SLURM_PROCID": "7"}, 7),
        ({"JOB_INDEX": "0", "COMPLETIONS": "1", "JOB_COMPLETION_INDEX": "0"}, 0),
    ],
)
def test_the_slot_of_a_host_is_what_its_engine_says(environ, slot):
    assert slot_of(environ) == slot


@given(st.integers(1, 5), st.integers(1, 5))
def test_hosts_of_several_indexed_jobs_have_all_slots_once(jobs, completions):
    slots = [
        slot_of({"JOB_INDEX": str(job), "COMPLETIONS": str(completions), "JOB_COMPLETION_INDEX": str(each)})
        for job in range(jobs)
        for each in range(completions)
    ]
    assert slots == [*range(jobs * completions)]


@pytest.mark.parametrize("environ", [{}, {"DOVETAIL_SLOT": "-1"}, {"SLURM_PROCID": "1.0"}, {"JOB_INDEX": "1"}])
def test_a_host_that_nobody_numbers_is_an_error_with_all_ways_to_say_it(environ):
    with pytest.raises(ConfigError) as raised:
        slot_of(environ)
    assert str(raised.value) == (
        "launch host: nothing says which host this is. Set DOVETAIL_SLOT, or JOB_INDEX with COMPLETIONS with "
        "JOB_COMPLETION_INDEX, or SLURM_PROCID, to a number."
    )


def test_who_a_host_is_follows_from_its_environment():
    assert Identity.of({**OWN, **SLURM}) == Identity(1, (("10.0.0.1", 7077),), "secret", "slurm-lab-12", "12")
    engine = {"DOVETAIL_LAUNCH": "mine", "DOVETAIL_ID": "12_3", "DOVETAIL_SLOT": "0"}
    found = Identity.of({**SLURM, **OWN, **engine, "DOVETAIL_SUPERVISOR": "a.b:1, [fe80::1]:2,::1:3"})
    assert found == Identity(0, (("a.b", 1), ("fe80::1", 2), ("::1", 3)), "secret", "mine", "12_3")
    assert Identity.of({**OWN, **POD}) == Identity(11, (("10.0.0.1", 7077),), "secret", "", "")


@pytest.mark.parametrize(
    "environ, said",
    [
        ({}, "DOVETAIL_TOKEN and DOVETAIL_SUPERVISOR must be in the environment: engines set it."),
        ({**OWN, "DOVETAIL_TOKEN": ""}, "DOVETAIL_TOKEN must be in the environment: engines set it."),
        ({"DOVETAIL_TOKEN": "x"}, "DOVETAIL_SUPERVISOR must be in the environment: engines set it."),
        ({**OWN, "DOVETAIL_SUPERVISOR": "host"}, "DOVETAIL_SUPERVISOR has 'host', expected HOST:PORT."),
        ({**OWN, "DOVETAIL_SUPERVISOR": ":80"}, "DOVETAIL_SUPERVISOR has ':80', expected HOST:PORT."),
        ({**OWN, "DOVETAIL_SUPERVISOR": "a:80,b:http"}, "DOVETAIL_SUPERVISOR has 'b:http', expected HOST:PORT."),
        ({**OWN, "DOVETAIL_SUPERVISOR": "a:80,"}, "DOVETAIL_SUPERVISOR has '', expected HOST:PORT."),
        ({**OWN, "DOVETAIL_SUPERVISOR": "a:-1"}, "DOVETAIL_SUPERVISOR has 'a:-1', expected HOST:PORT."),
        (OWN, "nothing says which host this is. Set DOVETAIL_SLOT, or"),
    ],
)
def test_what_a_host_lacks_is_said_without_the_token(environ, said):
    with pytest.raises(ConfigError) as raised:
        Identity.of(environ)
    assert str(raised.value).startswith(f"launch host: {said}")
    assert "secret" not in str(raised.value)


texts = st.text(max_size=20)


@given(
    st.lists(texts, max_size=4),
    st.integers(1, 9),
    st.builds(Supervision, heartbeat=st.floats(0.1, 100), max_restarts=st.integers(0, 9)),
    st.builds(Status, on=st.booleans(), host=texts, port=st.integers(0, 65535), token_file=st.none() | texts),
    st.floats(0, 1e6),
    st.integers(1, 8),
)
def test_work_comes_out_of_one_line_of_text_as_it_went_in(
    arguments, processes, supervision, status, patience, together
):
    work = Work((*arguments,), processes, 1, supervision, status, patience, together)
    assert len(work.text.splitlines()) == 1
    assert Work.of(work.text) == work
    json.loads(work.text)


def test_a_workers_environment_does_not_say_which_host_it_is_on(monkeypatch):
    given = {
        **OWN,
        **SLURM,
        "DOVETAIL_SLOT": "1",
        "DOVETAIL_BUNDLE": "/b",
        "DOVETAIL_ID": "12",
        "DOVETAIL_PER_HOST": "1",
    }
    kept = {"PATH": "/bin", "DOVETAIL_LAUNCH": "mine", "PYTHONPATH": "/b/code", "JAX_PLATFORMS": "cpu"}
    found = worker_environment({**given, **kept})
    left = {"SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_NTASKS"}
    assert found == {**kept, **{name: SLURM[name] for name in left}}
    for environ, known in (({**given, **kept}, True), (found, False)):
        with monkeypatch.context() as patched:
            for name in [*SLURM, *given]:
                patched.delenv(name, raising=False)
            for name, value in environ.items():
                patched.setenv(name, value)
            assert SlurmCluster.is_env_present() == known  # JAX would take one GPU for each process.


def test_a_process_for_each_chip_has_its_own_and_one_for_a_host_has_all():
    chips = worker_environment({**SLURM, "SLURM_LOCALID": "3", "DOVETAIL_PER_HOST": "chips"})
    assert chips["JAX_LOCAL_DEVICE_IDS"] == "3"
    assert "JAX_LOCAL_DEVICE_IDS" not in worker_environment({**SLURM, "SLURM_LOCALID": "3"})
    assert "JAX_LOCAL_DEVICE_IDS" not in worker_environment({**POD, "DOVETAIL_PER_HOST": "chips"})


def places(text: str) -> list[tuple[str, int]]:
    return list(Identity.of({"DOVETAIL_TOKEN": "x", "DOVETAIL_SUPERVISOR": text, "DOVETAIL_SLOT": "0"}).supervisor)


def test_who_listens_at_the_port_is_reached_at_each_address():
    found = places(addresses())
    assert found
    with socket.create_server(("", found[0][1]), backlog=len(found)):
        for place in found:
            socket.create_connection(place, timeout=5).close()


def test_addresses_that_other_hosts_do_not_reach_are_named_only_if_there_are_no_others(monkeypatch):
    there = {
        "lo": "127.0.0.1",
        "docker0": "172.17.0.1",
        "br-1a2b": "172.18.0.1",
        "veth7": "",
        "ib0": "",
        "eth0": "10.0.0.5",
    }
    there |= {"eth1": "10.1.0.5", "bond0": "10.0.0.5"}

    def address(probe, name):
        if not there[name]:
            raise OSError(99, "Cannot assign requested address")
        return there[name]

    monkeypatch.setattr(hosts, "_address", address)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [*enumerate(there)])
    found = places(addresses())
    assert [host for host, _ in found] == ["10.0.0.5", "10.1.0.5"]
    assert len({port for _, port in found}) == 1
    there = {"lo": "127.0.0.1", "docker0": "172.17.0.1"}
    assert [host for host, _ in places(addresses())] == ["127.0.0.1", "172.17.0.1"]


WORK = Work(("train", "{bundle}/user/0/mine.py:run"), 1, 1, Supervision(), Status(on=False))


def host(directory, environ: dict[str, str], work: Work = WORK) -> "subprocess.Popen[str]":
    """Starts the entry of a job, as an engine does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "DOVETAIL"))}
    command = [sys.executable, "-m", "dovetail.launch", "host", work.text, str(directory)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**kept, **environ}, stdout=pipe, stderr=pipe, text=True)


def own(slot, port, **also) -> dict[str, str]:
    return {"DOVETAIL_TOKEN": "x", "DOVETAIL_SUPERVISOR": f"127.0.0.1:{port}", "DOVETAIL_SLOT": str(slot), **also}


def test_a_host_that_is_told_too_little_ends_with_one_message(tmp_path):
    with host(tmp_path / "run", {"DOVETAIL_TOKEN": "x"}) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert (out, err) == ("", "launch host: DOVETAIL_SUPERVISOR must be in the environment: engines set it.\n")
    assert not (tmp_path / "run").exists()


def test_a_job_that_was_cancelled_ends_on_its_first_host_before_anything_runs(tmp_path):
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "cancelled").write_text("12_3\n")
    with host(tmp_path, own(0, free_port(), DOVETAIL_ID="12_3")) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 85, err
    assert out == ""
    assert (tmp_path / "launch" / "code").read_text() == "85\n"
    events = [json.loads(line)["event"] for line in (tmp_path / "launch" / "events.jsonl").read_text().splitlines()]
    assert events[0] == "launched"
    assert events[-1] == "over"
    assert "start" not in events


@pytest.mark.parametrize("slot, code", [(0, 85), (1, 0)])
def test_a_host_that_waits_for_others_ends_when_it_is_asked_to(tmp_path, slot, code):
    """The first one waits for the others, and the others for the first."""
    with host(tmp_path, own(slot, free_port()), WORK._replace(processes=2)) as process:
        until = time.monotonic() + 60
        while not (tmp_path / "launch").exists():  # It listens for signals before.
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code, (out, err)
    assert (tmp_path / "launch" / "code").exists() == (slot == 0)
    assert "Traceback" not in out + err
