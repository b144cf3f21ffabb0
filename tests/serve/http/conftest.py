# SPDX-License-Identifier: Apache-2.0
"""Servers that the tests of a file share."""

import pytest

from support.http_server import TEXT, ScriptedDevice, chat_tokenizer, running


@pytest.fixture(scope="module")
def server():
    """A server whose tokens are bytes, and whose model cannot chat."""
    with running() as found:
        yield found


@pytest.fixture(scope="module")
def chat_server():
    """A server whose model can chat."""
    tokenizer = chat_tokenizer()
    with running(ScriptedDevice(tokenizer.encode(TEXT).tolist(), vocab_size=512), tokenizer=tokenizer) as found:
        yield found
