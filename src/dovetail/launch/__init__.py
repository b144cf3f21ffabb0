# SPDX-License-Identifier: Apache-2.0
"""Starting processes: the settings of the host they run on."""

from ._devices import start_devices as start_devices
from ._host import SWITCH as SWITCH
from ._host import Setting as Setting
from ._host import host_settings as host_settings
from ._host import restart_with as restart_with
from ._programs import KeptPrograms as KeptPrograms
from ._programs import kept_programs as kept_programs
