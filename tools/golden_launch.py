# SPDX-License-Identifier: Apache-2.0
"""Golden manifests and scripts: what engines would be given for a few jobs, so that a change of it is seen in review.

`python tools/golden_launch.py` rewrites `tests/launch/goldens`. `broken()` gives manifests with one mistake each.
"""

import copy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.hardware import hardware
from dovetail.launch import Bundle, Job, Kubernetes, SkyPilot, Slurm, Variant

DIRECTORY = Path(__file__).resolve().parents[1] / "tests" / "launch" / "goldens"
BUNDLE = Bundle({"config.json": b"{}\n", "constraints.txt": b"jax==0.10.2\n", "code/dovetail/__init__.py": b""})

_CLUSTER = {"image": "example.com/dovetail:1", "queue": "research", "claim": "runs"}
_CLUSTERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "tpu-slices": ("tpu-v5p-512x2", {"priority": "high"}),
    "tpu-one-host": ("tpu-v5e-8", {"queue": None}),
    "gke-gpus": ("gpu-h100-16", {"provider": "gke", "spares": 1, "min_processes": 1}),
    "eks-gpus": ("gpu-h100-16", {"provider": "eks", "topology": "required", "account": "buckets"}),
    "eks-trainium": ("trn2-32", {"name": "trainium"}),
}
_TASKS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpus": ("gpu-h100-16", {"alternatives": ["gpu-h200-16", "gpu-a100-16"], "spares": 1}),
    "tpus": ("tpu-v6e-16", {"bucket": "gs://my-runs", "spot": "only", "ordered": False, "infra": ["gcp/us-central1"]}),
}
_SCRIPTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "plain": ("gpu-h100-16", {"processes": 2}),
    "spares-and-a-limit": (
        "gpu-h100-16",
        {
            "processes": 2,
            "spares": 1,
            "min_processes": 1,
            "time": "1-12:00:00",
            "partition": "batch",
            "account": "research",
            "constraint": "[h100*2&a100*1]",
            "exclude": "n[7-9]",
            "options": ["--nice=100"],
        },
    ),
    "sweep": ("gpu-h100-8", {"processes": 1, "at_once": 2}),
    "chips": (
        "gpu-h100-16",
        {
            "processes": 16,
            "per_host": "chips",
            "requeue": False,
            "exclusive": False,
            "python": "/opt/python/bin/python3",
            "setup": ["module load cuda", "ulimit -l unlimited"],
        },
    ),
}


def job_on(name: str) -> Job:
    """Returns a job for some hardware."""
    arguments = ("train", "llama2-7b", "--on", name, "steps=100")
    return Job(arguments, Path("/runs/a"), hardware=hardware(name), bundle=BUNDLE)


def kubernetes(**fields: Any) -> Kubernetes:
    """Returns the engine, with what has to be set."""
    return Kubernetes.Config(**{**_CLUSTER, **fields}).build()


def slurm(**fields: Any) -> Slurm:
    """Returns the engine."""
    return Slurm.Config(**fields).build()


def sweep_on(name: str) -> Job:
    """Returns a job with three runs."""
    found = job_on(name)
    peaks = ("1e-3", "3e-3", "1e-2")
    runs = [Variant(found.directory / "sweep" / f"peak={peak}", (f"learner.schedule.peak={peak}",)) for peak in peaks]
    return found._replace(sweep=tuple(runs))


def skypilot(**fields: Any) -> SkyPilot:
    """Returns the engine, with what has to be set."""
    return SkyPilot.Config(**{"bucket": "s3://my-runs", **fields}).build()


def goldens() -> dict[str, str]:
    """Returns the content of each file, by its name."""
    found: dict[str, str] = {}
    for name, (on, fields) in _CLUSTERS.items():
        engine, job = kubernetes(**fields), job_on(on)
        found[f"kubernetes-{name}.yaml"] = engine.render(job)["jobset.yaml"]
        if fields.get("queue", "") is not None:
            queue = engine.render_queue(
                job, 4 * job.hardware.num_hosts if job.hardware else 0, {"high": 1000, "low": 10}
            )
            found[f"kubernetes-{name}-queue.yaml"] = queue["queue.yaml"]
    for name, (on, fields) in _TASKS.items():
        found[f"skypilot-{name}.yaml"] = skypilot(**fields).render(job_on(on))["task.yaml"]
    return found


def scripts() -> dict[str, str]:
    """Returns the scripts for Slurm, by the names of their files."""
    found: dict[str, str] = {}
    for name, (on, fields) in _SCRIPTS.items():
        job = (sweep_on if name == "sweep" else job_on)(on)._replace(name=f"llama2-7b-{BUNDLE.hash[:8]}")
        found[f"slurm-{name}.sh"] = slurm(**fields).render(job)["job.sh"]
    return found


def broken(jobset: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns a JobSet with one mistake, for each of 13 that people make."""
    found: dict[str, dict[str, Any]] = {}
    for mistake, breaks in _MISTAKES.items():
        found[mistake] = copy.deepcopy(dict(jobset))
        breaks(found[mistake])
    return found


def _job(jobset: dict[str, Any]) -> dict[str, Any]:
    return jobset["spec"]["replicatedJobs"][0]


def _spec(jobset: dict[str, Any]) -> dict[str, Any]:
    return _job(jobset)["template"]["spec"]


def _pod(jobset: dict[str, Any]) -> dict[str, Any]:
    return _spec(jobset)["template"]["spec"]


def _rename(found: dict[str, Any], old: str, new: str) -> None:
    found[new] = found.pop(old)


def _change(where: Callable[[dict[str, Any]], dict[str, Any]], **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda jobset: where(jobset).update(fields)


def _exit_code_0(jobset: dict[str, Any]) -> None:
    _spec(jobset)["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] = [0]


def _limits(jobset: dict[str, Any]) -> None:
    limits = _pod(jobset)["containers"][0]["resources"]["limits"]
    limits[next(iter(limits))] = 1


def _field_path(jobset: dict[str, Any]) -> None:
    fields = [each for each in _pod(jobset)["containers"][0]["env"] if "fieldRef" in each.get("valueFrom", {})]
    fields[0]["valueFrom"]["fieldRef"]["fieldPath"] = "metadata.label['jobset.sigs.k8s.io/coordinator']"


_MISTAKES: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "a typo in a field of the JobSet": lambda jobset: _rename(jobset["spec"], "failurePolicy", "failurePolcy"),
    "a typo in a field of the job": lambda jobset: _rename(_spec(jobset), "backoffLimit", "backofLimit"),
    "a typo in a field of the pod": lambda jobset: _rename(_pod(jobset), "nodeSelector", "nodeSelecter"),
    "an action that there is not": _change(
        lambda jobset: jobset["spec"]["failurePolicy"]["rules"][0], action="RestartJobset"
    ),
    "an operator that there is not": _change(lambda jobset: jobset["spec"]["successPolicy"], operator="all"),
    "a rule without a name": lambda jobset: jobset["spec"]["failurePolicy"]["rules"][0].pop("name"),
    "a text in place of a number": _change(_job, replicas="two"),
    "a name that is no name": _change(lambda jobset: jobset["metadata"], name="My_Run"),
    "restartPolicy Always": _change(_pod, restartPolicy="Always"),
    "chips: requests are not limits": _limits,
    "exit code 0 in a policy for failures": _exit_code_0,
    "a coordinator of no job": _change(lambda jobset: jobset["spec"]["coordinator"], replicatedJob="leader"),
    "a fieldPath that there is not": _field_path,
}


def main() -> int:
    """Rewrites all files."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for file in [*DIRECTORY.glob("*.yaml"), *DIRECTORY.glob("*.sh")]:
        file.unlink()
    for name, text in {**goldens(), **scripts()}.items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
