# SPDX-License-Identifier: Apache-2.0
"""Launching runs of many processes: an agent on each host, one supervisor, and who is told what to do."""

from ._exit_codes import BAD_HOST as BAD_HOST
from ._exit_codes import DONE as DONE
from ._exit_codes import FAILED as FAILED
from ._exit_codes import MISTAKE as MISTAKE
from ._exit_codes import RESUMABLE as RESUMABLE
from ._launcher import Job as Job
from ._launcher import Launcher as Launcher
from ._local import Local as Local
from ._supervision import Supervision as Supervision
from ._zygote import serve as serve
