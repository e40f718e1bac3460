"""The container and the Kubernetes examples, as far as they can be checked without either."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf.compose import compose
from conf.errors import BAD_INPUT, GATE_FAILED
from quantize.command import COMMAND as QUANTIZE
from serve.command import COMMAND as SERVE
from serve.middleware import OPEN

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "docs" / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMMANDS = {"quantize": QUANTIZE, "serve": SERVE}
# The fields of Kubernetes that the examples use: a misspelled one would be ignored there.
POD_FIELDS = {
    "restartPolicy", "automountServiceAccountToken", "securityContext", "containers", "volumes",
    "terminationGracePeriodSeconds",
}  # fmt: skip
CONTAINER_FIELDS = {
    "name", "image", "args", "env", "ports", "resources", "securityContext", "volumeMounts",
    "startupProbe", "readinessProbe", "livenessProbe",
}  # fmt: skip
PROBE_FIELDS = {"httpGet", "periodSeconds", "failureThreshold"}


def instructions() -> list[list[str]]:
    """The Dockerfile's instructions, with lines joined and comments left out."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]


def of_kind(kind: str) -> list[str]:
    return [text for name, text in instructions() if name == kind]


def test_the_image_is_made_of_files_that_exist_and_are_sent_to_the_builder() -> None:
    copied = [text for text in of_kind("COPY") if not text.startswith("--from")]
    names = [name for text in copied for name in text.split()[:-1]]
    sent = re.findall(r"^!(.+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert sorted(names) == sorted(sent)
    for name in names:
        assert (ROOT / name).exists(), name


def test_the_image_holds_the_locked_packages_of_both_devices() -> None:
    assert any('locks/environment.py install "${DEVICE}"' in text for text in of_kind("RUN"))
    assert of_kind("ARG") == ["PYTHON=3.12-slim-bookworm", "DEVICE=cpu"]
    assert not re.search(r"pip install|:latest", DOCKERFILE)


def test_the_image_runs_as_another_user_than_root_and_tells_whether_it_is_ready() -> None:
    assert of_kind("USER") == ["10001:10001"]
    (check,) = of_kind("HEALTHCHECK")
    assert "http://127.0.0.1:8000/ready" in check
    assert "/ready" in OPEN
    assert "ProxyHandler({})" in check  # a proxy of the environment does not know 127.0.0.1
    assert of_kind("EXPOSE") == ["8000"]


def documents() -> list[Any]:
    return [
        document
        for path in sorted(DEPLOY.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]


def pods() -> list[Any]:
    return [each["spec"]["template"]["spec"] for each in documents() if "template" in each["spec"]]


def test_the_examples_are_a_job_a_deployment_and_its_service() -> None:
    kinds = {document["kind"]: document for document in documents()}
    assert {kind: document["apiVersion"] for kind, document in kinds.items()} == {
        "Job": "batch/v1",
        "Deployment": "apps/v1",
        "Service": "v1",
    }
    labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert kinds["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert kinds["Service"]["spec"]["selector"] == labels


def test_a_job_that_would_fail_again_is_not_tried_again() -> None:
    (job,) = [document["spec"] for document in documents() if document["kind"] == "Job"]
    (container,) = job["template"]["spec"]["containers"]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # the policy needs it
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"] == {
        "containerName": container["name"],
        "operator": "In",
        "values": [BAD_INPUT, GATE_FAILED],
    }


@pytest.mark.parametrize("pod", pods())
def test_a_pod_is_confined(pod: dict[str, Any]) -> None:
    assert set(pod) <= POD_FIELDS
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = pod["securityContext"]["runAsUser"]
    assert of_kind("USER") == [f"{user}:{pod['securityContext']['runAsGroup']}"]
    (container,) = pod["containers"]
    assert set(container) <= CONTAINER_FIELDS
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("pod", pods())
def test_all_that_is_written_is_a_volume(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = [volume["name"] for volume in pod["volumes"]]
    assert set(mounts.values()) == set(volumes)
    written = {path for text in of_kind("VOLUME") for path in yaml.safe_load(text)}
    assert written | {"/tmp"} <= set(mounts)
    variables = dict(entry.split("=", 1) for text in of_kind("ENV") for entry in shlex.split(text))
    assert {variables["HOME"], variables["XDG_CACHE_HOME"]} <= set(mounts)


@pytest.mark.parametrize("pod", pods())
def test_the_command_is_one_of_ours_with_valid_options(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    name, *options = container["args"]
    config = compose(COMMANDS[name], options)
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
    if name == "quantize":
        assert config.gpus == gpus
        return
    assert config.engine.options["tensor_parallel_size"] == gpus
    assert pod["terminationGracePeriodSeconds"] > config.drain_s
    assert container["ports"] == [{"name": "http", "containerPort": config.port}]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert set(container[probe]) <= PROBE_FIELDS
        assert container[probe]["httpGet"]["path"] in OPEN
        assert container[probe]["httpGet"]["port"] == "http"
