# SPDX-License-Identifier: Apache-2.0
"""What a program is doing at the moment, for whoever waits for it. Nothing of it needs more than Python."""

from ._line import SHORT as SHORT
from ._line import Line as Line
from ._line import duration as duration
from ._phase import Watcher as Watcher
from ._phase import phase as phase
from ._phase import watching as watching
