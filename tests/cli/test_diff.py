# SPDX-License-Identifier: Apache-2.0
"""What `diff` prints of two recipes, and of what an engine would be given for them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.cli._code import _files
from dovetail.launch import Bundle, Record

_HERE = ["model.dim=64", "steps=7"]


@pytest.fixture(autouse=True)
def nobodys_files():
    """Files of the user's that were loaded by earlier tests are not in the bundles of these."""
    before = dict(_files)
    _files.clear()
    yield
    _files.clear()
    _files.update(before)


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """The directory of a run that was submitted to Slurm: what `launch --dry-run` prints, with its bundle."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "first"
    bundle = Bundle({"about.json": b"{}\n", "code/gone.py": b"old\n", "code/picture": b"\xff"})
    bundle.write(run)
    Record("slurm", "7", "first", str(run), bundle.hash, {"job.sh": "#!/bin/bash\n#SBATCH --time=1:00:00\n"}).write()
    return run


def _changes(capsys, *arguments) -> dict[str, list[str]]:
    """Returns the lines that differ, by file."""
    assert main(["diff", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {each["file"]: [line for line in each["diff"].splitlines()[2:] if line[:1] in "+-"] for each in found}


def test_diff_of_a_recipe_and_a_file(capsys, tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(
        "from dovetail.zoo import recipe\ndef wide():\n    return recipe('tiny-lm').set_in('model.dim', 256)\n"
    )
    monkeypatch.setitem(sys.modules, "mine", None)
    assert main(["diff", "tiny-lm", f"{file}:wide"]) == 0
    assert capsys.readouterr().out == "  model.dim: 128 -> 256\n"
    assert main(["diff", "tiny-lm", f"{file}:wide", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"path": "model.dim", "old": "128", "new": "256"}]
    assert main(["diff", "tiny-lm", "tiny-lm"]) == 0
    assert capsys.readouterr().out == ""


def test_overrides_are_of_both(capsys):
    assert main(["diff", "tiny-lm", "tiny-lm", *_HERE]) == 0
    assert capsys.readouterr().out == ""
    assert main(["diff", "tiny-lm", "tiny-lm", "launch.time=1:00:00"]) == 2
    assert "launch.time=1:00:00 is of a launcher. Say which one" in capsys.readouterr().err


@pytest.mark.parametrize(
    "via, options, file, line",
    [
        ("slurm", (), "job.sh", "+#SBATCH --gres=gpu:a100:8"),
        ("skypilot", ("launch.bucket=s3://runs", "directory=/runs/a"), "task.yaml", '+  - accelerators: "A100-80GB:8"'),
        (
            "kubernetes",
            ("launch.image=i", "launch.queue=q", "launch.claim=c", "launch.provider=eks", "directory=/runs/a"),
            "jobset.yaml",
            "+              node.kubernetes.io/instance-type: p4de.24xlarge",
        ),
    ],
)
def test_via_an_engine_it_shows_what_differs_in_what_is_submitted(capsys, via, options, file, line):
    found = _changes(capsys, "tiny-lm@gpu-h100-8", "tiny-lm@gpu-a100-8", "--via", via, *options)
    assert line in found[file]
    assert any("gpu-a100-8" in text for text in found[file])  # As the hosts are told.
    assert set(found) <= {file, "bundle/about.json", "bundle/config.json"}  # The code is the same.
    assert main(["diff", "tiny-lm@gpu-h100-8", "tiny-lm@gpu-h100-8", "--via", via, *options]) == 0
    assert capsys.readouterr().out == ""


def test_what_was_submitted_is_compared_with_what_would_be_now(capsys, submitted):
    assert main(["diff", str(submitted), "tiny-lm", "--via", "slurm", "launch.time=2:00:00", *_HERE]) == 0
    out = capsys.readouterr().out
    assert f"--- {submitted}: job.sh\n+++ tiny-lm: job.sh\n" in out
    assert "-#SBATCH --time=1:00:00\n" in out
    assert "+#SBATCH --time=2:00:00\n" in out
    assert f"--- {submitted}: bundle/code/gone.py\n+++ /dev/null\n" in out
    assert "+++ /dev/null\nThese are no texts: 1 bytes, and 0.\n" in out
    assert "+++ tiny-lm: bundle/code/dovetail/cli/_diff.py\n" in out
    assert main(["diff", str(submitted), str(submitted), "--via", "slurm"]) == 0
    assert capsys.readouterr().out == ""


def test_it_is_exactly_what_a_dry_run_prints(capsys, submitted):
    file = submitted.parent / "mine.py"
    file.write_text("from dovetail.zoo import recipe\ndef run():\n    return recipe('tiny-lm')\n")
    arguments = [f"{file}:run", "--via", "slurm", "launch.time=5", "directory=runs/x"]
    command = [sys.executable, "-m", "dovetail.cli", "launch", *arguments, "--dry-run"]
    script = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # A file of the other side, and a module beside it, are not in this one's bundle.
    (submitted.parent / "other").mkdir()
    other = submitted.parent / "other" / "mine.py"
    (other.parent / "beside_mine.py").write_text("")
    other.write_text("import beside_mine\n" + file.read_text())
    found = _changes(capsys, f"{other}:run", *arguments)
    assert {line[1:] for line in found["job.sh"] if line[0] == "+"} <= set(script.splitlines())
    assert f"+#SBATCH --job-name={_name(script)}" in found["job.sh"]
    assert found["bundle/user/0/beside_mine.py"] == []
    assert found["bundle/user/0/mine.py"] == ["-import beside_mine"]


def _name(script: str) -> str:
    return next(line for line in script.splitlines() if "--job-name=" in line).partition("=")[2]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["tiny-lm", "tiny-ml", "--via", "slurm"], "no recipe is called 'tiny-ml'"),
        (["tiny-lm", "tiny-lm@gpu-h100-7", "--via", "slurm"], "gpu-h100"),
        (["tiny-lm", "tiny-lm", "--via", "slurm", "launch.tme=1"], "Did you mean 'time'?"),
        (["tiny-lm", "tiny-lm", "--via", "slurm", "steps"], "'steps' is not an override"),
        (["tiny-lm", "tiny-lm", "--via", "kubernetes"], "it is not said on what to run"),
        (["first", "tiny-lm", "--via", "kubernetes"], "first was submitted to slurm, not to kubernetes"),
        (["torn", "tiny-lm", "--via", "slurm"], "torn does not say what was submitted"),
        (["cut", "tiny-lm", "--via", "slurm"], "the bundle of that run, cannot be read"),
    ],
)
def test_a_mistake_ends_with_2_and_one_message(capsys, submitted, arguments, said):
    for name in ("torn", "cut"):
        (Path(name) / "launch").mkdir(parents=True)
    whole = (submitted / "launch" / "job.json").read_text()
    Path("torn/launch/job.json").write_text(whole[:40])
    Path("cut/launch/job.json").write_text(whole)
    assert main(["diff", *arguments]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert (out, "Traceback" in err) == ("", False)
