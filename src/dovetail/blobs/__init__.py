# SPDX-License-Identifier: Apache-2.0
"""Blobs: named bytes kept in the memory of a host, or in a directory of it, that other hosts can read over HTTP.

Nothing of it needs more than Python.
"""

from ._client import Client as Client
from ._names import MEMORY as MEMORY
from ._names import SLOT as SLOT
from ._names import SPARES as SPARES
from ._names import TOKEN as TOKEN
from ._names import token_of as token_of
from ._server import Server as Server
from ._shelf import BlobError as BlobError
from ._shelf import Directory as Directory
from ._shelf import Memory as Memory
from ._shelf import Shelf as Shelf
from ._shelf import put_pieces as put_pieces
