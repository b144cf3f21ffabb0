# SPDX-License-Identifier: Apache-2.0
"""From a recipe and hardware to the program that would run there: mesh rules, and what the real compilers say."""

from ._on_hardware import MESH_RULES as MESH_RULES
from ._on_hardware import on_hardware as on_hardware
from ._rules import Changes as Changes
from ._rules import Fitted as Fitted
