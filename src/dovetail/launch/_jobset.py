# SPDX-License-Identifier: Apache-2.0
"""`JobSet`: the gang of a run on Kubernetes, one job a slice, and what happens when one of its pods ends.

    pod ends with     its job             then
    0                 done, when all are  done, when all workers are
    85                fails by rule 0     all start again; it is not counted
    evicted           fails by rule 1     this job starts again; it is not counted
    1 or 2            fails by rule 2     the end: somebody has to look
    86                fails by rule 3     all start again; `max_restarts` times
    anything else     fails               this job starts again; `max_restarts` times

A process that fails is started again by the supervisor inside of the pods, within seconds. This here is the second
tier: it replaces pods. While one is replaced, a spare has its place, where there is one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dovetail.config import REQUIRED, ConfigBase, ConfigError, fields_of, find

from ._exit_codes import BAD_HOST, DONE, FAILED, MISTAKE, RESUMABLE
from ._pod import RUN, Pod

WORKER, SPARE = "worker", "spare"

Action = Literal[
    "FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob", "RestartJobAndIgnoreMaxRestarts"
]
Reason = Literal[
    "BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"
]


class OnCodes(ConfigBase):
    """A job fails at once when its pod ends with one of these codes."""

    codes: Sequence[int] = REQUIRED

    def check(self) -> None:
        """Raises for a code that no failed process has."""
        if not self.codes:
            raise ConfigError("jobset: a rule lists no exit codes, expected at least one.")
        for code in self.codes:
            if code == DONE:
                raise ConfigError("jobset: exit code 0 is in a rule for failures, and it means that all is done.")
            if not 1 <= code <= 255:
                raise ConfigError(f"jobset: {code} is in a rule for exit codes, expected 1 to 255.")

    def manifest(self) -> dict[str, Any]:
        """Returns the rule of the podFailurePolicy."""
        self.check()
        values = sorted(set(self.codes))
        return {"action": "FailJob", "onExitCodes": {"containerName": RUN, "operator": "In", "values": values}}


class OnDisruption(ConfigBase):
    """A job fails at once when its pod is evicted: preempted, drained, or its node is gone."""

    def manifest(self) -> dict[str, Any]:
        """Returns the rule of the podFailurePolicy."""
        return {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


class Then(ConfigBase):
    """What the JobSet does after a failure; the first that fits is done. If none does, it starts again, and counts."""

    name: str = REQUIRED
    action: Action = REQUIRED
    reasons: Sequence[Reason] = ()
    rule: int | None = None  # Of the podFailurePolicy: the number of the one that made the job fail.

    def manifest(self, rules: int) -> dict[str, Any]:
        """Returns the rule of the failurePolicy."""
        if not self.name:
            raise ConfigError("jobset: a rule of the failure policy has no name, and JobSet's schema wants one.")
        if self.rule is not None and not 0 <= self.rule < rules:
            raise ConfigError(f"jobset: rule {self.name!r} is about rule {self.rule} of pods, and there are {rules}.")
        patterns = [f"matching FailJob rule at index {self.rule}$"] if self.rule is not None else []
        given = {"onJobFailureReasons": list(self.reasons), "onJobFailureMessagePatterns": patterns}
        return {"name": self.name, "action": self.action, **{key: value for key, value in given.items() if value}}


class Policy(ConfigBase):
    """What follows from how a pod ends."""

    pods: Sequence[OnCodes | OnDisruption] = (
        OnCodes(codes=(RESUMABLE,)),
        OnDisruption(),
        OnCodes(codes=(FAILED, MISTAKE)),
        OnCodes(codes=(BAD_HOST,)),
    )
    then: Sequence[Then] = (
        Then(name="asked_to_end", action="RestartJobSetAndIgnoreMaxRestarts", reasons=("PodFailurePolicy",), rule=0),
        Then(name="evicted", action="RestartJobAndIgnoreMaxRestarts", reasons=("PodFailurePolicy",), rule=1),
        Then(name="ended_for_good", action="FailJobSet", reasons=("PodFailurePolicy",), rule=2),
        Then(name="bad_host", action="RestartJobSet", reasons=("PodFailurePolicy",), rule=3),
        Then(name="lost", action="RestartJob"),
    )
    max_restarts: int = 10


class Jobs(ConfigBase):
    """Jobs that are alike: the slices of a run, or those that are spare."""

    name: Literal["worker", "spare"] = REQUIRED
    replicas: int = REQUIRED
    hosts: int = REQUIRED  # Of each.
    pod: Pod = REQUIRED

    def manifest(self, policy: Policy, annotations: Mapping[str, str]) -> dict[str, Any]:
        """Returns the replicatedJob."""
        if self.replicas < 1 or self.hosts < 1:
            raise ConfigError(f"jobset: {self.replicas} jobs of {self.hosts} pods, expected at least one of each.")
        spec: dict[str, Any] = {
            "completionMode": "Indexed",
            "completions": self.hosts,
            "parallelism": self.hosts,
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [rule.manifest() for rule in policy.pods]},
            "template": self.pod.manifest(),
        }
        about = {"metadata": {"annotations": dict(annotations)}} if annotations else {}
        return {"name": self.name, "replicas": self.replicas, "template": {**about, "spec": spec}}


class JobSet(ConfigBase):
    """A run. The first pod of the first worker is where the supervisor is; there always is one."""

    name: str = REQUIRED
    namespace: str = REQUIRED
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    job_annotations: Mapping[str, str] = {}  # Of each job.
    worker: Jobs = REQUIRED
    spare: Jobs | None = None
    policy: Policy = Policy()
    queued: bool = True  # Kueue starts it; else it starts by itself.
    keep: int | None = None  # Seconds after its end until it is deleted.

    def manifest(self) -> dict[str, Any]:
        """Returns the whole."""
        for path, part in find(self, ConfigBase):
            for field in fields_of(part):
                if getattr(part, field) is REQUIRED:
                    raise ConfigError(f"jobset: {path}{'.' if path else ''}{field} must be set.")
        policy, jobs = self.policy, [self.worker, *([self.spare] if self.spare else [])]
        if [each.name for each in jobs] != [WORKER, SPARE][: len(jobs)]:
            raise ConfigError(f"jobset: jobs are called {[each.name for each in jobs]}, expected worker, then spare.")
        metadata = {"name": self.name, "namespace": self.namespace}
        for key, value in (("labels", self.labels), ("annotations", self.annotations)):
            metadata |= {key: dict(value)} if value else {}
        spec: dict[str, Any] = {
            "suspend": self.queued,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": self.name},
            "coordinator": {"replicatedJob": WORKER, "jobIndex": 0, "podIndex": 0},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [WORKER]},
            "failurePolicy": {
                "maxRestarts": policy.max_restarts,
                "restartStrategy": "BlockingRecreate",  # Chips are free before they are asked for again.
                "rules": [each.manifest(len(policy.pods)) for each in policy.then],
            },
            "replicatedJobs": [each.manifest(policy, self.job_annotations) for each in jobs],
        }
        if self.keep is not None:
            spec["ttlSecondsAfterFinished"] = self.keep
        return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}
