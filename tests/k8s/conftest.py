"""The manifests as objects, and two checks of an object against its schema that refuse unknown keys."""

import copy
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "k8s"
KUBERNETES_VERSION = "1.32"
CRDS_VARIABLE = "SWEEP_KUBERAY_CRDS"

Object = dict[str, Any]
Check = Callable[[Object], list[str]]


def load_documents(text: str) -> list[Object]:
    """The objects in a stream of YAML documents."""
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def listed_files() -> list[Object]:
    """The objects in the files that the kustomization lists: without its generated objects and image tags."""
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
    return [item for name in kustomization["resources"] for item in load_documents((MANIFESTS / name).read_text())]


@pytest.fixture(scope="session")
def rendered() -> list[Object]:
    """What `kubectl apply -k k8s` would send."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on this machine, so the kustomization is not rendered")
    done = subprocess.run([kubectl, "kustomize", MANIFESTS], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return load_documents(done.stdout)


@pytest.fixture(scope="session", params=["files", "kustomize"])
def objects(request: pytest.FixtureRequest) -> list[Object]:
    """All objects, once as the files have them and once rendered; the pod that loads data comes along."""
    listed = listed_files() if request.param == "files" else request.getfixturevalue("rendered")
    return listed + load_documents((MANIFESTS / "load-data.yaml").read_text())


def pod_templates(item: Object) -> Iterator[tuple[str, Object]]:
    """A name and a template, with its `spec`, for each kind of pod that an object leads to."""
    kind, name = item["kind"], item["metadata"]["name"]
    if kind == "Pod":
        yield name, item
    elif kind in {"Deployment", "StatefulSet", "Job"}:
        yield name, item["spec"]["template"]
    elif kind == "RayJob":
        cluster = item["spec"]["rayClusterSpec"]
        yield f"{name} submitter", item["spec"]["submitterPodTemplate"]
        yield f"{name} head", cluster["headGroupSpec"]["template"]
        for group in cluster["workerGroupSpecs"]:
            yield f"{name} {group['groupName']}", group["template"]


@pytest.fixture(scope="session")
def pods(objects: list[Object]) -> dict[str, Object]:
    """Every pod template by name."""
    return {name: template for item in objects for name, template in pod_templates(item)}


@pytest.fixture(scope="session")
def rayjob(objects: list[Object]) -> Object:
    """The one RayJob."""
    (job,) = [item for item in objects if item["kind"] == "RayJob"]
    return job


@pytest.fixture(scope="session")
def kubernetes_errors() -> Check:
    """Errors of an object of a built-in kind, unknown keys included."""

    def errors(item: Object) -> list[str]:
        try:
            kubernetes_validate.validate(item, KUBERNETES_VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [str(error.message)]
        return []

    return errors


def forbid_unknown_keys(schema: Any) -> None:
    """Close every object of the schema whose keys are listed, in place, unless the definition says that it keeps others."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        for part in schema.values():
            forbid_unknown_keys(part)
    elif isinstance(schema, list):
        for part in schema:
            forbid_unknown_keys(part)


def defaulted(value: Any, schema: Object) -> Any:
    """The value as an API server completes it before it validates: nulls dropped, defaults of the schema filled in."""
    if isinstance(value, list):
        return [defaulted(part, schema.get("items", {})) for part in value]
    if not isinstance(value, dict):
        return value
    fields = schema.get("properties", {})
    rest = schema.get("additionalProperties")
    rest = rest if isinstance(rest, dict) else {}
    filled = {key: defaulted(part, fields.get(key, rest)) for key, part in value.items() if part is not None}
    for key, field in fields.items():
        if key not in filled and "default" in field:
            filled[key] = copy.deepcopy(field["default"])
    return filled


@pytest.fixture(scope="session")
def rayjob_errors() -> Check:
    """Errors of a RayJob against KubeRay's definition. Its CEL rules are not evaluated."""
    folder = os.environ.get(CRDS_VARIABLE)
    if not folder:
        pytest.skip(f"{CRDS_VARIABLE} does not name a folder with KubeRay's custom resource definitions")
    (definition,) = load_documents((Path(folder) / "ray.io_rayjobs.yaml").read_text())
    (schema,) = [version["schema"]["openAPIV3Schema"] for version in definition["spec"]["versions"] if version["name"] == "v1"]
    # The definition leaves the metadata of the object itself to the API server.
    schema["properties"]["metadata"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    forbid_unknown_keys(schema)
    validator = jsonschema.Draft202012Validator(schema)

    def errors(item: Object) -> list[str]:
        return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(defaulted(item, schema))]

    return errors
