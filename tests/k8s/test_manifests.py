"""The objects that `kubectl apply -k k8s` creates: valid, closed to the outside, without privileges, equal to the pins."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

Object = dict[str, Any]
Check = Callable[[Object], list[str]]


def containers(template: Object) -> list[Object]:
    """All containers of a pod, those that run first included."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def test_every_object_fits_its_kubernetes_schema(objects: list[Object], kubernetes_errors: Check) -> None:
    builtin = [item for item in objects if not item["apiVersion"].startswith("ray.io/")]
    assert {"Deployment", "StatefulSet", "Service", "NetworkPolicy", "PersistentVolumeClaim"} <= {item["kind"] for item in builtin}
    assert {item["metadata"]["name"]: errors for item in builtin if (errors := kubernetes_errors(item))} == {}


def test_every_pod_template_fits_the_schema_of_a_pod(pods: dict[str, Object], kubernetes_errors: Check) -> None:
    """Also those inside the RayJob, where KubeRay's definition is not at hand."""
    as_pods = {name: {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"]} for name, template in pods.items()}
    assert {name: errors for name, pod in as_pods.items() if (errors := kubernetes_errors(pod))} == {}


def test_the_rayjob_fits_kuberays_definition(rayjob: Object, rayjob_errors: Check) -> None:
    assert rayjob_errors(rayjob) == []


def test_a_misspelt_key_is_refused(objects: list[Object], kubernetes_errors: Check) -> None:
    (deployment,) = [copy.deepcopy(item) for item in objects if item["kind"] == "Deployment"]
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    assert "livenessprobe" in "".join(kubernetes_errors(deployment))


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        ([], "ttlSecondsAfterFinish", 1),
        (["rayClusterSpec", "headGroupSpec"], "rayStartParam", {}),
        (["rayClusterSpec", "workerGroupSpecs", 0, "template", "spec", "containers", 0], "resource", {}),
        # A number where Ray's parameters are strings.
        (["rayClusterSpec", "headGroupSpec", "rayStartParams"], "num-cpus", 0),
    ],
)
def test_a_misspelt_key_or_a_wrong_type_in_the_rayjob_is_refused(
    rayjob: Object, rayjob_errors: Check, path: list[str | int], key: str, value: object
) -> None:
    broken = copy.deepcopy(rayjob)
    place = broken["spec"]
    for step in path:
        place = place[step]
    place[key] = value
    (error,) = rayjob_errors(broken)
    assert key in error


def test_defaults_and_nulls_are_no_errors(rayjob: Object, rayjob_errors: Check) -> None:
    """The definition requires `maxReplicas` and has a default for it; an API server fills that in and drops nulls."""
    partial = copy.deepcopy(rayjob)
    del partial["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplicas"]
    partial["spec"]["suspend"] = None
    assert rayjob_errors(partial) == []


def test_no_object_names_a_namespace(objects: list[Object]) -> None:
    assert [item["metadata"]["name"] for item in objects if "namespace" in item["metadata"]] == []


def test_no_pod_has_privileges(pods: dict[str, Object]) -> None:
    for name, template in pods.items():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), name
        assert not [volume for volume in spec.get("volumes", []) if "hostPath" in volume], name
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in containers(template):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, (name, container["name"])


def test_every_container_has_requests_equal_to_limits(pods: dict[str, Object]) -> None:
    for name, template in pods.items():
        for container in containers(template):
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["limits"].keys(), (name, container["name"])
            assert resources["requests"] == resources["limits"], (name, container["name"])


def test_long_running_services_have_probes(objects: list[Object]) -> None:
    services = [item for item in objects if item["kind"] in {"Deployment", "StatefulSet"}]
    assert {item["metadata"]["name"] for item in services} == {"mlflow", "postgres", "objects"}
    for item in services:
        for container in item["spec"]["template"]["spec"]["containers"]:
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys(), item["metadata"]["name"]


def test_passwords_come_from_the_secret_that_the_docs_create(objects: list[Object], pods: dict[str, Object]) -> None:
    assert "Secret" not in {item["kind"] for item in objects}
    used = set()
    for variable in (variable for template in pods.values() for box in containers(template) for variable in box.get("env", [])):
        if re.search("PASSWORD|_KEY|TOKEN", variable["name"]):
            reference = variable["valueFrom"]["secretKeyRef"]
            assert reference["name"] == "sweep-store"
            used.add(reference["key"])
    guide = (ROOT / "docs" / "kubernetes.md").read_text()
    assert set(re.findall(r"--from-literal=([\w-]+)=\"\$\(openssl", guide)) == used != set()


def allowed(objects: list[Object], component: str) -> list[Object]:
    """The ingress rules for the pods of a component."""
    policies = [item["spec"] for item in objects if item["kind"] == "NetworkPolicy"]
    (policy,) = [spec for spec in policies if spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component]
    assert "Ingress" in policy["policyTypes"]
    rules: list[Object] = policy["ingress"]
    return rules


def test_only_the_namespace_reaches_mlflow_and_only_mlflow_its_stores(objects: list[Object]) -> None:
    assert [rule["from"] for rule in allowed(objects, "mlflow")] == [[{"podSelector": {}}]]
    mlflow = {"app.kubernetes.io/part-of": "sweep", "app.kubernetes.io/component": "mlflow"}
    for store in ("postgres", "objects"):
        assert [rule["from"] for rule in allowed(objects, store)] == [[{"podSelector": {"matchLabels": mlflow}}]], store


def test_from_other_namespaces_only_the_operator_reaches_ray_and_only_its_dashboard(objects: list[Object]) -> None:
    foreign = [rule for rule in allowed(objects, "ray") if any("namespaceSelector" in peer for peer in rule["from"])]
    operator = {"matchLabels": {"app.kubernetes.io/component": "kuberay-operator"}}
    assert foreign == [{"from": [{"namespaceSelector": {}, "podSelector": operator}], "ports": [{"port": 8265, "protocol": "TCP"}]}]


def test_policies_and_services_select_pods_that_exist(objects: list[Object], pods: dict[str, Object]) -> None:
    labels = [template["metadata"]["labels"] for template in pods.values()]
    selectors = [item["spec"]["selector"] for item in objects if item["kind"] == "Service"]
    selectors += [item["spec"]["podSelector"]["matchLabels"] for item in objects if item["kind"] == "NetworkPolicy"]
    for selector in selectors:
        assert any(selector.items() <= have.items() for have in labels), selector


def test_the_head_takes_no_trials_and_ray_asks_for_a_token(rayjob: Object) -> None:
    cluster = rayjob["spec"]["rayClusterSpec"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert "entrypointNumCpus" not in rayjob["spec"]
    assert cluster["authOptions"] == {"mode": "token"}


def test_measurements_have_a_node_that_takes_no_trials(rayjob: Object) -> None:
    groups = {group["groupName"]: group for group in rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]}
    assert list(groups) == ["cpu", "measure", "gpu"]
    assert groups["measure"]["rayStartParams"] == {"num-cpus": "0", "resources": '"{\\"measure\\": 1}"'}
    assert groups["cpu"]["rayStartParams"] == groups["gpu"]["rayStartParams"] == {}


def test_the_job_ends_cleans_up_and_may_be_tried_again(rayjob: Object) -> None:
    spec = rayjob["spec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert min(spec["ttlSecondsAfterFinished"], spec["activeDeadlineSeconds"], spec["backoffLimit"]) > 0


def test_the_entrypoint_names_a_config_that_is_in_the_image(rayjob: Object) -> None:
    module, config, *rest = rayjob["spec"]["entrypoint"].removeprefix("python -m ").split()
    assert (module, config) == ("sweep.launch", "configs/full.yaml")
    assert (ROOT / config).is_file()
    groups = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    cpus = sum(
        group["replicas"] * int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
        for group in groups
        if group["rayStartParams"].get("num-cpus") != "0"
    )
    assert rest == ["store.tracking_uri=http://mlflow:5000", f"slots={cpus}", "--address", "auto"]


def test_only_the_gpu_group_sees_gpus(pods: dict[str, Object]) -> None:
    ray_pods = {name.removeprefix("sweep "): template for name, template in pods.items() if name.startswith("sweep ")}
    assert ray_pods.keys() == {"submitter", "head", "cpu", "measure", "gpu"}
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    for name in ("submitter", "head", "cpu", "measure"):
        for container in containers(ray_pods[name]):
            assert void in container["env"], name
            assert "nvidia.com/gpu" not in container["resources"]["limits"], name
    (worker,) = ray_pods["gpu"]["spec"]["containers"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert void not in worker.get("env", [])
    assert ray_pods["gpu"]["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"


def test_ray_nodes_share_their_environment_data_and_memory_volume(objects: list[Object], pods: dict[str, Object]) -> None:
    (environment,) = [item["data"] for item in objects if item["metadata"]["name"] == "ray-environment"]
    assert len([name for name in environment if name.startswith("RAY_health_check_")]) == 4
    for name in ("sweep head", "sweep cpu", "sweep measure", "sweep gpu"):
        (node,) = pods[name]["spec"]["containers"]
        assert node["envFrom"] == [{"configMapRef": {"name": "ray-environment"}}], name
        mounts = {mount["mountPath"]: mount for mount in node["volumeMounts"]}
        assert mounts[environment["SWEEP_DATA"]]["readOnly"] is True, name
        (memory,) = [volume["name"] for volume in pods[name]["spec"]["volumes"] if volume.get("emptyDir", {}).get("medium") == "Memory"]
        assert [path for path, mount in mounts.items() if mount["name"] == memory] == ["/dev/shm"], name
        assert pods[name]["spec"]["terminationGracePeriodSeconds"] >= 60, name
