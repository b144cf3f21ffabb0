# SPDX-License-Identifier: Apache-2.0
"""Files of jobs and pools: what they say, and what is said of mistakes."""

import pytest

from dovetail.config import ConfigError
from dovetail.launch.schedule import read_jobs, read_pools

POOLS = '[v5p]\nhardware = "tpu-v5p"\ncount = 64\nblock = 4\nprice = 2\n[old]\ncount = 8\nshapes = [2, 8]\n'
JOB = "chips = 8\nsteps = 10\n"


@pytest.fixture
def where(tmp_path):
    (tmp_path / "pools.toml").write_text(POOLS)
    return tmp_path


def jobs(where, text):
    (where / "jobs.toml").write_text(text)
    return read_jobs(str(where / "jobs.toml"), read_pools(str(where / "pools.toml")))


def test_whole_numbers_stand_for_numbers_and_one_for_a_list(where):
    asked = jobs(where, '[teams.x]\nquota = {v5p = 8}\n[jobs.j]\nchips = 8\nsteps = 10\nteam = "x"\nrates.v5p.8 = 2\n')
    job = asked.jobs[0]
    assert (job.name, job.chips, job.steps, job.rates) == ("j", (8,), 10.0, {"v5p": {"8": 2.0}})
    assert asked.teams[0].quota == {"v5p": 8}


@pytest.mark.parametrize(
    "text, message",
    [
        ("", r"there is no job in it.*\[jobs.first\]"),
        ("jobs = 3", r"there is no job in it"),
        ("[job.j]", r"\[job\]: expected \[jobs.NAME\]"),
        ("[jobs.j]\nsteps = 1", r"\[jobs.j\]: chips is missing"),
        ("[jobs.j]\nchips = 8", r"\[jobs.j\]: steps is missing"),
        ("[jobs.j]\nchips = 0\nsteps = 1", r"chips is \[0\], expected"),
        (f"[jobs.j]\n{JOB}chisp = 1", r"has no field 'chisp'. Did you mean 'chips'"),
        (f"[jobs.j]\n{JOB}priority = 0", r"priority is 0.0, expected a number above 0"),
        (f'[jobs.j]\n{JOB}priority = "high"', r"\[jobs.j\]:.*priority"),
        (f'[jobs.j]\n{JOB}team = "x"', r"there is no team 'x'"),
        (f'[jobs.j]\n{JOB}pools = ["v5"]', r"pools: there is no pool 'v5'. Did you mean 'v5p'\? There are: v5p, old"),
        (f"[jobs.j]\n{JOB}rates.v5.8 = 1", r"rates: there is no pool 'v5'"),
        (f"[jobs.j]\n{JOB}rates.v5p.8 = 0", r"rates.v5p has 8 = 0.0"),
        (f"[jobs.j]\n{JOB}rates.v5p.eight = 1", r"rates.v5p has eight = 1.0"),
        (f"[jobs.j]\n{JOB}running.pool = 'v5p'", r"running is .*expected as in"),
        ("[jobs.j]\nchips = 96\nsteps = 1", r"96 chips can be had in no pool.*v5p: 64 chips for jobs, in blocks of 4"),
        ('[jobs.j]\nchips = 4\nsteps = 1\npools = ["old"]', r"4 chips can be had in no pool.*shapes 2, 8"),
        ('[teams.x]\nparent = "x"\n[jobs.j]\n' + JOB, r"\[teams.x\]: its quota comes from itself: x -> x"),
        ("[jobs.j", r"it is not TOML"),
    ],
)
def test_a_mistake_in_jobs_is_an_error_that_says_where(where, text, message):
    with pytest.raises(ConfigError, match=f"(?s)JOBS .*jobs.toml: .*{message}"):
        jobs(where, text)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", r"there is no pool in it"),
        ("v5p = 3", r"\[v5p\]: it is 3, expected a table"),
        ("[v5p]", r"\[v5p\]: count is missing"),
        ("[v5p]\ncount = 8.5", r"\[v5p\]:.*count"),
        ("[v5p]\ncount = 8\nblok = 2", r"has no field 'blok'. Did you mean 'block'"),
        ("[v5p]\ncount = 9\nblock = 2", r"\[v5p\]: count \(9\) must be a multiple of block \(2\)"),
    ],
)
def test_a_mistake_in_pools_is_an_error_that_says_where(tmp_path, text, message):
    (tmp_path / "pools.toml").write_text(text)
    with pytest.raises(ConfigError, match=f"(?s)POOLS .*pools.toml: .*{message}"):
        read_pools(str(tmp_path / "pools.toml"))


def test_a_file_that_is_not_there_is_an_error():
    with pytest.raises(ConfigError, match=r"POOLS nowhere.toml: it cannot be read: No such file"):
        read_pools("nowhere.toml")
