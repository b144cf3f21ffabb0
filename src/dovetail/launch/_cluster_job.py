# SPDX-License-Identifier: Apache-2.0
"""The JobSet of a run: what its config and the hardware catalogue say, put together. Pure."""

import base64
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail.config import ConfigError
from dovetail.hardware import Cluster, Hardware, cluster_of

from ._bundle import Bundle
from ._cluster_pod import SECRET, TAKEN, pod_of_run
from ._host import Work
from ._jobset import SPARE, WORKER, Jobs, JobSet, Policy
from ._launcher import Job, check_reads
from ._names import job_name
from ._yaml import to_yaml

if TYPE_CHECKING:
    from ._kubernetes import Kubernetes

MANAGED_LABEL = {"app.kubernetes.io/managed-by": "dovetail"}
MANAGED = "=".join(*MANAGED_LABEL.items())
ANNOTATION = "dovetail/"
# The host of the supervisor is a label, of 63 characters at most: NAME-worker-0-0.NAME.
LONGEST = (63 - len(f"-{WORKER}-0-0.")) // 2
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"  # The value is the label of nodes that a job has alone.
_PIECE = 700_000  # Bytes of a bundle in a ConfigMap, which takes 1 MiB, in base64.
_MOST_PIECES = 40
KEPT = "-launch"  # The name of the ConfigMap that stays when a JobSet is deleted ends so.
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NEEDED = {
    "image": "a container image with Python and what Dovetail needs",
    "queue": "the name of a LocalQueue of Kueue, or None for a cluster without Kueue",
    "claim": "the name of a PersistentVolumeClaim that all pods can write to",
}


class Gang(NamedTuple):
    """What was made of a job."""

    name: str
    namespace: str
    queue: str | None
    directory: str
    bundle: str  # The hash.
    parts: Sequence[bytes]  # Of the bundle.
    hardware: Hardware
    cluster: Cluster
    quotas: Mapping[str, str | int]  # What a host of it takes.
    jobset: Mapping[str, Any]

    def pieces(self) -> list[dict[str, Any]]:
        """Returns the ConfigMaps of the bundle."""
        names = piece_names(self.name, self.bundle, len(self.parts))
        texts = [base64.b64encode(part).decode() for part in self.parts]
        about = {"apiVersion": "v1", "kind": "ConfigMap", "immutable": True}
        return [
            {**about, "metadata": _metadata(name, self.namespace), "binaryData": {name[-2:]: text}}
            for name, text in zip(names, texts, strict=True)
        ]

    def kept(self, token: str) -> list[dict[str, Any]]:
        """Returns the Secret, and the ConfigMap by which the job can be started again when it was deleted."""
        about = {"directory": self.directory, "bundle": self.bundle}
        metadata = _metadata(f"{self.name}{KEPT}", self.namespace)
        metadata["annotations"] = {ANNOTATION + key: value for key, value in about.items()}
        kept = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        return [
            token_secret(self.name, self.namespace, token),
            {**kept, "data": {"jobset.yaml": to_yaml(self.jobset)}},
        ]


def token_secret(name: str, namespace: str, token: str) -> dict[str, Any]:
    """Returns the Secret by which the hosts of a job know each other."""
    about = {"apiVersion": "v1", "kind": "Secret", "metadata": _metadata(f"{name}{SECRET}", namespace)}
    return {**about, "stringData": {"token": token}}


def _metadata(name: str, namespace: str) -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "labels": dict(MANAGED_LABEL)}


def piece_names(name: str, bundle: str, count: int) -> list[str]:
    """Returns the names of the ConfigMaps of a bundle."""
    return [f"{name}-code-{bundle[:8]}-{number:02}" for number in range(count)]


def rendered(cfg: "Kubernetes.Config", job: Job) -> Gang:
    """Returns what is submitted for a job."""
    hw = job.hardware
    if hw is None:
        raise ConfigError("launch: it is not said on what to run. Say it, as in --on tpu-v5p-512.")
    assert job.bundle is not None
    _, cluster = cluster_of(hw, cfg.provider)
    per_job = hw.num_hosts // hw.slices if cluster.slice_label is not None else 1
    _check(cfg, job, hw, per_job)
    directory, name, parts = _directory(job, cfg.mount), job_name(job, cfg.name, most=LONGEST), _parts(job.bundle)
    least = hw.num_hosts if cfg.min_processes is None else cfg.min_processes
    work = Work(job.arguments, hw.num_hosts, least, cfg.supervision, job.status, cfg.patience, per_job)
    pod = pod_of_run(cfg, hw, cluster, work, directory, name, piece_names(name, job.bundle.hash, len(parts)))
    pod = pod.set(environment={**pod.environment, "COMPLETIONS": str(per_job)})
    labels = dict(MANAGED_LABEL)
    if cfg.queue is not None:
        labels["kueue.x-k8s.io/queue-name"] = cfg.queue
        labels |= {"kueue.x-k8s.io/priority-class": cfg.priority} if cfg.priority is not None else {}
    own = {_EXCLUSIVE: cluster.slice_label} if per_job > 1 and cluster.slice_label is not None else {}
    jobset = JobSet(
        name=name,
        namespace=cfg.namespace,
        labels=labels,
        annotations={ANNOTATION + "directory": directory, ANNOTATION + "bundle": job.bundle.hash},
        job_annotations=own,
        worker=Jobs(name=WORKER, replicas=hw.num_hosts // per_job, hosts=per_job, pod=pod),
        spare=Jobs(name=SPARE, replicas=cfg.spares // per_job, hosts=per_job, pod=pod) if cfg.spares else None,
        policy=Policy(max_restarts=cfg.max_restarts),
        queued=cfg.queue is not None,
        keep=cfg.keep,
    )
    return Gang(
        name=name,
        namespace=cfg.namespace,
        queue=cfg.queue,
        directory=directory,
        bundle=job.bundle.hash,
        parts=parts,
        hardware=hw,
        cluster=cluster,
        quotas={**pod.requests, **pod.resources},
        jobset=jobset.manifest(),
    )


def _parts(bundle: Bundle) -> list[bytes]:
    """Returns a bundle in pieces that fit into ConfigMaps."""
    data = bundle.packed()
    if len(data) > _MOST_PIECES * _PIECE:
        raise ConfigError(
            f"launch: the bundle has {len(data):,} bytes, and {_MOST_PIECES * _PIECE:,} is the most that a cluster is "
            "given.\n  Put large files where the pods find them: on the claim, or into the image."
        )
    return [data[start : start + _PIECE] for start in range(0, len(data), _PIECE)]


def _check(cfg: "Kubernetes.Config", job: Job, hw: Hardware, per_job: int) -> None:
    """Raises for what is missing, and for numbers that do not fit each other."""
    for field, what in _NEEDED.items():
        if getattr(cfg, field) == "":
            raise ConfigError(f"launch.{field} is not set, expected {what}.\n  Say it, as in launch.{field}=NAME.")
    for field in ("namespace", "queue", "claim", "priority", "pod_priority", "account"):
        name: str | None = getattr(cfg, field)
        if name is not None and (len(name) > 253 or not _SUBDOMAIN.fullmatch(name)):
            raise ConfigError(
                f"launch.{field} is {name!r}, expected a name of a-z, 0-9, - and ., as Kubernetes has them."
            )
    if not cfg.mount.startswith("/") or cfg.mount.rstrip("/") in TAKEN:
        taken = ", ".join(each for each in TAKEN if each)
        raise ConfigError(f"launch.mount is {cfg.mount!r}, expected another directory than {taken}, from / on.")
    if cfg.processes not in (1, hw.num_hosts):
        raise ConfigError(
            f"launch.processes is {cfg.processes}, and {hw.name} has {hw.num_hosts} hosts, with a process each.\n"
            "  Leave it out."
        )
    if cfg.min_processes is not None and not 1 <= cfg.min_processes <= hw.num_hosts:
        raise ConfigError(
            f"launch.min_processes is {cfg.min_processes}, expected 1 to {hw.num_hosts}, the hosts of {hw.name}."
        )
    if cfg.spares < 0 or cfg.spares % per_job:
        raise ConfigError(
            f"launch.spares is {cfg.spares}, and only a whole slice of {hw.name} can be spare, {per_job} hosts.\n"
            f"  Use 0, {per_job} or {2 * per_job}."
        )
    if not 1024 <= cfg.port <= 65535:
        raise ConfigError(f"launch.port is {cfg.port}, expected 1024 to 65535: the run is not root's.")
    least = math.ceil(cfg.supervision.grace)
    if cfg.grace is not None and cfg.grace < least:
        raise ConfigError(
            f"launch.grace is {cfg.grace}, and saving may take {least} s (supervision.grace).\n"
            f"  Use {least} or more, or a smaller supervision.grace."
        )
    if cfg.priority is not None and cfg.queue is None:
        raise ConfigError("launch.priority is of Kueue, and launch.queue is None. Name a queue, or leave both out.")


def _directory(job: Job, mount: str) -> str:
    """Returns the directory of the run as pods see it: on the claim."""
    directory = PurePosixPath(job.directory.as_posix())
    if not directory.is_absolute() or not directory.is_relative_to(mount) or ".." in directory.parts:
        raise ConfigError(
            f"launch: the directory of the run is {str(directory)!r}, and pods share only what is below {mount!r} "
            f"(launch.mount).\n  Say one there, as in directory={mount}/{directory.name or 'NAME'}."
        )
    check_reads(job, mount, "pods")
    return str(directory)
