"""The Dockerfile, the tags in the kustomization and what runs inside: all at the versions of constraints.txt, none as root."""

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()

Object = dict[str, Any]


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    """Pinned version by package."""
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    return dict(line.split("==", 1) for line in lines if "==" in line)


@pytest.fixture(scope="module")
def tags() -> dict[str, str]:
    """Tag by image, from the kustomization."""
    kustomization = yaml.safe_load((ROOT / "k8s" / "kustomization.yaml").read_text())
    return {image["name"]: image["newTag"] for image in kustomization["images"]}


def stages() -> dict[str, list[str]]:
    """Instructions of the Dockerfile by stage, continued lines joined, comments left out."""
    text = "\n".join(line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#")).replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("FROM "):
            found[line.split()[-1]] = []
        found[next(reversed(found))].append(line)
    return found


def test_ray_and_mlflow_have_one_version_everywhere(pins: dict[str, str], tags: dict[str, str], rayjob: Object) -> None:
    assert rayjob["spec"]["rayClusterSpec"]["rayVersion"] == pins["ray"]
    assert tags["sweep-cpu"] == tags["sweep-gpu"] == f"ray{pins['ray']}-py3.11"
    assert tags["sweep-mlflow"] == pins["mlflow"]


def test_python_has_one_version_everywhere(tags: dict[str, str]) -> None:
    assert stages()["base"][0] == "FROM python:3.11-slim-bookworm AS base"
    assert tags["sweep-cpu"].endswith("-py3.11")
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert "3.11" in requires


def test_every_package_of_an_image_is_pinned(pins: dict[str, str]) -> None:
    """No version stands in the Dockerfile, and each install reads the constraints, which know every package that is named."""
    installs = re.findall(r"pip install ([^&;\n]+)", "\n".join(line for lines in stages().values() for line in lines))
    assert len(installs) == 4
    for install in installs:
        assert "-c constraints.txt" in install
        assert "==" not in install
    named = {"torch", "mlflow", "psycopg2-binary", "boto3", "ray"}
    assert {name for name in named if name in " ".join(installs)} == named
    assert named - pins.keys() == set()


def test_every_final_stage_runs_as_the_user_of_the_manifests(pods: dict[str, Object]) -> None:
    found = stages()
    assert list(found) == ["base", "mlflow", "sweep"]
    for name in ("mlflow", "sweep"):
        assert [line for line in found[name] if line.startswith("USER")] == ["USER 1000:1000"], name
    assert pods["mlflow"]["spec"]["securityContext"]["runAsUser"] == pods["sweep head"]["spec"]["securityContext"]["runAsUser"] == 1000


def test_the_image_has_what_kuberay_calls(pods: dict[str, Object]) -> None:
    assert any("apt-get install" in line and " wget" in line for line in stages()["base"])
    folder = next(line.split()[1] for line in stages()["base"] if line.startswith("WORKDIR"))
    (head,) = pods["sweep head"]["spec"]["containers"]
    assert f"{folder}/mlruns" in [mount["mountPath"] for mount in head["volumeMounts"]]


def test_every_image_has_a_tag_and_no_floating_one(rendered: list[Object], tags: dict[str, str]) -> None:
    text = yaml.safe_dump(rendered)
    images = set(re.findall(r"^\s*(?:- )?image: (\S+)$", text, flags=re.MULTILINE))
    assert images == {f"{name}:{tag}" for name, tag in tags.items()}
    assert [tag for tag in tags.values() if tag == "latest"] == []


def test_the_pod_that_loads_data_uses_an_image_of_the_cluster(tags: dict[str, str]) -> None:
    pod = yaml.safe_load((ROOT / "k8s" / "load-data.yaml").read_text())
    assert [box["image"] for box in pod["spec"]["containers"]] == [f"postgres:{tags['postgres']}"]


class Account:
    """As much of an S3 client as the bucket needs."""

    def __init__(self) -> None:
        self.buckets = ["other"]

    def list_buckets(self) -> Object:
        return {"Buckets": [{"Name": name} for name in self.buckets]}

    def create_bucket(self, **arguments: str) -> None:
        self.buckets.append(arguments["Bucket"])


def test_the_bucket_is_made_once() -> None:
    spec = importlib.util.spec_from_file_location("make_bucket", ROOT / "k8s" / "make_bucket.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    account = Account()
    assert [module.make_bucket(account, "mlflow") for _ in range(2)] == [True, False]
    assert account.buckets == ["other", "mlflow"]
