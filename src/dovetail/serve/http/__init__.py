# SPDX-License-Identifier: Apache-2.0
"""A server with OpenAI's interface, for any engine: completions, chats, and a page to chat on."""

from ._app import build_app as build_app
from ._served import Http as Http
from ._served import Serve as Serve
from ._served import Served as Served
from ._server import address_of as address_of
from ._server import open_socket as open_socket
from ._server import serve as serve
