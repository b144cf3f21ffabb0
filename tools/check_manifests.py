# SPDX-License-Identifier: Apache-2.0
"""Validates manifests for Kubernetes by all that can be had without a cluster, and says which check refuses what.

    python tools/check_manifests.py [CRD_DIRECTORY] [FILE ...]    the files, or all goldens; exits with 1 for a finding
    python tools/check_manifests.py [CRD_DIRECTORY] --stdin       lists of manifests, in JSON; prints lists of findings

Run it with a Python that has what `make manifests` installs: `.venv/manifests/bin/python`. The checks are

    model     JobSets go through the models of kubeflow-trainer-api, and come back as they were
    core      their jobs and pods, by the schemas of Kubernetes itself, unknown fields refused (kubernetes-validate)
    schema    with CRD_DIRECTORY: JobSets and objects of Kueue, by the schemas of their CRDs, closed to unknown fields.
              The files are those of the projects: config/crd/bases in kubernetes-sigs/jobset and kubernetes-sigs/kueue
"""

import copy
import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

GOLDENS = Path(__file__).resolve().parents[1] / "tests" / "launch" / "goldens"
_VERSION = "1.36"  # Of Kubernetes.
_IN_CORE = ("v1", "batch/v1")


def findings(manifest: Mapping[str, Any], schemas: Mapping[tuple[str, str], Any]) -> Iterator[tuple[str, str]]:
    """Yields each check that refuses a manifest, with what it says."""
    if manifest.get("kind") == "JobSet":
        yield from (("model", text) for text in _model(manifest))
        yield from (("core", text) for text in _core(manifest))
    elif manifest.get("apiVersion") in _IN_CORE:
        yield from (("core", text) for text in _valid(manifest))
    key = (str(manifest.get("apiVersion")), str(manifest.get("kind")))
    if key in schemas:
        yield from (("schema", text) for text in _schema(manifest, schemas[key]))
    elif schemas and key[0] not in _IN_CORE:
        yield "schema", f"there is no schema of {key[1]} {key[0]}"


def _model(manifest: Mapping[str, Any]) -> Iterator[str]:
    model: Any = importlib.import_module("kubeflow_trainer_api.models.jobset_v1alpha2_job_set")
    try:
        back = model.JobsetV1alpha2JobSet.from_dict(copy.deepcopy(dict(manifest)))
        assert back is not None
        yield from _lost(manifest, back.to_dict(), "")
    except ValueError as e:
        yield str(e).splitlines()[0] + ": " + " ".join(str(e).splitlines()[1:3])


def _lost(before: Any, after: Any, path: str) -> Iterator[str]:
    """Yields what a round trip has changed."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in before.keys() - after.keys():
            yield f"{path}.{key} is lost"
        for key in before.keys() & after.keys():
            yield from _lost(before[key], after[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _lost(one, other, f"{path}[{index}]")
    elif before != after:
        yield f"{path} was {before!r}, and is {after!r}"


def _core(manifest: Mapping[str, Any]) -> Iterator[str]:
    for jobs in manifest.get("spec", {}).get("replicatedJobs", []):
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, **jobs.get("template", {})}
        yield from _valid({**job, "metadata": {"name": "job", **job.get("metadata", {})}})


def _valid(manifest: Mapping[str, Any]) -> Iterator[str]:
    kubernetes_validate: Any = importlib.import_module("kubernetes_validate")
    try:
        kubernetes_validate.validate(copy.deepcopy(dict(manifest)), _VERSION, strict=True)
    except kubernetes_validate.ValidationError as e:
        yield f"{'.'.join(map(str, e.path))}: {e.message[:300]}"


def _schema(manifest: Mapping[str, Any], schema: Any) -> Iterator[str]:
    jsonschema: Any = importlib.import_module("jsonschema")
    for error in jsonschema.Draft202012Validator(schema).iter_errors(manifest):
        yield f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}"


def read_schemas(directory: Path) -> dict[tuple[str, str], Any]:
    """Returns the schemas of the CRDs in a directory, closed, by version and kind."""
    yaml: Any = importlib.import_module("yaml")
    found: dict[tuple[str, str], Any] = {}
    for file in sorted(directory.glob("*.yaml")):
        for crd in yaml.safe_load_all(file.read_text("utf-8")):
            spec = crd["spec"]
            for version in spec["versions"]:
                schema = _closed(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def _closed(schema: Any) -> Any:
    """Returns a schema that refuses fields it does not list, in JSON schema's own words."""
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items() if key not in ("properties", "items")}
    if "properties" in schema:
        closed["properties"] = {key: _closed(value) for key, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    return closed


def main(arguments: Sequence[str]) -> int:
    """Checks what is asked for."""
    rest = list(arguments)
    schemas = read_schemas(Path(rest.pop(0))) if rest and Path(rest[0]).is_dir() else {}
    if rest == ["--stdin"]:
        groups: list[list[Mapping[str, Any]]] = json.load(sys.stdin)
        print(json.dumps([[found for each in group for found in findings(each, schemas)] for group in groups]))
        return 0
    return _report([Path(name) for name in rest] or sorted(GOLDENS.glob("kubernetes-*.yaml")), schemas)


def _report(files: Sequence[Path], schemas: Mapping[tuple[str, str], Any]) -> int:
    yaml: Any = importlib.import_module("yaml")
    wrong = count = 0
    for file in files:
        for manifest in yaml.safe_load_all(file.read_text("utf-8")):
            count += 1
            for check, text in findings(manifest, schemas):
                wrong += 1
                print(f"{file.name}: {manifest.get('kind')}: {check}: {text}")
    checks = f"models, Kubernetes {_VERSION}{f', {len(schemas)} schemas of CRDs' if schemas else ''}"
    print(f"{count} manifests in {len(files)} files, {wrong} findings; checked with {checks}")
    return int(bool(wrong) or not count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
