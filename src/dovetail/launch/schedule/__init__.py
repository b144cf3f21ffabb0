# SPDX-License-Identifier: Apache-2.0
"""Scheduling: which job gets which chips of several pools, why, and what would change it. Imports no JAX."""

from ._changes import Change as Change
from ._changes import changed as changed
from ._decide import Action as Action
from ._decide import Decision as Decision
from ._decide import Placement as Placement
from ._decide import decide as decide
from ._decide import placed_greedily as placed_greedily
from ._demand import Cluster as Cluster
from ._demand import Demand as Demand
from ._demand import Objective as Objective
from ._demand import Settings as Settings
from ._explain import Waiting as Waiting
from ._explain import explain as explain
from ._forecast import Forecast as Forecast
from ._forecast import Predicted as Predicted
from ._forecast import corrected as corrected
from ._forecast import demands as demands
from ._forecast import hardware_name as hardware_name
from ._jobs import Asked as Asked
from ._jobs import JobSpec as JobSpec
from ._jobs import read_jobs as read_jobs
from ._jobs import read_pools as read_pools
from ._policies import POLICIES as POLICIES
from ._policies import Policy as Policy
from ._policies import ours as ours
from ._pools import Pool as Pool
from ._pools import Team as Team
from ._simulate import Arrival as Arrival
from ._simulate import Outcome as Outcome
from ._simulate import simulate as simulate
from ._simulate import wrong as wrong
from ._trace import Rates as Rates
from ._trace import read_rates as read_rates
from ._trace import read_trace as read_trace
