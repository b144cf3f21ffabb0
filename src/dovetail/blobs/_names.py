# SPDX-License-Identifier: Apache-2.0
"""How a worker learns where the memory of hosts is: variables of its environment."""

import hashlib
import hmac

SLOT = "DOVETAIL_SLOT"  # The name of its own host in the launch.
MEMORY = "DOVETAIL_MEMORY"  # Where the blobs of its own host are served.
SPARES = "DOVETAIL_SPARES"  # The same of hosts that have no process now: JSON, by slot.
TOKEN = "DOVETAIL_MEMORY_TOKEN"  # What a server of blobs must be shown.


def token_of(secret: str) -> str:
    """Returns the token for blobs of a launch, from which its secret does not follow."""
    return hmac.new(secret.encode(), b"blobs", hashlib.sha256).hexdigest()
