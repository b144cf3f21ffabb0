# SPDX-License-Identifier: Apache-2.0
"""How jobs are, from what a Kubernetes cluster says of its JobSets and Kueue of what waits. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from ._cluster_job import ANNOTATION, KEPT
from ._records import JobInfo, Record, State


def infos(
    jobsets: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]], workloads: Sequence[Mapping[str, Any]]
) -> list[JobInfo]:
    """Returns the jobs: those with a JobSet, then those of which only what they were is kept."""
    waits = {owner["name"]: _why_waiting(each) for each in workloads for owner in _owners(each)}
    found = [_of_jobset(each, waits) for each in jobsets]
    there = {info.id for info in found}
    for each in kept:
        name = each["metadata"]["name"]
        if name.endswith(KEPT) and name.removesuffix(KEPT) not in there:
            job = name.removesuffix(KEPT)
            found.append(JobInfo(job, job, "cancelled", "", *_about(each)))
    return found


def record_of(kept: Mapping[str, Any]) -> Record:
    """Returns what was submitted, from the ConfigMap in which it is kept."""
    name = kept["metadata"]["name"].removesuffix(KEPT)
    directory, bundle = _about(kept)
    return Record("kubernetes", name, name, directory, bundle, files=dict(kept["data"]))


def _of_jobset(jobset: Mapping[str, Any], waits: Mapping[str, str]) -> JobInfo:
    name, status = jobset["metadata"]["name"], jobset.get("status", {})
    state, detail = _state(jobset, waits.get(name, ""))
    return JobInfo(name, name, state, detail, *_about(jobset), restarts=int(status.get("restarts", 0)))


def _state(jobset: Mapping[str, Any], waits: str) -> tuple[State, str]:
    status = jobset.get("status", {})
    true = {each["type"]: each.get("message", "") for each in status.get("conditions", []) if each["status"] == "True"}
    jobs = [each for each in status.get("replicatedJobsStatus", []) if each["name"] == "worker"]
    ready = sum(each.get("ready", 0) for each in jobs)
    if "Completed" in true:
        return "done", true["Completed"]
    if "Failed" in true:
        return "failed", true["Failed"]
    if "deletionTimestamp" in jobset["metadata"]:
        return "ending", ""
    if jobset["spec"].get("suspend"):
        return "waiting", waits or true.get("Suspended", "")
    return ("running", f"{ready} jobs are ready") if ready else ("waiting", "for its pods")


def _about(thing: Mapping[str, Any]) -> tuple[str, str]:
    annotations = thing["metadata"].get("annotations", {})
    return annotations.get(ANNOTATION + "directory", ""), annotations.get(ANNOTATION + "bundle", "")


def _owners(workload: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [each for each in workload["metadata"].get("ownerReferences", []) if each.get("kind") == "JobSet"]


def _why_waiting(workload: Mapping[str, Any]) -> str:
    """Returns what Kueue says of a workload that it has not admitted."""
    conditions = workload.get("status", {}).get("conditions", [])
    for kind in ("Evicted", "QuotaReserved"):
        for each in conditions:
            says_so = each["status"] == ("True" if kind == "Evicted" else "False")
            if each["type"] == kind and says_so and each.get("message"):
                return each["message"]
    return ""
