# SPDX-License-Identifier: Apache-2.0
"""Why something could not be read or written, in one line."""

import os
import re

_OS_ERROR = re.compile(r"os_error_code='(\d+)'")  # As TensorStore ends its messages.


class StorageError(RuntimeError):
    """Something could not be written or read; the message says what, and why."""


def reason(error: BaseException) -> str:
    """Returns why something failed, in one line; what the operating system said, if it was asked."""
    if isinstance(error, StorageError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}."
    if code := _OS_ERROR.search(str(error)):
        return f"{os.strerror(int(code[1]))}."
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
