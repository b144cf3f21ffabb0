# SPDX-License-Identifier: Apache-2.0
"""Hardware: chips and their topologies, rules for what a run does on them, settings of this host. Without JAX."""

from ._catalogue import CHIPS as CHIPS
from ._catalogue import Chip as Chip
from ._catalogue import Hardware as Hardware
from ._catalogue import Target as Target
from ._catalogue import Torus as Torus
from ._catalogue import chip_of as chip_of
from ._catalogue import hardware as hardware
from ._catalogue import nearest_hardware as nearest_hardware
from ._cluster import Cluster as Cluster
from ._cluster import Network as Network
from ._cluster import NodePath as NodePath
from ._cluster import Offer as Offer
from ._cluster import Sidecar as Sidecar
from ._cluster import Toleration as Toleration
from ._devices import FULL_PROCESSES as FULL_PROCESSES
from ._devices import WORKER_ENVIRONMENT as WORKER_ENVIRONMENT
from ._devices import start_devices as start_devices
from ._fitted import FITTED as FITTED
from ._fitted import Fitted as Fitted
from ._fitted import fitted as fitted
from ._host import SWITCH as SWITCH
from ._host import Setting as Setting
from ._host import host_settings as host_settings
from ._host import restart_with as restart_with
from ._machine import machine as machine
from ._mesh_rules import Changes as Changes
from ._mesh_rules import MeshRule as MeshRule
from ._mesh_rules import rule_for as rule_for
from ._offers import cluster_of as cluster_of
from ._offers import offer_of as offer_of
from ._programs import KeptPrograms as KeptPrograms
from ._programs import kept_programs as kept_programs
from ._topology import gpu_target as gpu_target
from ._topology import gpu_topology as gpu_topology
from ._topology import tpu_topology as tpu_topology
