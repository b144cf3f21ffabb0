# SPDX-License-Identifier: Apache-2.0
"""The side of the queue: what somebody who runs a cluster gives to Kueue, so that jobs of a chip can wait there.

A flavor is a kind of chip, of slices of one shape if it comes in slices. A queue may have so many of it, and shares
with the other queues of its cohort what it does not use.
"""

from collections.abc import Mapping
from typing import Any

from dovetail.config import REQUIRED, ConfigBase, ConfigError
from dovetail.hardware import Cluster, Hardware

from ._pod import tolerations

_API = "kueue.x-k8s.io/v1beta2"


class Queue(ConfigBase):
    """A queue, and what may run from it at a time."""

    name: str = REQUIRED  # Of the LocalQueue, in a namespace.
    namespace: str = REQUIRED
    cohort: str = "dovetail"
    hosts: int = REQUIRED  # The quota.
    priorities: Mapping[str, int] = {}  # WorkloadPriorityClasses, by name.

    def manifests(self, hw: Hardware, cluster: Cluster, resources: Mapping[str, str | int]) -> list[dict[str, Any]]:
        """Returns the objects for Kueue. `resources` are those that a pod asks for, of which there are quotas."""
        if self.hosts < hw.num_hosts:
            raise ConfigError(
                f"launch: a queue of {self.hosts} hosts never starts {hw.name}, which takes {hw.num_hosts}.\n"
                f"  Give it {hw.num_hosts} or more."
            )
        sliced = cluster.slice_label is not None
        shape = "x".join(map(str, hw.shape))
        flavor = f"{hw.chip.name}-{shape}" if sliced else hw.chip.name
        labels = {key: value.format(topology=shape) for key, value in cluster.selector.items()}
        spec: dict[str, Any] = {"nodeLabels": labels, "tolerations": tolerations(cluster.tolerations)}
        found: list[dict[str, Any]] = []
        if cluster.levels:
            levels = [{"nodeLabel": label} for label in cluster.levels]
            found.append(_object("Topology", flavor, {"levels": levels}))
            spec["topologyName"] = flavor
        found.append(_object("ResourceFlavor", flavor, spec))
        quotas = [{"name": name, "nominalQuota": _times(value, self.hosts)} for name, value in resources.items()]
        group = {"coveredResources": list(resources), "flavors": [{"name": flavor, "resources": quotas}]}
        whole: dict[str, Any] = {
            "cohortName": self.cohort,
            "namespaceSelector": {},
            "queueingStrategy": "BestEffortFIFO",
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
            "resourceGroups": [group],
        }
        found.append(_object("ClusterQueue", self.name, whole))
        found.append(_object("LocalQueue", self.name, {"clusterQueue": self.name}, namespace=self.namespace))
        for name, value in self.priorities.items():
            about = {"apiVersion": _API, "kind": "WorkloadPriorityClass", "metadata": {"name": name}}
            found.append({**about, "value": value, "description": f"Priority {value}."})
        return found


def _object(kind: str, name: str, spec: Mapping[str, Any], *, namespace: str | None = None) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace is not None else {})}
    return {"apiVersion": _API, "kind": kind, "metadata": metadata, "spec": dict(spec)}


def _times(quantity: str | int, hosts: int) -> str:
    """Returns an amount for so many hosts, in the same unit.

    >>> _times("5120Mi", 2), _times(8, 4)
    ('10240Mi', '32')
    """
    text = str(quantity)
    digits = text.rstrip("KMGTPEikmu")
    return f"{int(digits) * hosts}{text[len(digits) :]}"
