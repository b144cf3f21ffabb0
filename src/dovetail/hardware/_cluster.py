# SPDX-License-Identifier: Apache-2.0
"""`Cluster`: what a pod needs to get the chips of a host on a Kubernetes cluster. Data, from `hardware.toml`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dovetail.config import REQUIRED, ConfigBase


class Toleration(ConfigBase):
    """Nodes with chips are tainted, so that nothing else comes to them. This lets a pod come."""

    key: str = REQUIRED
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class NodePath(ConfigBase):
    """What a container sees at a path: a directory of its node, or, without one, an empty one in memory."""

    mount: str = REQUIRED
    node: str | None = None
    read_only: bool = False
    size: str | None = None  # Of one in memory, at most.


class Sidecar(ConfigBase):
    """A container that runs beside the one of the run: the daemon of a network."""

    image: str = REQUIRED
    command: Sequence[str] = REQUIRED
    environment: Mapping[str, str] = {}
    capabilities: Sequence[str] = ()  # Of the kernel, that it is given; it runs as root.
    paths: Mapping[str, NodePath] = {}


class Network(ConfigBase):
    """What a pod needs besides, if its run has several hosts: for the fast network between them."""

    environment: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}  # Of the pod.
    resources: Mapping[str, str | int] = {}  # All of a host: as much is requested as may be used.
    capabilities: Sequence[str] = ()  # Of the kernel.
    paths: Mapping[str, NodePath] = {}
    sidecars: Mapping[str, Sidecar] = {}


class Cluster(ConfigBase):
    """A chip on the Kubernetes of a provider.

    In `selector`, `{topology}` is the shape of a slice, as in 4x8x8. In `worker_environment`, which is of each process
    of a gang, `{host}` is that of the first one, `{rank}` its own number, and `{devices}` lists the devices of all; in
    `slice_environment`, which is of processes whose slice may take the place of another, `{slice}` and `{slices}` are
    the number of its slice and of all.
    """

    machine: str = REQUIRED  # What the provider calls a host with these chips.
    resource: str = REQUIRED  # What a pod asks for to get chips.
    selector: Mapping[str, str] = REQUIRED  # Labels of the nodes.
    tolerations: Sequence[Toleration] = ()
    environment: Mapping[str, str] = {}
    worker_environment: Mapping[str, str] = {}
    slice_environment: Mapping[str, str] = {}
    requests: Mapping[str, str | int] = {}  # Of processors and memory: at least so much of a host.
    paths: Mapping[str, NodePath] = {}
    network: Network = Network()
    slice_label: str | None = None  # By it, nodes are of one slice, and a slice is one job. None: each host is a job.
    host_network: bool = False
    levels: Sequence[str] = ()  # Labels that say where a node is in the network, the widest first, for Kueue.
    near: str | None = None  # The one of them within which a run should be.
    source: Sequence[str] = ()


class Offer(ConfigBase):
    """A chip as SkyPilot names it; `{number}` is what the vendor's names count."""

    accelerator: str = REQUIRED
    whole_slice: bool = False  # A node of SkyPilot is a slice with all of its hosts, not a host.
    extra: str = REQUIRED  # Of jax, that has the runtime for it.
    source: Sequence[str] = ()


def read_cluster(table: Mapping[str, Any]) -> Cluster:
    """Returns what a table of `hardware.toml` says."""
    fields: dict[str, Any] = dict(table)
    network = dict(table.get("network", {}))
    sidecars = {name: Sidecar(**_with_paths(each)) for name, each in network.get("sidecars", {}).items()}
    fields["network"] = Network(**{**_with_paths(network), "sidecars": sidecars})
    fields["tolerations"] = [Toleration(**each) for each in table.get("tolerations", ())]
    return Cluster(**_with_paths(fields))


def _with_paths(table: Mapping[str, Any]) -> dict[str, Any]:
    return {**table, "paths": {name: NodePath(**each) for name, each in table.get("paths", {}).items()}}
