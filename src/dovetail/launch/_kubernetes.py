# SPDX-License-Identifier: Apache-2.0
"""`Kubernetes`: runs on a Kubernetes cluster: a JobSet, which Kueue starts when all of its pods have a place.

What is submitted is a JobSet, the pieces of the bundle, and a Secret by which the hosts know each other. The JobSet is
kept beside them, so that a job that was cancelled can be started again.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from dovetail.config import ConfigError

from ._cluster_job import KEPT, MANAGED, Gang, rendered, token_secret
from ._engine import Engine, awaited
from ._exit_codes import DONE, FAILED, RESUMABLE
from ._in_cluster import infos, record_of
from ._kubectl import Kubectl, NoSuchKindError, NotThereError
from ._kueue import Queue
from ._launcher import Job
from ._pod import RUN
from ._records import JobInfo, Record, State
from ._yaml import documents, to_yaml

_APPLY = ("apply", "--server-side", "--force-conflicts", "--validate=strict", "--filename=-")
ENDED = ("done", "failed", "cancelled")
_LOOK = 2.0  # Seconds between two looks at a job that is followed.
_TOKEN = 32  # Bytes.


class Kubernetes(Engine):
    """JobSets on a cluster that `kubectl` knows."""

    class Config(Engine.Config):
        image: str = ""  # With Python and what Dovetail needs; its own code comes with the bundle.
        queue: str | None = ""  # A LocalQueue of Kueue, in the namespace; None: without Kueue.
        claim: str = ""  # A PersistentVolumeClaim that all pods can write to; the directory of the run is on it,
        mount: str = "/runs"  # below this path.
        provider: str | None = None  # gke, eks; None: the only one that is known for the chip.
        context: str | None = None  # Of kubectl; None: the current one.
        namespace: str = "default"
        priority: str | None = None  # A WorkloadPriorityClass of Kueue: who waits, and who is preempted.
        pod_priority: str | None = None  # A PriorityClass.
        topology: Literal["preferred", "required", "none"] = "preferred"  # Near each other, where the chip has levels.
        account: str | None = None  # A service account, for access to buckets.
        user: int = 1000  # That the run is of; 0: root, which some devices ask for.
        port: int = 7077  # Of the supervisor.
        environment: Mapping[str, str] = {}
        annotations: Mapping[str, str] = {}  # Of pods; what the catalogue says is replaced.
        resources: Mapping[str, str | int] = {}  # Of pods; what the catalogue says is replaced.
        selector: Mapping[str, str] = {}  # Of nodes, besides.
        grace: int | None = None  # Seconds from being asked to end until killed; None: as supervision, and 30 more.
        max_restarts: int = 10  # Of the whole.
        patience: float = 900.0  # Seconds for pods that were lost to come back, before all start again.
        keep: int | None = None  # Seconds after its end until the JobSet is deleted; None: it stays.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        cfg.supervision.check()
        self._kubectl = Kubectl(cfg.namespace, cfg.context)

    def render(self, job: Job) -> Mapping[str, str]:
        """Returns the JobSet. The bundle and the Secret are named in it; they are made when it is submitted."""
        return {"jobset.yaml": to_yaml(self._gang(job).jobset)}

    def render_queue(self, job: Job, hosts: int, priorities: Mapping[str, int] | None = None) -> Mapping[str, str]:
        """Returns what Kueue has to be given once, so that jobs of this hardware can wait in the queue."""
        gang = self._gang(job)
        if gang.queue is None:
            raise ConfigError("launch.queue is None: there is no queue to render. Name one, as in launch.queue=NAME.")
        queue = Queue(name=gang.queue, namespace=self.cfg.namespace, hosts=hosts, priorities=dict(priorities or {}))
        return {"queue.yaml": documents(*queue.manifests(gang.hardware, gang.cluster, gang.quotas))}

    def check(self, job: Job) -> str:
        """Asks the API server to try it, without doing it, and Kueue's queue how it is."""
        gang = self._gang(job)
        tried = [*gang.kept(token=""), gang.jobset]
        said = [self._apply(tried, "--dry-run=server").strip()]
        if gang.queue is not None:
            said.append(self._queue_state(gang.queue))
        return "\n".join(said)

    def submit(self, job: Job) -> JobInfo:
        """Hands a job over. What the API server would refuse leaves nothing there."""
        gang = self._gang(job)
        there = [info for info in self.jobs() if info.id == gang.name and info.state != "cancelled"]
        if there and there[0].bundle != gang.bundle:
            raise ConfigError(
                f"launch.name: there is a job {gang.name!r} already ({there[0].state}), of bundle {there[0].bundle!r}, "
                f"and this one is of {gang.bundle!r}.\n  Cancel it, or say another launch.name."
            )
        if there:
            return there[0]
        self.check(job)
        return self._start(gang)

    def jobs(self) -> Sequence[JobInfo]:
        """Returns the JobSets that Dovetail has made in the namespace, and those that were cancelled."""
        label = f"--selector={MANAGED}"
        jobsets = self._kubectl.get("jobsets", label)["items"]
        kept = self._kubectl.get("configmaps", label)["items"]
        workloads: Sequence[Any] = []
        if self.cfg.queue is not None:
            with contextlib.suppress(NoSuchKindError):  # There is no Kueue.
                workloads = self._kubectl.get("workloads")["items"]
        return infos(jobsets, kept, workloads)

    def logs(self, job: JobInfo, *, follow: bool) -> Iterator[str]:
        """Yields what the first pod prints: the view of the whole. Followed, also the one that takes its place."""
        labels = {"jobset-name": job.id, "replicatedjob-name": "worker", "job-index": "0"}
        chosen = ",".join(f"jobset.sigs.k8s.io/{key}={value}" for key, value in labels.items())
        chosen += ",batch.kubernetes.io/job-completion-index=0"
        command = ("logs", f"--selector={chosen}", f"--container={RUN}", "--tail=-1")
        if not follow:
            yield from self._kubectl.lines(*command)
            return
        while (state := self._state(job)) not in ENDED:
            if state in ("running", "ending"):
                yield from self._kubectl.lines(*command, "--follow")
            time.sleep(_LOOK)

    def follow(self, job: JobInfo) -> int:
        """Shows what a job prints until it ends; returns its exit code, as far as the cluster tells."""
        for line in awaited(job, self.logs(job, follow=True)):
            print(line, flush=True)
        return {"done": DONE, "cancelled": RESUMABLE}.get(self._state(job), FAILED)

    def cancel(self, job: JobInfo) -> None:
        """Deletes the JobSet: its pods are asked to end, and save. What it takes to start it again stays."""
        self._kubectl.run("delete", "jobset", job.id, "--cascade=foreground", "--wait=false")

    def record(self, job: JobInfo) -> Record | None:
        """Returns what was submitted. It is kept in the cluster, where the directory of the run is, too."""
        try:
            return record_of(self._kubectl.get("configmap", f"{job.id}{KEPT}"))
        except NotThereError:
            return None

    def resume(self, job: JobInfo, record: Record) -> JobInfo:
        """Makes the JobSet again, as it was; the hosts know each other by a new token."""
        self._kubectl.run("delete", "jobset", record.id, "--ignore-not-found", "--cascade=foreground", "--wait=true")
        secret = token_secret(record.id, self.cfg.namespace, secrets.token_hex(_TOKEN))
        self._apply([secret])
        self._kubectl.run(*_APPLY, given=record.files["jobset.yaml"])
        return JobInfo(record.id, record.name, "waiting", "handed over", record.directory, record.bundle)

    def _gang(self, job: Job) -> Gang:
        return rendered(self.cfg, job)

    def _state(self, job: JobInfo) -> State:
        states: list[State] = [info.state for info in self.jobs() if info.id == job.id]
        return states[0] if states else "cancelled"

    def _start(self, gang: Gang) -> JobInfo:
        """Makes all that a job is made of; if a part of it is refused, nothing of it stays."""
        kept = [*gang.kept(token=secrets.token_hex(_TOKEN)), *gang.pieces()]
        try:
            self._apply(kept)
            self._kubectl.run(*_APPLY, given=to_yaml(gang.jobset))
        except ConfigError:
            names = [f"{each['kind'].lower()}/{each['metadata']['name']}" for each in kept]
            with contextlib.suppress(ConfigError):
                self._kubectl.run("delete", *names, "--ignore-not-found")
            raise
        return JobInfo(gang.name, gang.name, "waiting", "handed over", gang.directory, gang.bundle)

    def _apply(self, objects: Sequence[Mapping[str, Any]], *options: str) -> str:
        whole = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return self._kubectl.run(*_APPLY, *options, given=json.dumps(whole))

    def _queue_state(self, queue: str) -> str:
        try:
            found = self._kubectl.get("localqueue", queue)
        except NotThereError as e:
            there = [each["metadata"]["name"] for each in self._kubectl.get("localqueues")["items"]]
            raise ConfigError(
                f"launch.queue is {queue!r}, and namespace {self.cfg.namespace!r} has {', '.join(there) or 'none'}.\n"
                "  Name one of these, or have a queue made."
            ) from e
        status = found.get("status", {})
        return f"queue {queue}: {status.get('pendingWorkloads', 0)} wait, {status.get('admittedWorkloads', 0)} run"
