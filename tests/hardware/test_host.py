# SPDX-License-Identifier: Apache-2.0
"""Settings of the host: found, given to a new process once, and never needed."""

import json
import os
import subprocess
import sys

import pytest

from dovetail.hardware import SWITCH, host_settings
from dovetail.hardware import _host as host


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch):
    monkeypatch.setattr(host, "_ACCELERATORS", ())


def test_settings_are_for_cpus_alone(monkeypatch):
    monkeypatch.setattr(host, "_JEMALLOC", (os.devnull,))
    assert [setting.name for setting in host_settings({})] == ["jemalloc", "YNN matrix products"]
    assert host_settings({"JAX_PLATFORMS": "cuda"}) == []
    monkeypatch.setattr(host, "_ACCELERATORS", (os.devnull,))
    assert host_settings({}) == []


def test_a_process_that_has_them_lacks_nothing(monkeypatch):
    monkeypatch.setattr(host, "_JEMALLOC", (os.devnull,))
    lacking = host_settings({"LD_PRELOAD": "/lib/other.so", "XLA_FLAGS": "--xla_dump_to=/x"})
    assert not any(setting.active for setting in lacking)
    variables = {name: value for setting in lacking for name, value in setting.variables.items()}
    assert variables["LD_PRELOAD"] == f"/lib/other.so {os.devnull}"
    assert variables["XLA_FLAGS"].startswith("--xla_dump_to=/x --xla_cpu_")
    monkeypatch.setattr(host, "_JEMALLOC", ("/lib/libjemalloc.so.2",))
    had = host_settings({**variables, "LD_PRELOAD": "/lib/libjemalloc.so.2"})
    assert all(setting.active and not setting.variables for setting in had)


def test_without_jemalloc_the_allocator_of_the_system_takes_huge_pages(monkeypatch):
    monkeypatch.setattr(host, "_JEMALLOC", ())
    monkeypatch.setattr(host, "_has_huge_pages", lambda: True)
    lacking = host_settings({"GLIBC_TUNABLES": "glibc.malloc.check=0"})[0]
    assert (lacking.name, lacking.active) == ("huge pages", False)
    assert lacking.variables["GLIBC_TUNABLES"].startswith("glibc.malloc.check=0:glibc.malloc.hugetlb=1:")
    had = host_settings(lacking.variables)[0]
    assert (had.active, had.variables) == (True, {})


@pytest.mark.parametrize(
    "version, pages", [("musl 1.2", "[madvise]"), ("glibc 2.31", "always"), ("glibc 2.36", "[never]")]
)
def test_where_there_are_no_huge_pages_nothing_is_changed(monkeypatch, tmp_path, version, pages):
    (tmp_path / "enabled").write_text(f"always madvise {pages}\n")
    monkeypatch.setattr(host, "_JEMALLOC", ())
    monkeypatch.setattr(host, "_NO_HUGE_PAGES", str(tmp_path / "enabled"))
    monkeypatch.setattr(os, "confstr", lambda name: version)
    allocator = host_settings({})[0]
    assert (allocator.active, allocator.variables) == (False, {})
    assert "not to be had here" in allocator.text


ASKED = """
import numpy as np
memory = np.ones(4 << 20, np.uint8)
at, flags = memory.ctypes.data, ""
for line in open("/proc/self/smaps"):
    head = line.split()[0]
    if "-" in head and not head.endswith(":"):
        start, stop = (int(part, 16) for part in head.split("-"))
        inside = start <= at < stop
    elif head == "VmFlags:" and inside:
        flags = line
print("hg" in flags.split())  # As madvise(MADV_HUGEPAGE) marks it; whether there are such pages is the system's affair.
"""


@pytest.mark.skipif(not host._has_huge_pages(), reason="no huge pages")
def test_what_is_set_asks_for_huge_pages(monkeypatch):
    monkeypatch.setattr(host, "_JEMALLOC", ())
    (variables, *_) = [setting.variables for setting in host_settings({})]
    plain = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "GLIBC_TUNABLES")}

    def asks(more) -> bool:
        command = [sys.executable, "-c", ASKED]
        ran = subprocess.run(command, env={**plain, **more}, capture_output=True, text=True, check=True)
        return ran.stdout.strip() == "True"

    assert asks(variables)
    assert not asks({})


def test_flags_are_only_given_to_versions_that_know_them(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.11.0")
    products = host_settings({})[1]
    assert (products.active, products.variables) == (False, {})


PROGRAM = """
import json, os, sys
from dovetail.hardware import Setting, restart_with
restart_with([Setting("a", False, "", {"SOME_SETTING": "1"}), Setting("b", True, "", {})])
print(json.dumps([sys.argv[1:], os.environ.get("SOME_SETTING"), os.getpid()]))
"""


@pytest.mark.parametrize("switch, value", [(None, "1"), ("plain", None)])
def test_a_program_starts_again_once_with_its_arguments(switch, value):
    environ = {name: text for name, text in os.environ.items() if name != SWITCH}
    environ |= {} if switch is None else {SWITCH: switch}
    command = [sys.executable, "-c", PROGRAM, "a b", "c"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate(timeout=60)
    assert json.loads(out) == [["a b", "c"], value, process.pid]


def test_hardware_is_imported_without_jax_which_reads_the_settings_when_it_is():
    program = "import sys, dovetail.hardware, dovetail.cli; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
