# SPDX-License-Identifier: Apache-2.0
"""`Pod`: what runs on one host of a Kubernetes cluster. What must never differ is written here, and is no field.

A pod is not started again by its node: it ends, and the JobSet decides. What it may use of an accelerator is what it
asks for. It has no account at the API of its cluster, no privileges, and can write only where it is told.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dovetail.config import REQUIRED, ConfigBase, fields_of
from dovetail.hardware import NodePath, Sidecar, Toleration

RUN = "run"  # The container in which the run is; exit codes are read from it.

# What Kubernetes can tell a container of its pod, of all that it can, what a run needs.
Field = Literal[
    "metadata.labels['jobset.sigs.k8s.io/coordinator']",
    "metadata.labels['jobset.sigs.k8s.io/job-global-index']",
    "metadata.annotations['batch.kubernetes.io/job-completion-index']",
]


class FromField(ConfigBase):
    """A variable that Kubernetes fills in."""

    field: Field = REQUIRED


class FromSecret(ConfigBase):
    """A variable whose value is in a Secret, and in no manifest."""

    secret: str = REQUIRED
    key: str = REQUIRED


class Together(ConfigBase):
    """A variable made of others before it: `$(NAME)` stands for one. In other texts it stands for nothing."""

    text: str = REQUIRED


Variable = str | FromField | FromSecret | Together


class Files(ConfigBase):
    """Files from ConfigMaps, one directory of all."""

    mount: str = REQUIRED
    config_maps: Sequence[str] = REQUIRED


class Claim(ConfigBase):
    """A disk that all pods share: a PersistentVolumeClaim."""

    mount: str = REQUIRED
    claim: str = REQUIRED


class Writable(ConfigBase):
    """An empty directory, which goes when the pod goes."""

    mount: str = REQUIRED


Volume = Files | Claim | Writable | NodePath


class Pod(ConfigBase):
    """The template of the pods of a job."""

    image: str = REQUIRED
    command: Sequence[str] = REQUIRED
    environment: Mapping[str, Variable] = {}
    resources: Mapping[str, str | int] = REQUIRED  # As much is requested as may be used: exact, or refused.
    requests: Mapping[str, str | int] = {}  # Of processors and memory: at least so much.
    selector: Mapping[str, str] = {}
    tolerations: Sequence[Toleration] = ()
    annotations: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    volumes: Mapping[str, Volume] = {}
    sidecars: Mapping[str, Sidecar] = {}
    capabilities: Sequence[str] = ()
    port: int | None = None
    host_network: bool = False
    grace: int = REQUIRED  # Seconds for saving when it is asked to end.
    user: int = REQUIRED  # 0: root.
    priority_class: str | None = None
    account: str | None = None  # The service account, for access to buckets. Its token for the cluster is not mounted.

    def manifest(self) -> dict[str, Any]:
        """Returns the PodTemplateSpec."""
        about = {key: dict(value) for key, value in (("labels", self.labels), ("annotations", self.annotations))}
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": self.grace,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "serviceAccountName": self.account,
            "priorityClassName": self.priority_class,
            "hostNetwork": self.host_network or None,
            "dnsPolicy": "ClusterFirstWithHostNet" if self.host_network else None,
            "nodeSelector": dict(self.selector),
            "tolerations": tolerations(self.tolerations),
            "securityContext": {
                "runAsUser": self.user,
                "runAsGroup": self.user,
                "runAsNonRoot": self.user != 0,
                "fsGroup": self.user or None,
                "fsGroupChangePolicy": "OnRootMismatch" if self.user else None,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "initContainers": [_sidecar(name, each) for name, each in self.sidecars.items()],
            "containers": [self._container()],
            "volumes": self._volumes(),
        }
        spec["securityContext"] = _without_empty(spec["securityContext"])
        return _without_empty({"metadata": _without_empty(about), "spec": _without_empty(spec)})

    def _container(self) -> dict[str, Any]:
        container: dict[str, Any] = {
            "name": RUN,
            "image": self.image,
            "command": [literal(each) for each in self.command],
            "env": [_variable(name, each) for name, each in self.environment.items()],
            "ports": [{"name": "supervisor", "containerPort": self.port}] if self.port is not None else [],
            "resources": {"requests": {**self.requests, **self.resources}, "limits": dict(self.resources)},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": _without_empty({"drop": ["ALL"], "add": list(self.capabilities)}),
            },
            "volumeMounts": [_mount(name, each) for name, each in self.volumes.items()],
        }
        return _without_empty(container)

    def _volumes(self) -> list[dict[str, Any]]:
        found: dict[str, Volume] = dict(self.volumes)
        for sidecar in self.sidecars.values():
            found |= sidecar.paths
        return [{"name": name, **_source(each)} for name, each in found.items()]


def tolerations(given: Sequence[Toleration]) -> list[dict[str, Any]]:
    """Returns them as manifests have them."""
    return [_without_empty({name: getattr(each, name) for name in fields_of(each)}) for each in given]


def literal(text: str) -> str:
    """Returns a text in which Kubernetes finds no `$(NAME)` to replace: of two `$` it makes one.

    >>> literal("$HOME"), literal("$(date)"), literal("$$")
    ('$HOME', '$$(date)', '$$$$')
    """
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value != {} and value != []}


def _variable(name: str, value: Variable) -> dict[str, Any]:
    match value:
        case FromField():
            return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": value.field}}}
        case FromSecret():
            return {"name": name, "valueFrom": {"secretKeyRef": {"name": value.secret, "key": value.key}}}
        case Together():
            return {"name": name, "value": value.text}
        case str():
            return {"name": name, "value": literal(value)}


def _mount(name: str, volume: Volume) -> dict[str, Any]:
    read_only = isinstance(volume, Files) or (isinstance(volume, NodePath) and volume.read_only)
    return {"name": name, "mountPath": volume.mount, **({"readOnly": True} if read_only else {})}


def _source(volume: Volume) -> dict[str, Any]:
    match volume:
        case Files():
            return {"projected": {"sources": [{"configMap": {"name": name}} for name in volume.config_maps]}}
        case Claim():
            return {"persistentVolumeClaim": {"claimName": volume.claim}}
        case Writable():
            return {"emptyDir": {}}
        case NodePath():
            in_memory = _without_empty({"medium": "Memory", "sizeLimit": volume.size})
            return {"emptyDir": in_memory} if volume.node is None else {"hostPath": {"path": volume.node}}


def _sidecar(name: str, sidecar: Sidecar) -> dict[str, Any]:
    """An init container that is kept running is a side car: it is there before the run, and ends after it."""
    return _without_empty(
        {
            "name": name,
            "image": sidecar.image,
            "restartPolicy": "Always",
            "command": [literal(each) for each in sidecar.command],
            "env": [_variable(key, value) for key, value in sidecar.environment.items()],
            "securityContext": {
                "runAsUser": 0,
                "runAsNonRoot": False,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"], "add": list(sidecar.capabilities)},
            },
            "volumeMounts": [_mount(key, value) for key, value in sidecar.paths.items()],
        }
    )
