"""The manifests of docs/kubernetes.md: fit for their schemas, and what they start is what the launcher takes."""

import glob
import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml

from tests.docs import blocks

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The levels above a pod that Kubeflow's own resources have: all keys that the page uses.
REPLICAS = {"TFJob": "tfReplicaSpecs", "MPIJob": "mpiReplicaSpecs"}
ROLES = {"TFJob": {"Worker"}, "MPIJob": {"Launcher", "Worker"}}


def manifests():
    """{kind: manifest} of the page."""
    texts = [text for language, text in blocks.of_page("kubernetes.md") if language == "yaml"]
    return {manifest["kind"]: manifest for text in texts for manifest in yaml.safe_load_all(text)}


def pods():
    """(what, pod template) of every manifest."""
    for kind, manifest in manifests().items():
        if kind == "Job":
            yield kind, manifest["spec"]["template"]
        for role, replica in manifest["spec"].get(REPLICAS.get(kind, ""), {}).items():
            yield f"{kind} {role}", replica["template"]


def test_the_page_shows_three_ways():
    assert set(manifests()) == {"Service", "Job", "TFJob", "MPIJob"}


def test_the_resources_of_operators_have_the_keys_that_these_know():
    for kind, key in REPLICAS.items():
        spec = manifests()[kind]["spec"]
        assert set(spec) <= {"runPolicy", "slotsPerWorker", key}
        assert set(spec[key]) == ROLES[kind]
        for replica in spec[key].values():
            assert set(replica) <= {"replicas", "restartPolicy", "template"}


def test_every_pod_that_trains_has_memory_for_its_workers_and_the_secret():
    for what, pod in pods():
        (container,) = pod["spec"]["containers"]
        if what != "MPIJob Launcher":
            assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod["spec"]["volumes"], what
            assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"], what
        if what != "MPIJob Worker":  # mpirun hands it on
            assert container["env"][0]["name"] == "EPL_JOB_SECRET", what


@pytest.mark.parametrize("index", ["0", "1"])
def test_a_pod_of_the_job_starts_its_worker(tmp_path, index):
    (container,) = manifests()["Job"]["spec"]["template"]["spec"]["containers"]
    (tmp_path / "train.py").write_text("")
    launch = tmp_path / "epl-launch"
    launch.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tools/epl-launch --dry_run "$@"\n')
    launch.chmod(0o755)
    env = dict(
        os.environ,
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        EPL_CLUSTER_DEVICE_TYPE="cpu",
        EPL_JOB_SECRET="0123456789abcdef",
        JOB_COMPLETION_INDEX=index,
    )
    done = subprocess.run(
        container["command"] + container["args"], cwd=str(tmp_path), env=env, timeout=120, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert f'"index": {index}' in done.stdout
    assert "train-0.train:2222" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_manifests_fit_the_schemas_of_kubernetes(tmp_path):
    """By kubernetes-validate of PyPI, which has the schemas; what only operators know is in the tests above."""
    newer = sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.1*/bin/python")))
    python = next((path for path in newer + ["python3"] if shutil.which(path)), None)
    code = "import sys; print(int(sys.version_info >= (3, 8)))"
    if python is None or subprocess.check_output([python, "-c", code]).strip() != b"1":
        pytest.skip("kubernetes-validate needs Python 3.8")
    folder = str(tmp_path / "packages")
    command = [python, "-m", "pip", "install", "-q", "--target", folder, "kubernetes-validate==1.37.0"]
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run(command, check=True, env=env)
    checked = [manifest for kind, manifest in manifests().items() if kind in ("Service", "Job")]
    for what, pod in pods():
        name = what.lower().replace(" ", "-")
        checked.append({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": pod})
    validate = (
        "import json, sys, kubernetes_validate as k\n"
        "for each in json.load(sys.stdin): k.validate(each, k.latest_version(), strict=True)"
    )
    done = subprocess.run(
        [python, "-c", validate], input=json.dumps(checked), env=dict(env, PYTHONPATH=folder), check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
