# SPDX-License-Identifier: Apache-2.0
"""`Kubernetes`: what is rendered for every chip, what is refused, and what kubectl is asked.

There is no API server here: kubectl is a small program that writes down how it was called, and says what it is told to.
"""

import json
import random
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.hardware import cluster_of
from dovetail.launch import Bundle, Job, JobInfo
from dovetail.launch._cluster_job import LONGEST
from dovetail.launch._names import job_name
from golden_launch import BUNDLE, DIRECTORY, goldens, job_on, kubernetes
from support.fake_command import Program
from support.rendered import WITH, cases, random_cases, sizes

LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def rendered(engine, job):
    return yaml.safe_load(engine.render(job)["jobset.yaml"])


def pods(jobset):
    return [each["template"]["spec"]["template"] for each in jobset["spec"]["replicatedJobs"]]


@pytest.fixture(scope="module", params=["catalogue", "random"])
def every(request):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # Shown when a test fails.
    found = cases() if request.param == "catalogue" else random_cases(seed, 15)
    return [(engine, job, rendered(engine, job)) for engine, job in found]


def test_each_host_of_a_run_is_a_pod_with_all_of_its_chips(every):
    for engine, job, jobset in every:
        hw, (_, cluster) = job.hardware, cluster_of(job.hardware, engine.cfg.provider)
        counts = {each["name"]: each["replicas"] * each["template"]["spec"]["completions"] for each in jobs(jobset)}
        assert counts == {"worker": hw.num_hosts, **({"spare": engine.cfg.spares} if engine.cfg.spares else {})}
        for pod in pods(jobset):
            asked = pod["spec"]["containers"][0]["resources"]
            assert asked["limits"][cluster.resource] == hw.num_chips // hw.num_hosts
            assert asked["limits"].items() <= asked["requests"].items()
            assert set(asked["requests"]) - set(asked["limits"]) <= {"cpu", "memory"}


def jobs(jobset):
    return jobset["spec"]["replicatedJobs"]


def test_a_slot_is_counted_over_all_jobs(every):
    """The number of a job among all, times its pods, and the number of the pod: 0 to N, each once, spares last."""
    for engine, job, jobset in every:
        slots = []
        for index, count in enumerate(
            each["template"]["spec"]["completions"] for each in jobs(jobset) for _ in range(each["replicas"])
        ):
            slots += [index * int(variables(pods(jobset)[0])["COMPLETIONS"]["value"]) + pod for pod in range(count)]
        assert slots == list(range(job.hardware.num_hosts + engine.cfg.spares))


def variables(pod):
    return {each["name"]: each for each in pod["spec"]["containers"][0]["env"]}


def test_pods_have_no_more_rights_than_they_need(every):
    for engine, _, jobset in every:
        for pod in pods(jobset):
            spec, container = pod["spec"], pod["spec"]["containers"][0]
            assert spec["restartPolicy"] == "Never"
            assert spec["automountServiceAccountToken"] is False
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert spec["securityContext"]["runAsNonRoot"] is (engine.cfg.user != 0)
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"] is True
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"]["drop"] == ["ALL"]
            assert spec["terminationGracePeriodSeconds"] >= engine.cfg.supervision.grace
            mounted = {each["mountPath"] for each in container["volumeMounts"]}
            assert {"/tmp", "/cache", "/runs", "/bundle"} <= mounted
            assert variables(pod)["HOME"]["value"] in mounted


def test_the_token_is_in_a_secret_and_in_no_manifest(every):
    for _, _, jobset in every:
        token = variables(pods(jobset)[0])["DOVETAIL_TOKEN"]
        name = jobset["metadata"]["name"]
        assert token == {
            "name": "DOVETAIL_TOKEN",
            "valueFrom": {"secretKeyRef": {"name": f"{name}-token", "key": "token"}},
        }


def test_names_and_labels_are_as_kubernetes_wants_them(every):
    for _, _, jobset in every:
        name, most = jobset["metadata"]["name"], max(each["replicas"] for each in jobs(jobset))
        assert len(f"{name}-worker-0-0.{name}") <= 63
        assert len(f"{name}-worker-{most}-{jobs(jobset)[0]['template']['spec']['completions']}-abcde") <= 63
        for pod in pods(jobset):
            volumes = [each["name"] for each in pod["spec"]["volumes"]]
            assert len(set(volumes)) == len(volumes)
            containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
            assert all(DNS.fullmatch(each) for each in volumes)
            assert all(each["name"] in volumes for box in containers for each in box["volumeMounts"])
            assert all(LABEL.fullmatch(key) for key in pod.get("metadata", {}).get("annotations", {}))
            selector = pod["spec"]["nodeSelector"]
            assert all(LABEL.fullmatch(key) and LABEL.fullmatch(value) for key, value in selector.items())


def test_slices_are_jobs_that_have_their_nodes_for_themselves():
    jobset = rendered(kubernetes(), job_on("tpu-v5p-512x2"))
    (worker,) = jobs(jobset)
    assert (worker["replicas"], worker["template"]["spec"]["completions"]) == (2, 64)
    own = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    assert worker["template"]["metadata"]["annotations"] == own
    selector = pods(jobset)[0]["spec"]["nodeSelector"]
    assert selector == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "4x8x8",
    }
    one_host = rendered(kubernetes(), job_on("tpu-v5e-8"))
    assert "metadata" not in jobs(one_host)[0]["template"]  # Its node pool has nodes of many.


def test_what_only_several_hosts_need_one_host_does_not_get():
    one, two = (pods(rendered(kubernetes(provider="eks"), job_on(f"gpu-h100-{n}")))[0]["spec"] for n in (8, 16))
    assert two["containers"][0]["resources"]["limits"]["vpc.amazonaws.com/efa"] == 32
    assert one["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
    daemon = pods(rendered(kubernetes(provider="gke"), job_on("gpu-h100-16")))[0]["spec"]["initContainers"]
    assert [each["restartPolicy"] for each in daemon] == ["Always"]
    assert "initContainers" not in pods(rendered(kubernetes(provider="gke"), job_on("gpu-h100-4")))[0]["spec"]


def test_goldens_are_what_is_rendered():
    """`make golden` rewrites them."""
    assert {file.name: file.read_text("utf-8") for file in DIRECTORY.glob("*.yaml")} == goldens()


def test_rendering_is_pure():
    assert kubernetes().render(job_on("trn2-32")) == kubernetes().render(job_on("trn2-32"))


@pytest.mark.parametrize(
    "fields, on, said",
    [
        ({"provider": "eks"}, "tpu-v5e-8", r"launch\.provider is 'eks', and tpu-v5e is known of gke only"),
        ({"provider": "gkee"}, "gpu-h100-8", "known of gke and eks only.* Did you mean 'gke'"),
        ({}, "gpu-h100-8", r"launch\.provider is not set, .*\n.*launch\.provider=gke"),
        ({}, "gpu-mi300x-8", "not known what pods need for gpu-mi300x .*\n.*tpu-v5p"),
        ({"queue": ""}, "tpu-v5e-8", r"launch\.queue is not set, expected the name of a LocalQueue"),
        ({"image": ""}, "tpu-v5e-8", r"launch\.image is not set"),
        ({"claim": ""}, "tpu-v5e-8", r"launch\.claim is not set"),
        ({"name": "a" * 26}, "tpu-v5e-8", r"launch\.name is 'a+' \(26 characters\), expected at most 25"),
        ({"spares": 1}, "tpu-v5p-512x2", "only a whole slice of tpu-v5p-512x2 can be spare, 64 hosts.\n.*0, 64 or 128"),
        ({"spares": -1, "provider": "eks"}, "gpu-h100-8", r"launch\.spares is -1"),
        ({"processes": 3, "provider": "eks"}, "gpu-h100-16", "has 2 hosts, with a process each"),
        ({"min_processes": 3, "provider": "eks"}, "gpu-h100-16", "expected 1 to 2, the hosts of gpu-h100-16"),
        ({"grace": 10}, "tpu-v5e-8", r"launch\.grace is 10, and saving may take 60 s"),
        ({"port": 80}, "tpu-v5e-8", "expected 1024 to 65535"),
        ({"mount": "/tmp"}, "tpu-v5e-8", r"launch\.mount is '/tmp', expected another directory than"),
        ({"mount": "runs"}, "tpu-v5e-8", r"launch\.mount is 'runs', expected"),
        ({"queue": "My Queue"}, "tpu-v5e-8", r"launch\.queue is 'My Queue', expected a name of a-z, 0-9, - and \."),
        ({"namespace": "a" * 254}, "tpu-v5e-8", r"launch\.namespace is 'a+', expected a name"),
        ({"queue": None, "priority": "high"}, "tpu-v5e-8", r"launch\.priority is of Kueue"),
        (
            {"mount": "/data"},
            "tpu-v5e-8",
            r"'/runs/a', and pods share only what is below '/data' .*\n.*directory=/data/a",
        ),
    ],
)
def test_what_cannot_be_is_one_clear_error(fields, on, said):
    with pytest.raises(ConfigError, match=said):
        kubernetes(**fields).render(job_on(on))


def test_a_job_on_nothing_is_an_error():
    with pytest.raises(ConfigError, match="not said on what to run"):
        kubernetes().render(Job(("train", "tiny-lm"), Path("/runs/a"), bundle=BUNDLE))


@given(st.text(max_size=60), st.integers(12, 60))
@settings(max_examples=200)
def test_names_that_are_made_are_names(recipe, most):
    job = Job(("train", recipe), Path("/runs/a"), bundle=BUNDLE)
    name = job_name(job, "", most=most)
    assert DNS.fullmatch(name)
    assert name[0].isalpha()
    assert len(name) <= most
    assert name.endswith(BUNDLE.hash[:8])
    assert job_name(job, name, most=most) == name


def test_runs_of_a_sweep_have_names_of_their_own():
    for name in ("", "grid"):
        whole = job_on("tpu-v5e-8")._replace(name=name or f"llama2-7b-with-a-long-name-{BUNDLE.hash[:8]}")
        names = {job_name(whole._replace(name=f"{whole.name}-{run}"), name, most=LONGEST) for run in range(120)}
        assert len(names) == 120
        assert all(DNS.fullmatch(each) and len(each) <= LONGEST for each in names)


@given(st.text(max_size=40))
def test_a_name_that_is_given_is_taken_or_refused_with_one_that_will_do(name):
    job = Job(("train", "tiny-lm"), Path("/runs/a"), bundle=BUNDLE)
    try:
        assert job_name(job, name, most=LONGEST) in (name, f"tiny-lm-{BUNDLE.hash[:8]}")
    except ConfigError as e:
        proposed = str(e).rpartition("launch.name=")[2].removesuffix(".")
        assert job_name(job, proposed, most=LONGEST) == proposed


def test_a_large_bundle_goes_in_pieces_and_a_huge_one_is_refused(monkeypatch):
    noise = random.Random(0).randbytes(1_500_000)
    job = job_on("tpu-v5e-8")._replace(bundle=Bundle({"code/a": noise}))
    sources = pods(rendered(kubernetes(), job))[0]["spec"]["volumes"][-1]["projected"]["sources"]
    assert [each["configMap"]["name"][-3:] for each in sources] == ["-00", "-01", "-02"]
    monkeypatch.setattr("dovetail.launch._cluster_job._MOST_PIECES", 2)
    with pytest.raises(ConfigError, match="1,400,000 is the most"):
        kubernetes().render(job)


# What the queue needs.


@pytest.mark.parametrize("chip, provider", WITH, ids=lambda each: getattr(each, "name", each))
def test_a_queue_has_room_for_the_runs_it_is_for(chip, provider):
    for hw in sizes(chip):
        engine = kubernetes(provider=provider)
        (text,) = engine.render_queue(job_on(hw.name), 2 * hw.num_hosts, {"high": 10}).values()
        found = {each["kind"]: each for each in yaml.safe_load_all(text)}
        (group,) = found["ClusterQueue"]["spec"]["resourceGroups"]
        (flavor,) = group["flavors"]
        _, cluster = cluster_of(hw, provider)
        quotas = {each["name"]: each["nominalQuota"] for each in flavor["resources"]}
        assert int(quotas[cluster.resource]) == 2 * hw.num_chips
        assert set(quotas) == set(group["coveredResources"])
        asked = pods(rendered(engine, job_on(hw.name)))[0]["spec"]
        assert set(quotas) == set(asked["containers"][0]["resources"]["requests"])
        labels = found["ResourceFlavor"]["spec"]["nodeLabels"]
        assert labels == asked["nodeSelector"]
        assert ("Topology" in found) == bool(cluster.levels)
        assert found["WorkloadPriorityClass"]["value"] == 10
        with pytest.raises(ConfigError, match=f"never starts {hw.name}, which takes {hw.num_hosts}"):
            engine.render_queue(job_on(hw.name), hw.num_hosts - 1)


def test_where_there_is_no_queue_none_is_rendered():
    with pytest.raises(ConfigError, match="there is no queue to render"):
        kubernetes(queue=None).render_queue(job_on("tpu-v5e-8"), 4)


# What kubectl is asked.

JOB = job_on("tpu-v5e-8")
NAME = f"llama2-7b-{BUNDLE.hash[:8]}"
NOTHING = json.dumps({"items": []})
QUEUE = json.dumps({"status": {"pendingWorkloads": 3, "admittedWorkloads": 1}})
KNOWN = {"get jobsets": NOTHING, "get configmaps": NOTHING, "get workloads": NOTHING, "get localqueue ": QUEUE}


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    return Program("kubectl", tmp_path, monkeypatch)


def test_check_asks_for_a_dry_run_of_all_and_tells_of_the_queue(kubectl):
    kubectl.says({**KNOWN, "--dry-run=server": "jobset/x serverside-applied (server dry run)\n"})
    said = kubernetes(context="big", namespace="lab").check(JOB)
    assert said.splitlines() == ["jobset/x serverside-applied (server dry run)", "queue research: 3 wait, 1 run"]
    apply, queue = kubectl.calls
    assert apply.arguments[:4] == ["--namespace", "lab", "--context", "big"]
    assert {"--server-side", "--validate=strict", "--dry-run=server"} <= set(apply.arguments)
    assert [each["kind"] for each in json.loads(apply.given)["items"]] == ["Secret", "ConfigMap", "JobSet"]
    assert queue.arguments[4:] == ["get", "localqueue", "research", "--output", "json"]


def test_submit_tries_it_first_then_makes_secret_bundle_and_jobset(kubectl):
    kubectl.says(KNOWN)
    info = kubernetes().submit(JOB)
    assert info == JobInfo(NAME, NAME, "waiting", "handed over", "/runs/a", BUNDLE.hash)
    applied = [call for call in kubectl.calls if "apply" in call.arguments]
    assert ["--dry-run=server" in call.arguments for call in applied] == [True, False, False]
    secret, kept, *pieces = json.loads(applied[1].given)["items"]
    assert re.fullmatch(r"[0-9a-f]{64}", secret["stringData"]["token"])
    assert secret["stringData"]["token"] not in kubernetes().render(JOB)["jobset.yaml"]
    assert not any(secret["stringData"]["token"] in " ".join(call.arguments) for call in kubectl.calls)
    assert kept["data"]["jobset.yaml"] == applied[2].given == kubernetes().render(JOB)["jobset.yaml"]
    assert [each["immutable"] for each in pieces] == [True]


def test_each_submission_has_a_token_of_its_own(kubectl):
    kubectl.says(KNOWN)
    tokens = set()
    for _ in range(2):
        kubernetes().submit(JOB)
        secrets = [call.given for call in kubectl.calls if '"Secret"' in call.given and "--dry-run" not in str(call)]
        tokens |= {json.loads(given)["items"][0]["stringData"]["token"] for given in secrets}
    assert len(tokens) >= 2


def there(bundle=BUNDLE.hash, **status):
    about = {"dovetail/directory": "/runs/a", "dovetail/bundle": bundle}
    metadata = {"name": NAME, "annotations": about}
    return {"items": [{"metadata": metadata, "spec": {"suspend": False}, "status": status}]}


def test_a_job_that_is_there_is_returned_and_another_one_of_its_name_is_an_error(kubectl):
    running = {"replicatedJobsStatus": [{"name": "worker", "ready": 1}], "restarts": 2}
    kubectl.says({**KNOWN, "get jobsets": json.dumps(there(**running))})
    info = kubernetes().submit(JOB)
    assert (info.state, info.restarts) == ("running", 2)
    assert not any("apply" in call.arguments for call in kubectl.calls)
    kubectl.says({**KNOWN, "get jobsets": json.dumps(there("0" * 16))})
    with pytest.raises(ConfigError, match=r"there is a job .* already .*, of bundle '0000000000000000'"):
        kubernetes().submit(JOB)


@pytest.mark.parametrize(
    "says, said",
    [
        ("Error from server (Forbidden): jobsets is forbidden", "you may not do this there"),
        ("error: You must be logged in to the server (Unauthorized)", "you are not logged in"),
        ('error: context "big" does not exist', "there is no such cluster"),
        ("error: no context exists with the name: big", "there is no such cluster.\n.*launch.context=NAME"),
        ("The connection to the server localhost:8080 was refused", "there is no cluster that kubectl knows"),
        ("Unable to connect to the server: dial tcp: lookup a: no such host", "the cluster cannot be reached"),
        ('error: resource mapping not found: no matches for kind "JobSet"', "lacks JobSet or Kueue"),
        ('strict decoding error: unknown field "spec.x"', 'the cluster refuses.\n  It says:\n    strict .*"spec.x"'),
    ],
)
def test_what_goes_wrong_is_one_clear_error_and_nothing_is_submitted(kubectl, says, said):
    kubectl.says(KNOWN, fails={"apply": says})
    with pytest.raises(ConfigError, match=said):
        kubernetes().submit(JOB)
    assert all("--dry-run=server" in call.arguments for call in kubectl.calls if "apply" in call.arguments)


def test_without_kubectl_it_says_so(kubectl):
    kubectl.remove()
    for asks in (kubernetes().jobs, lambda: list(kubernetes().logs(JobInfo("a", "a", "done"), follow=False))):
        with pytest.raises(ConfigError, match=r"there is no kubectl on the PATH.\n  Install it"):
            asks()


def test_a_queue_that_is_not_there_is_told_with_those_that_are(kubectl):
    queues = json.dumps({"items": [{"metadata": {"name": "other"}}]})
    kubectl.says(
        {**KNOWN, "get localqueues": queues}, fails={"get localqueue ": 'Error from server (NotFound): "research"'}
    )
    with pytest.raises(ConfigError, match=r"launch\.queue is 'research', and namespace 'default' has other"):
        kubernetes().check(JOB)


def test_when_the_last_part_is_refused_the_others_are_taken_back(kubectl):
    kubectl.says(KNOWN, fails={"--filename=- apiVersion": "Error from server: admission webhook denied the request"})
    with pytest.raises(ConfigError, match="webhook denied"):
        kubernetes().submit(JOB)
    last = kubectl.calls[-1].arguments
    assert last[2:5] == ["delete", f"secret/{NAME}-token", f"configmap/{NAME}-launch"]


def condition(kind, message=""):
    return {"type": kind, "status": "True", "message": message}


@pytest.mark.parametrize(
    "spec, status, more, state, detail",
    [
        ({"suspend": True}, {}, {}, "waiting", "no flavor fits"),
        ({}, {"replicatedJobsStatus": [{"name": "worker", "ready": 0}]}, {}, "waiting", "for its pods"),
        ({}, {"replicatedJobsStatus": [{"name": "worker", "ready": 2}]}, {}, "running", "2 jobs are ready"),
        ({}, {"conditions": [condition("Completed", "done")]}, {}, "done", "done"),
        ({}, {"conditions": [condition("Failed", "rule at index 2")]}, {}, "failed", "rule at index 2"),
        ({}, {}, {"deletionTimestamp": "now"}, "ending", ""),
    ],
)
def test_how_a_job_is_in_the_words_of_the_cluster(kubectl, spec, status, more, state, detail):
    (jobset,) = there(**status)["items"]
    jobset["spec"], jobset["metadata"] = spec, {**jobset["metadata"], **more}
    workload = {
        "metadata": {"ownerReferences": [{"kind": "JobSet", "name": NAME}]},
        "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": "no flavor fits"}]},
    }
    kubectl.says(
        {
            **KNOWN,
            "get jobsets": json.dumps({"items": [jobset]}),
            "get workloads": json.dumps({"items": [workload]}),
        }
    )
    (info,) = kubernetes().jobs()
    assert (info.id, info.state, info.detail, info.directory) == (NAME, state, detail, "/runs/a")


def kept():
    about = {"dovetail/directory": "/runs/a", "dovetail/bundle": BUNDLE.hash}
    return {"metadata": {"name": f"{NAME}-launch", "annotations": about}, "data": {"jobset.yaml": "kind: JobSet\n"}}


def test_a_cancelled_job_is_known_and_goes_on_as_it_was(kubectl):
    kubectl.says(
        {
            **KNOWN,
            "get configmaps": json.dumps({"items": [kept(), {"metadata": {"name": f"{NAME}-code-0-00"}}]}),
            "get configmap ": json.dumps(kept()),
        }
    )
    engine = kubernetes()
    (info,) = engine.jobs()
    assert (info.state, info.bundle) == ("cancelled", BUNDLE.hash)
    record = engine.record(info)
    assert record is not None
    assert engine.resume(info, record).state == "waiting"
    deleted, secret, jobset = kubectl.calls[-3:]
    assert deleted.arguments[2:6] == ["delete", "jobset", NAME, "--ignore-not-found"]
    assert json.loads(secret.given)["items"][0]["kind"] == "Secret"
    assert jobset.given == "kind: JobSet\n"


def test_cancelling_gives_pods_time_to_save(kubectl):
    kubectl.says(KNOWN)
    kubernetes().cancel(JobInfo(NAME, NAME, "running"))
    (call,) = kubectl.calls
    assert call.arguments[2:] == ["delete", "jobset", NAME, "--cascade=foreground", "--wait=false"]


def test_logs_are_those_of_the_first_pod(kubectl):
    kubectl.says({"logs": "one\ntwo\n"})
    assert list(kubernetes().logs(JobInfo(NAME, NAME, "running"), follow=False)) == ["one", "two"]
    assert f"jobset.sigs.k8s.io/jobset-name={NAME}" in kubectl.calls[0].arguments[3]


def test_following_ends_with_the_job_and_with_its_code(kubectl, capsys):
    done = there(conditions=[condition("Completed")])
    kubectl.says({**KNOWN, "get jobsets": json.dumps(done), "logs": "last\n"})
    assert kubernetes().follow(JobInfo(NAME, NAME, "done")) == 0
    kubectl.says(KNOWN)
    assert kubernetes().follow(JobInfo(NAME, NAME, "done")) == 85  # It was deleted.
