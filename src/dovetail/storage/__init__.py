# SPDX-License-Identifier: Apache-2.0
"""Storage: objects by key in S3 and in Google's store, for checkpoints and for data."""

from ._errors import StorageError as StorageError
from ._errors import reason as reason
from ._objects import SECONDS as SECONDS
from ._objects import Objects as Objects
