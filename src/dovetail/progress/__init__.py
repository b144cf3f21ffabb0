# SPDX-License-Identifier: Apache-2.0
"""What a program is doing at the moment, for whoever waits for it. Nothing of it needs more than Python."""

from ._gap import gap as gap
from ._gap import read_events as read_events
from ._ledger import KINDS as KINDS
from ._ledger import LEDGER as LEDGER
from ._ledger import LOSABLE as LOSABLE
from ._ledger import Account as Account
from ._ledger import Kind as Kind
from ._ledger import Ledger as Ledger
from ._line import Line as Line
from ._line import is_terminal as is_terminal
from ._line import note as note
from ._line import showing as showing
from ._line_text import SHORT as SHORT
from ._line_text import duration as duration
from ._moment import Moment as Moment
from ._moment import now as now
from ._phase import Count as Count
from ._phase import Watcher as Watcher
from ._phase import advanced as advanced
from ._phase import begun as begun
from ._phase import counting as counting
from ._phase import failed as failed
from ._phase import is_quiet as is_quiet
from ._phase import phase as phase
from ._phase import quiet as quiet
from ._phase import supervised as supervised
from ._phase import watching as watching
from ._program import began as began
from ._program import program as program
from ._program import recipe as recipe
from ._server import STATUS as STATUS
from ._server import StatusServer as StatusServer
from ._status import Status as Status
from ._status import prometheus as prometheus
