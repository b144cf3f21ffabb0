# SPDX-License-Identifier: Apache-2.0
"""The board: a local web page over the runs in a directory. It reads what runs write, and changes nothing."""

from ._api import Api as Api
from ._api import Refused as Refused
from ._bucket_runs import BucketRuns as BucketRuns
from ._child import TOKEN as TOKEN
from ._directory_runs import DirectoryRuns as DirectoryRuns
from ._export import export as export
from ._export import named as named
from ._runs import Runs as Runs
from ._server import PORT as PORT
from ._server import Board as Board
