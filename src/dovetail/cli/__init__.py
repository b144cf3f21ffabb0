# SPDX-License-Identifier: Apache-2.0
"""The `dovetail` command."""

from ._main import main as main
from ._main import parsed as parsed
from ._resolve import Run as Run
from ._resolve import resolve as resolve
