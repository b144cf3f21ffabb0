# SPDX-License-Identifier: Apache-2.0
"""Mistakes that people make in JobSets, and that no config of ours can make: each of 13 is refused, or has no words."""

import copy
import re
from pathlib import Path

import pytest
import yaml

from dovetail.config import ConfigError
from dovetail.launch._exit_codes import BAD_HOST, DONE, FAILED, MISTAKE, RESUMABLE
from dovetail.launch._jobset import Jobs, JobSet, OnCodes, Policy, Then
from dovetail.launch._pod import FromField, Pod, literal
from golden_launch import broken, job_on, kubernetes

POD = Pod(image="a", command=["b"], resources={"chip": 4}, grace=90, user=1000)
WORKER = Jobs(name="worker", replicas=2, hosts=4, pod=POD)
WHOLE = JobSet(name="run", namespace="default", worker=WORKER)

# For each mistake, what would make it, and what is said.
REFUSED = {
    "a typo in a field of the JobSet": (lambda: WHOLE.set(polcy=Policy()), "no field 'polcy'. Did you mean 'policy'"),
    "a typo in a field of the job": (lambda: WORKER.set(backof_limit=0), "no field 'backof_limit'"),
    "a typo in a field of the pod": (lambda: POD.set(selecter={}), "no field 'selecter'. Did you mean 'selector'"),
    "an action that there is not": (
        lambda: Then(name="a").set(action="RestartJobset"),
        "expected one of 'FailJobSet', ",
    ),
    "an operator that there is not": (lambda: WHOLE.set(operator="all"), "no field 'operator'"),
    "a rule without a name": (
        lambda: WHOLE.set(policy=Policy(then=[Then(action="FailJobSet")])).manifest(),
        r"policy\.then\[0\]\.name must be set",
    ),
    "a text in place of a number": (lambda: WORKER.set(replicas="two"), "expected int, found 'two'"),
    "a name that is no name": (
        lambda: kubernetes(name="My_Run").render(job_on("tpu-v5e-8")),
        r"expected at most 25 of a-z, 0-9 and -, with a letter first\.\n.*launch\.name=my-run",
    ),
    "restartPolicy Always": (lambda: POD.set(restart_policy="Always"), "no field 'restart_policy'"),
    "chips: requests are not limits": (lambda: POD.set(limits={"chip": 1}), "no field 'limits'"),
    "exit code 0 in a policy for failures": (lambda: OnCodes(codes=[0, 85]).manifest(), "exit code 0 is in a rule"),
    "a coordinator of no job": (lambda: WHOLE.set(coordinator="leader"), "no field 'coordinator'"),
    "a fieldPath that there is not": (
        lambda: FromField().set(field="metadata.label['jobset.sigs.k8s.io/coordinator']"),
        "expected one of",
    ),
}


@pytest.fixture(scope="module")
def jobset():
    return yaml.safe_load(kubernetes(priority="high").render(job_on("tpu-v5p-512x2"))["jobset.yaml"])


def test_there_is_a_test_for_each_mistake(jobset):
    variants = broken(jobset)
    assert list(variants) == list(REFUSED)
    assert len(variants) == 13
    assert all(variant != jobset for variant in variants.values())
    assert copy.deepcopy(jobset) == jobset


def test_the_page_has_a_row_for_each_mistake():
    page = (Path(__file__).resolve().parents[2] / "docs" / "launch-kubernetes.md").read_text("utf-8")
    table = page.split("| Mistake | ")[1].splitlines()[2:]
    assert [row.split("|")[1].strip() for row in table if row.startswith("|")] == list(REFUSED)


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_refused_by_the_types(mistake):
    makes, said = REFUSED[mistake]
    with pytest.raises(ConfigError, match=said):
        makes()


def test_a_job_is_a_worker_or_a_spare():
    with pytest.raises(ConfigError, match="expected one of 'worker', 'spare'"):
        WORKER.set(name="leader")
    with pytest.raises(ConfigError, match=r"jobs are called \['spare'\]"):
        WHOLE.set(worker=WORKER.set(name="spare")).manifest()
    with pytest.raises(ConfigError, match="0 jobs of 4 pods"):
        WHOLE.set(worker=WORKER.set(replicas=0)).manifest()


@pytest.mark.parametrize("codes, said", [([], "no exit codes"), ([256], "expected 1 to 255"), ([-9], "1 to 255")])
def test_codes_that_no_process_has_are_refused(codes, said):
    with pytest.raises(ConfigError, match=said):
        OnCodes(codes=codes).manifest()


def test_a_rule_about_a_rule_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="is about rule 7 of pods, and there are 4"):
        Then(name="a", action="FailJobSet", rule=7).manifest(4)


def after(jobset, code):
    """Returns what a JobSet does when a pod has ended with a code, as its controller and that of jobs decide."""
    rules = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    hits = [number for number, rule in enumerate(rules) if is_about(rule, code)]
    reason = "PodFailurePolicy" if hits else "BackoffLimitExceeded"
    message = f"Container run failed with exit code {code} matching FailJob rule at index {hits[0]}" if hits else ""
    for rule in jobset["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        fits = any(re.search(pattern, message) for pattern in patterns)
        if fits and reason in rule.get("onJobFailureReasons", [reason]):
            return rule["action"]
    return "RestartJobSet"


def is_about(rule, code):
    return "onPodConditions" in rule if code == "evicted" else code in rule.get("onExitCodes", {}).get("values", [])


@pytest.mark.parametrize(
    "code, action",
    [
        (RESUMABLE, "RestartJobSetAndIgnoreMaxRestarts"),
        ("evicted", "RestartJobAndIgnoreMaxRestarts"),
        (MISTAKE, "FailJobSet"),
        (FAILED, "FailJobSet"),
        (BAD_HOST, "RestartJobSet"),
        (137, "RestartJob"),  # Killed: by the kernel for its memory, or by who knows whom.
    ],
)
def test_what_follows_from_an_exit_code(jobset, code, action):
    assert after(jobset, code) == action


def test_an_end_without_failure_is_in_no_rule(jobset):
    rules = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert all(DONE not in rule.get("onExitCodes", {}).get("values", []) for rule in rules)


@pytest.mark.parametrize("text", ["plain", "$HOME", "a $(date) b", "$$", "$(A)$(B)", "${A:-$(B)}"])
def test_kubernetes_replaces_nothing_in_what_users_say(text):
    assert replaced(literal(text)) == text


def replaced(text):
    """Returns what Kubernetes makes of a text, without variables: of `$$`, `$`; of `$(NAME)`, what the text says."""
    found, index = "", 0
    while index < len(text):
        if text.startswith("$$", index):
            found, index = found + "$", index + 2
        elif text.startswith("$(", index) and ")" in text[index:]:
            found, index = found + "REPLACED", text.index(")", index) + 1
        else:
            found, index = found + text[index], index + 1
    return found
