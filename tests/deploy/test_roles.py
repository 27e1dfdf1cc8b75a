"""The RoleBasedGroup: against the schemas of its pods and of what is used of the group, and role by role in namespaces."""
import pathlib
import re
import subprocess
import sys

import jsonschema
import kubernetes_validate
import pytest
import yaml

import image
import render

HERE = pathlib.Path(__file__).resolve().parent
GROUP = pathlib.Path(image.ROOT) / "packaging/kubernetes/rolebasedgroup.yaml"
VERSIONS = ("1.25.0", "1.37.0")
# What is used here of v1alpha1, in our own words.
SCHEMA = {
    "type": "object", "required": ["apiVersion", "kind", "metadata", "spec"], "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "workloads.x-k8s.io/v1alpha1"}, "kind": {"const": "RoleBasedGroup"}, "metadata": {"type": "object", "required": ["name"]},
        "spec": {"type": "object", "required": ["roles"], "additionalProperties": False, "properties": {"roles": {"type": "array", "minItems": 1, "items": {
            "type": "object", "required": ["name", "replicas", "template"], "additionalProperties": False,
            "properties": {"name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}, "replicas": {"type": "integer", "minimum": 0},
                           "minReadySeconds": {"type": "integer", "minimum": 0}, "dependencies": {"type": "array", "items": {"type": "string"}},
                           "template": {"type": "object", "required": ["spec"]}}}}}}}}


@pytest.fixture(name="documents", scope="module")
def read():
    return [one for one in yaml.safe_load_all(GROUP.read_text()) if one]


def test_schemas(documents):
    group, service = documents
    jsonschema.validate(group, SCHEMA)
    names = {role["name"] for role in group["spec"]["roles"]}
    assert names == {"mooncake-master", "mooncake-store", "prefill", "decode", "router"}  # those of the document
    for role in group["spec"]["roles"]:
        assert set(role.get("dependencies", ())) <= names - {role["name"]}
        labels = {"role": role["name"]}
        template = {**role["template"], "metadata": {**role["template"].get("metadata", {}), "labels": labels}}
        for version in VERSIONS:
            kubernetes_validate.validate({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": role["name"]},
                                          "spec": {"selector": {"matchLabels": labels}, "template": template}}, version, strict=True)
    for version in VERSIONS:
        kubernetes_validate.validate(service, version, strict=True)
    containers = [one for role in group["spec"]["roles"] for kind in ("initContainers", "containers") for one in role["template"]["spec"].get(kind, ())]
    assert {one["image"] for one in containers if "mooncake" in one["image"]} == {f"mooncake:{image.version().replace('+', '-')}"}
    assert service["spec"]["selector"]["rolebasedgroup.workloads.x-k8s.io/role"] in names


def test_what_the_router_asks_is_there(documents):
    group = documents[0]
    roles = {role["name"]: role for role in group["spec"]["roles"]}
    [router] = roles["router"]["template"]["spec"]["containers"]
    for kind in ("prefill", "decode"):
        asked = [re.fullmatch(rf"--{kind}=http://{group['metadata']['name']}-{kind}-(\d+)\.s-{group['metadata']['name']}-{kind}:8000", word) for word in router["command"]]
        assert [int(found[1]) for found in asked if found] == list(range(roles[kind]["replicas"]))


def test_role_by_role(root, tmp_path):
    done = subprocess.run([sys.executable, "-B", str(HERE / "roles.py"), str(render.PLAIN / "etcd.yaml"), str(GROUP), str(root), str(tmp_path)],
                          capture_output=True, text=True, timeout=550, check=False)
    if done.returncode == 77:
        pytest.skip("namespaces are not allowed here")
    assert done.returncode == 0, done.stdout + done.stderr[-12000:]
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("updated")] == [f"updated: {role}" for role in ("mooncake-store", "mooncake-master", "router", "prefill", "decode")]
    assert re.fullmatch(r"after the update: 8\d of 9\d tokens from the store", lines[-1]), lines
