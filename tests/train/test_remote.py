# SPDX-License-Identifier: Apache-2.0
"""A run whose checkpoints are in a store of objects: it goes on from there, by its directory and by the URL."""

import os

import jax
import numpy as np
import pytest

from dovetail.cli import main
from dovetail.config import ConfigError
from support.runs import tiny
from support.s3 import BUCKET, environment, s3_server


@pytest.fixture
def url(monkeypatch):
    pytest.importorskip("moto", reason="the S3 server of the tests: install the extra dev")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with s3_server() as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}/runs/x"


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoints_in_a_store_of_objects_bit_for_bit(tmp_path, url, capsys):
    whole = tiny(tmp_path / "whole", steps=4, save_every=2).build().run()
    cfg = tiny(tmp_path / "run", steps=4, save_every=2).set_in("checkpoint.directory", url)
    first = cfg.set(steps=2).build()
    first.run(allow_change=True)
    assert not (tmp_path / "run" / "run" / "checkpoints").exists()
    again = cfg.build().run(allow_change=True)
    for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_array_equal(a, b)
    capsys.readouterr()
    for name in (cfg.directory, url):
        assert main(["show", name]) == 0
        assert url in capsys.readouterr().out


def test_a_directory_that_is_a_url_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ConfigError) as e:
        tiny(tmp_path).set(directory="s3://bucket/x").build()
    assert str(e.value) == (
        "directory: expected a path, found 's3://bucket/x': metrics and logs are in a file system.\n"
        "  To have the checkpoints there: directory=runs/NAME checkpoint.directory=s3://bucket/x"
    )
