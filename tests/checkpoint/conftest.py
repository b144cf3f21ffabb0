# SPDX-License-Identifier: Apache-2.0
"""Places for checkpoints: a directory, and an S3 server of their own for all tests of a process."""

import os
import uuid

import pytest

from support.s3 import BUCKET, Proxy, environment, s3_server


@pytest.fixture(scope="session")
def endpoint():
    pytest.importorskip("moto", reason="the S3 server of the tests: install the extra dev")
    with s3_server() as found:
        yield found


@pytest.fixture
def bucket(endpoint, monkeypatch):
    """A place in the bucket, with the environment set for it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment(endpoint).items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}/run"


@pytest.fixture
def proxy(endpoint, bucket, monkeypatch):
    """A proxy that can break what goes to the server."""
    found = Proxy(endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", found.endpoint)
    yield found
    found.close()


@pytest.fixture(params=["posix", "s3"])
def place(request, tmp_path):
    """A fresh place for checkpoints, in each kind of store."""
    return str(tmp_path / "run") if request.param == "posix" else request.getfixturevalue("bucket")
