# SPDX-License-Identifier: Apache-2.0
"""How failures of the operating system, of TensorStore and of anything else read."""

import errno

from dovetail.storage import reason


def test_reason_is_what_the_operating_system_said():
    assert reason(OSError(errno.ENOSPC, "No space left on device", "/a/b")) == "No space left on device."
    text = "RESOURCE_EXHAUSTED: Failed writing: \"/a/b\": Failed to write 7 bytes to file 1: x [os_error_code='28']"
    assert reason(ValueError(text)) == "No space left on device."


def test_reason_of_another_error_is_its_first_line():
    assert reason(KeyError("a")) == "KeyError: 'a'"
    assert reason(ValueError("\nfirst\nsecond")) == "ValueError: first"
    assert len(reason(ValueError("x" * 1000))) == 300
