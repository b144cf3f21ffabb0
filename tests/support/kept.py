# SPDX-License-Identifier: Apache-2.0
"""What hosts keep of a run, changed behind its back."""

from dovetail.blobs import Client
from dovetail.checkpoint._parts import keep_of


def change(client: Client, step: int) -> None:
    """Changes one byte in the middle of all that is held of a step."""
    for name in client.sizes():
        keep = keep_of(name)
        if keep is not None and keep.step == step and name.endswith("data"):
            data = bytearray(client.get(name))
            data[len(data) // 2] ^= 1
            client.put(name, [bytes(data)])
