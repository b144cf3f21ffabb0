# SPDX-License-Identifier: Apache-2.0
"""The pod of a run on Kubernetes: what its config and the hardware catalogue say, put together. Pure."""

import json
import math
from typing import TYPE_CHECKING

from dovetail.hardware import WORKER_ENVIRONMENT, Cluster, Hardware

from ._host import Work
from ._pod import Claim, Files, FromField, FromSecret, Pod, Together, Variable, Volume, Writable

if TYPE_CHECKING:
    from ._kubernetes import Kubernetes

SECRET = "-token"  # The name of the Secret of a job ends so.
_LATER = 30  # Seconds after the supervisor has given up saving.
_BUNDLE = "/tmp/bundle"
TAKEN = ("", "/tmp", "/cache", "/home/run", "/bundle")  # Directories of a pod that are something else.
_START = """\
set -eu
mkdir -p "$DOVETAIL_BUNDLE"
cat /bundle/* | tar -xz -C "$DOVETAIL_BUNDLE"
python "$DOVETAIL_BUNDLE/code/dovetail/launch/_interpreter.py" "$DOVETAIL_BUNDLE/constraints.txt" /tmp --as-it-is
export PYTHONPATH="$DOVETAIL_BUNDLE/code" PYTHONSAFEPATH=1
exec python -m dovetail.launch host "$@"
"""


def pod_of_run(
    cfg: "Kubernetes.Config", hw: Hardware, cluster: Cluster, work: Work, directory: str, name: str, pieces: list[str]
) -> Pod:
    """Returns the pod that each host of a run is.

    Args:
        work: what the hosts do.
        directory: of the run, as pods see it.
        name: of the job.
        pieces: the ConfigMaps of the bundle.
    """
    network = cluster.network if hw.num_hosts > 1 else type(cluster.network)()
    chips = math.prod(hw.host_shape)
    environment: dict[str, Variable] = {
        **cluster.environment,
        **network.environment,
        "HOME": "/home/run",
        "XDG_CACHE_HOME": "/cache",
        "DOVETAIL_TOKEN": FromSecret(secret=f"{name}{SECRET}", key="token"),
        "DOVETAIL_COORDINATOR": FromField(field="metadata.labels['jobset.sigs.k8s.io/coordinator']"),
        "DOVETAIL_SUPERVISOR": Together(text=f"$(DOVETAIL_COORDINATOR):{cfg.port}"),
        "DOVETAIL_BUNDLE": _BUNDLE,
        "DOVETAIL_LAUNCH": name,
        "DOVETAIL_ID": name,
        "JOB_INDEX": FromField(field="metadata.labels['jobset.sigs.k8s.io/job-global-index']"),
        "JOB_COMPLETION_INDEX": FromField(field="metadata.annotations['batch.kubernetes.io/job-completion-index']"),
    }
    moves = cluster.slice_environment if hw.slices > 1 and cfg.spares else {}
    if told_to := {**cluster.worker_environment, **moves}:
        told = {"devices": chips * hw.chip.devices, "variables": told_to, "together": work.together}
        environment[WORKER_ENVIRONMENT] = json.dumps(told, separators=(",", ":"))
    volumes: dict[str, Volume] = {
        "runs": Claim(mount=cfg.mount, claim=cfg.claim),
        **{key: Writable(mount=mount) for key, mount in (("tmp", "/tmp"), ("cache", "/cache"), ("home", "/home/run"))},
        **cluster.paths,
        **network.paths,
        "bundle": Files(mount="/bundle", config_maps=pieces),
    }
    near = {f"kueue.x-k8s.io/podset-{cfg.topology}-topology": cluster.near} if cluster.near is not None else {}
    is_near = cfg.queue is not None and cfg.topology != "none" and hw.num_hosts > 1
    shape = "x".join(map(str, hw.shape))
    return Pod(
        image=cfg.image,
        command=["/bin/sh", "-c", _START, "host", work.text, directory],
        environment={**environment, **cfg.environment},
        resources={cluster.resource: chips, **network.resources, **cfg.resources},
        requests={key: value for key, value in cluster.requests.items() if key not in cfg.resources},
        selector={**{key: value.format(topology=shape) for key, value in cluster.selector.items()}, **cfg.selector},
        tolerations=cluster.tolerations,
        annotations={**network.annotations, **(near if is_near else {}), **cfg.annotations},
        volumes=volumes,
        sidecars=network.sidecars,
        capabilities=network.capabilities,
        port=cfg.port,
        host_network=cluster.host_network,
        grace=grace_of(cfg),
        user=cfg.user,
        priority_class=cfg.pod_priority,
        account=cfg.account,
    )


def grace_of(cfg: "Kubernetes.Config") -> int:
    """Returns how many seconds a pod has to end, when it is asked to."""
    return cfg.grace if cfg.grace is not None else math.ceil(cfg.supervision.grace) + _LATER
