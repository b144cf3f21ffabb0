# SPDX-License-Identifier: Apache-2.0
"""Which Python a host runs a bundle with: the one at hand if it has what is listed, and else one made once.

What makes one is a stub: nothing is installed.
"""

import ast
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import pytest

from dovetail.launch import _interpreter as interpreter

FILE = Path(interpreter.__file__)
HERE = [f"{name}=={metadata.version(name)}" for name in ("numpy", "hypothesis")]

# Stands for Python: `-m venv` makes a directory with a copy of it, `-m pip` fails if there is a file `broken`.
_STUB = """#!/bin/sh
echo "$@" >> {calls}
case "$2" in
  venv) rm -rf "$4"; mkdir -p "$4/bin"; sleep 0.2; cp "$0" "$4/bin/python"; echo "making" ;;
  pip) echo "installing"; [ ! -e {broken} ] ;;
esac
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """A Python that has nothing."""
    file = tmp_path / "stub"
    file.write_text(_STUB.format(calls=tmp_path / "calls", broken=tmp_path / "broken"))
    file.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(file))
    return file


@pytest.fixture
def listed(tmp_path):
    def written(*lines: str) -> Path:
        file = tmp_path / "constraints.txt"
        file.write_text("".join(f"{line}\n" for line in lines))
        return file

    return written


def calls(tmp_path) -> list[str]:
    file = tmp_path / "calls"
    return file.read_text().splitlines() if file.exists() else []


def found(*arguments) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FILE, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_is_missing_and_what_is_another_version_are_told_apart():
    numpy = metadata.version("numpy")
    wanted = [*HERE, "no-such-thing==1.0", "numpy==0.1"]
    assert interpreter.lacking(wanted) == (["no-such-thing==1.0"], [f"numpy==0.1 (here {numpy})"])
    assert interpreter.lacking([]) == ([], [])


def test_the_python_at_hand_is_taken_if_it_has_all(tmp_path, listed):
    done = found(listed(*HERE), tmp_path / "place")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{sys.executable}\n", "")
    assert not (tmp_path / "place").exists()


def test_one_that_has_all_in_other_versions_is_taken_as_it_is_if_that_is_asked_for(tmp_path, listed):
    done = found(listed(HERE[0], "hypothesis==0.1"), tmp_path / "place", "--as-it-is")
    assert (done.returncode, done.stdout) == (0, f"{sys.executable}\n")
    here = metadata.version("hypothesis")
    assert done.stderr == f"launch: {sys.executable} has other versions: hypothesis==0.1 (here {here})\n"


def test_one_that_lacks_something_is_an_error_if_it_is_to_be_taken_as_it_is(tmp_path, listed):
    done = found(listed(*HERE, "no-such-thing==1.0", "nor-this==2"), tmp_path / "place", "--as-it-is")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"launch: {sys.executable} does not have no-such-thing==1.0, nor-this==2\n"
    assert not (tmp_path / "place").exists()


def test_what_is_not_there_is_made_once_for_a_list(tmp_path, listed, stub, capfd):
    constraints, place = listed("no-such-thing==1.0"), tmp_path / "place"
    for _ in range(2):
        assert interpreter.main([str(constraints), str(place)]) == 0
    out, err = capfd.readouterr()
    python, again = out.splitlines()  # Nothing else is printed: it is read by a shell.
    assert python == again
    assert Path(python).parent.parent.parent == place
    assert err.count("once on this host") == 1
    directory = Path(python).parent.parent
    assert calls(tmp_path) == [
        f"-m venv --clear {directory}",
        f"-m pip install --quiet --disable-pip-version-check --no-deps -r {constraints}",
    ]
    interpreter.main([str(listed("no-such-thing==1.1")), str(place)])
    assert capfd.readouterr().out.strip() != python  # Another list.


def test_another_version_of_what_is_there_is_a_reason_to_make_one(tmp_path, listed, stub, capfd):
    assert interpreter.main([str(listed("numpy==0.1")), str(tmp_path / "place")]) == 0
    assert len(calls(tmp_path)) == 2


def test_what_could_not_be_made_is_an_error_and_is_tried_again(tmp_path, listed, stub, capfd):
    (tmp_path / "broken").write_text("")
    arguments = [str(listed("no-such-thing==1.0")), str(tmp_path / "place")]
    assert interpreter.main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "launch: no Python could be made for the job: Command" in err
    (tmp_path / "broken").unlink()
    assert interpreter.main(arguments) == 0
    assert len(calls(tmp_path)) == 4


def test_a_place_that_cannot_be_written_is_an_error(tmp_path, listed, stub, capfd):
    (tmp_path / "place").write_text("")
    assert interpreter.main([str(listed("no-such-thing==1.0")), str(tmp_path / "place")]) == 2
    assert "no Python could be made for the job: [Errno 17] File exists" in capfd.readouterr().err


def test_several_that_come_at_once_make_one(tmp_path, listed, stub):
    constraints, made = listed("no-such-thing==1.0"), []
    threads = [
        threading.Thread(target=lambda: made.append(interpreter.made(constraints, tmp_path / "place")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert len(set(made)) == 1
    assert len(calls(tmp_path)) == 2


def test_it_needs_nothing_but_python():
    names = {alias.name for node in ast.walk(ast.parse(FILE.read_text())) for alias in getattr(node, "names", [])}
    assert names <= {*sys.stdlib_module_names, "metadata", "Path"}
    done = subprocess.run([sys.executable, "-I", "-S", FILE, "/dev/null", "/nowhere"], capture_output=True, check=True)
    assert done.stdout.decode().strip() == sys.executable


@pytest.mark.parametrize("version", [(3, 6, 8), (3, 9, 18), (3, 10, 1)])
def test_an_older_python_says_so_and_ends_before_anything_it_does_not_know(version):
    """As on hosts whose own is old: here, one that says it is, and knows no more than that."""
    ast.parse(FILE.read_text(), feature_version=version[:2])
    text = f"""
import runpy, sys
sys.version_info, sys.version = {version}, "{".".join(map(str, version))} (default)"
for name in ("importlib.metadata", "pathlib", "fcntl", "hashlib"):
    sys.modules[name] = None
sys.argv = [{str(FILE)!r}, "/nowhere", "/nowhere"]
runpy.run_path({str(FILE)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-S", "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    shown = ".".join(map(str, version))
    assert done.stderr == f"launch: {sys.executable} is Python {shown}, expected 3.11 or newer\n"
