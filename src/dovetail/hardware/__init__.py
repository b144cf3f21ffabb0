# SPDX-License-Identifier: Apache-2.0
"""Hardware by name: the catalogue of chips, their topologies, and rules for what a run does on them. Not JAX."""

from ._catalogue import CHIPS as CHIPS
from ._catalogue import Chip as Chip
from ._catalogue import Hardware as Hardware
from ._catalogue import Target as Target
from ._catalogue import Torus as Torus
from ._catalogue import chip_of as chip_of
from ._catalogue import hardware as hardware
from ._catalogue import nearest_hardware as nearest_hardware
from ._mesh_rules import MeshRule as MeshRule
from ._mesh_rules import rule_for as rule_for
from ._topology import gpu_target as gpu_target
from ._topology import gpu_topology as gpu_topology
from ._topology import tpu_topology as tpu_topology
