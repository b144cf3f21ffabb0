# SPDX-License-Identifier: Apache-2.0
"""Launching runs of many processes: an agent on each host, one supervisor, and who is told what to do."""

from ._bundle import Bundle as Bundle
from ._engine import Engine as Engine
from ._engine import awaited as awaited
from ._exit_codes import BAD_HOST as BAD_HOST
from ._exit_codes import DONE as DONE
from ._exit_codes import FAILED as FAILED
from ._exit_codes import MISTAKE as MISTAKE
from ._exit_codes import RESUMABLE as RESUMABLE
from ._kubernetes import Kubernetes as Kubernetes
from ._launcher import Job as Job
from ._launcher import Launcher as Launcher
from ._launcher import Variant as Variant
from ._local import Local as Local
from ._pack import pack as pack
from ._records import JobInfo as JobInfo
from ._records import Record as Record
from ._records import State as State
from ._records import exit_code_in as exit_code_in
from ._records import record_in as record_in
from ._records import records_below as records_below
from ._skypilot import SkyPilot as SkyPilot
from ._slurm import Slurm as Slurm
from ._supervision import Supervision as Supervision
from ._zygote import serve as serve
