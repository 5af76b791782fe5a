"""The manifests for Kubernetes: valid, complete, and true to each other and to the settings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from django.conf import settings
from django.core.management import load_command_class

from config.local.bootstrap import PROJECT
from config.settings import env
from tests.support.deploy.packages import KUBERNETES_VALIDATE, run_tool

FOLDER: Final = PROJECT / "docs" / "deploy" / "kubernetes"
BASE: Final = FOLDER / "base"
EXAMPLE: Final = FOLDER / "overlays" / "example"
# Kustomize and the Prometheus operator define these kinds, not Kubernetes.
FOREIGN: Final = {"Kustomization", "PodMonitor"}
NAME: Final = "app.kubernetes.io/name"
COMPONENT: Final = "app.kubernetes.io/component"


def read(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def resources(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the resources that a kustomization lists, those of folders included."""
    [kustomization] = read(folder / "kustomization.yaml")
    for name in kustomization["resources"]:
        path = folder / name
        yield from resources(path) if path.is_dir() else read(path)


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in resources(EXAMPLE) if one["kind"] == kind}


def pods() -> dict[str, dict[str, Any]]:
    """Returns the template of the pods of each workload by its command."""
    workloads = [*of_kind("Deployment").values(), *of_kind("Job").values()]
    return {
        one["metadata"]["name"].removeprefix("causeway-"): one["spec"]["template"]
        for one in workloads
    }


def labels_of(template: dict[str, Any]) -> dict[str, str]:
    # The kustomization puts the name into every template.
    return {NAME: "causeway", **template["metadata"]["labels"]}


def test_every_manifest_is_valid(tmp_path: Path) -> None:
    if "CAUSEWAY_TEST_OFFLINE" in os.environ:
        pytest.skip("needs a package index")
    names = []
    for number, resource in enumerate(resources(EXAMPLE)):
        if resource["kind"] not in FOREIGN:
            path = tmp_path / f"{number}.yaml"
            path.write_text(yaml.safe_dump(resource))
            names.append(str(path))

    done = run_tool(
        KUBERNETES_VALIDATE, "kubernetes-validate", "--strict", "-k", "1.29", *names, cwd=tmp_path
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(names) >= 11


def test_every_file_is_listed_and_exists() -> None:
    for folder in (BASE, EXAMPLE):
        [kustomization] = read(folder / "kustomization.yaml")
        patches = [patch["path"] for patch in kustomization.get("patches", ())]
        listed = {*kustomization["resources"], *patches, "kustomization.yaml"}
        files = {path.name for path in folder.iterdir()}
        assert {name for name in listed if not name.startswith("..")} == files


def test_patches_and_images_change_what_the_base_has() -> None:
    [kustomization] = read(EXAMPLE / "kustomization.yaml")
    known = {(one["kind"], one["metadata"]["name"]): one for one in resources(BASE)}
    for patch in kustomization["patches"]:
        [change] = read(EXAMPLE / patch["path"])
        target = known[change["kind"], change["metadata"]["name"]]
        assert change["data"].keys() <= target["data"].keys()
    [image] = kustomization["images"]
    assert {pod["spec"]["containers"][0]["image"] for pod in pods().values()} == {image["name"]}


def test_containers_run_commands_that_exist_with_settings_that_exist() -> None:
    for name, pod in pods().items():
        [container] = pod["spec"]["containers"]
        command, *arguments = container["args"]
        assert command == name
        parser = load_command_class("config", command).create_parser("causeway", command)
        parser.parse_args(arguments)
        variables = {one["name"].removesuffix("_FILE") for one in container["env"]}
        data = of_kind("ConfigMap")["causeway-settings"]["data"]
        assert {*variables, *data} <= env.names
        assert variables == {"DATABASE_URL", "SECRET_KEY", "CREDENTIAL_KEYS", "METRICS_TOKEN"}
        [secrets, temporary] = pod["spec"]["volumes"]
        assert secrets["secret"]["secretName"] == "causeway"
        assert "emptyDir" in temporary


def test_pods_are_restricted() -> None:
    for pod in pods().values():
        [container] = pod["spec"]["containers"]
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
        user = re.search(r"--uid (\d+)", (PROJECT / "Containerfile").read_text())
        assert user is not None
        assert pod["spec"]["securityContext"]["runAsUser"] == int(user[1])


def test_names_and_labels_refer_to_what_exists() -> None:
    known = {labels[COMPONENT]: labels for labels in map(labels_of, pods().values())}
    selectors = [
        *(one["spec"]["selector"]["matchLabels"] for one in of_kind("Deployment").values()),
        *(one["spec"]["selector"] for one in of_kind("Service").values()),
        *(
            one["spec"]["selector"]["matchLabels"]
            for one in of_kind("PodDisruptionBudget").values()
        ),
        *(one["spec"]["podSelector"]["matchLabels"] for one in of_kind("NetworkPolicy").values()),
    ]
    assert [one for one in selectors if known[one[COMPONENT]] != one] == []
    accounts = {pod["spec"]["serviceAccountName"] for pod in pods().values()}
    assert accounts == of_kind("ServiceAccount").keys()
    [autoscaler] = of_kind("HorizontalPodAutoscaler").values()
    assert autoscaler["spec"]["scaleTargetRef"]["name"] in of_kind("Deployment")
    [rule] = of_kind("Ingress")["causeway"]["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    [port] = of_kind("Service")[backend["name"]]["spec"]["ports"]
    assert port["name"] == backend["port"]["name"]
    [container] = pods()["serve"]["spec"]["containers"]
    named = {one["name"]: one["containerPort"] for one in container["ports"]}
    data = of_kind("ConfigMap")["causeway-settings"]["data"]
    assert named[port["targetPort"]] == int(container["args"][4])
    assert named["metrics"] == int(data["METRICS_PORT"])


def test_pods_that_end_have_time_to_finish_their_streams() -> None:
    data = of_kind("ConfigMap")["causeway-settings"]["data"]
    needed = int(data["DRAIN_SECONDS"]) + settings.HOLD_TIMEOUT
    assert pods()["serve"]["spec"]["terminationGracePeriodSeconds"] >= needed + 20


def test_probes_ask_what_they_should() -> None:
    [container] = pods()["serve"]["spec"]["containers"]
    paths = {
        name: container[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "readiness", "liveness")
    }
    assert paths == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}
