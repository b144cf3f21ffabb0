# SPDX-License-Identifier: Apache-2.0
"""Storage for checkpoints and data: objects by key in S3 and in Google's store, and who has left a note there."""

from ._errors import StorageError as StorageError
from ._errors import reason as reason
from ._objects import SECONDS as SECONDS
from ._objects import Objects as Objects
from ._process import born as born
from ._process import kernel as kernel
