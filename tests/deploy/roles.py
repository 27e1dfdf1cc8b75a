"""The RoleBasedGroup, role by role: etcd by the chart's part, then each role once those it depends on are ready; SGLang is a stand-in under its name.
Then what a user does: the same question twice, through the router. Then an update of every role, as the group's StatefulSets make it.

roles.py ETCD_MANIFEST GROUP_MANIFEST IMAGE_ROOT FOLDER
"""
import http.client
import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "system"), str(HERE.parent / "faults")]

import yaml  # noqa: E402

import kubelet  # noqa: E402
import rolling  # noqa: E402
import stand_ins  # noqa: E402
from network import Network  # noqa: E402

ANSWER_TOKENS = 30


def workloads(group):
    """What the operator makes of a group: a StatefulSet with a Service without an address for each role, in the order of their dependencies."""
    left, made, name = list(group["spec"]["roles"]), [], group["metadata"]["name"]
    while left:
        ready = [role for role in left if set(role.get("dependencies", ())) <= {one["role"] for one in made}]
        assert ready, "roles that wait for each other"
        for role in ready:
            left.remove(role)
            template = json.loads(json.dumps(role["template"]))
            template["metadata"]["labels"] = {f"rolebasedgroup.workloads.x-k8s.io/{key}": value for key, value in (("name", name), ("role", role["name"]))}
            made.append({"kind": "StatefulSet", "role": role["name"], "metadata": {"name": f"{name}-{role['name']}"},
                         "spec": {"replicas": role["replicas"], "serviceName": f"s-{name}-{role['name']}", "template": template,
                                  "minReadySeconds": role.get("minReadySeconds", 0)}})
    return made


def ask(cluster, turn):
    [router] = cluster.of("sglang-demo-router")
    connection = http.client.HTTPConnection(router.address, 8000, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps({
        "model": "/models/Qwen3-32B", "messages": [{"role": "user", "content": "Explain why Roger Federer is considered one of the greatest tennis players"}],
        "max_tokens": ANSWER_TOKENS}), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    body = reply.read()
    assert reply.status == 200, (turn, reply.status, body)
    said = json.loads(body)
    tokens = said["usage"]
    print(f"{turn}: {tokens['prompt_tokens_details']['cached_tokens']} of {tokens['prompt_tokens']} tokens from the store", flush=True)
    return said["choices"][0]["message"]["content"], tokens["prompt_tokens_details"]["cached_tokens"]


def play(cluster, etcd, group):
    cluster.apply(etcd)
    for one in workloads(group):
        cluster.apply([one])
        print(f"ready: {one['role']}", flush=True)
    answer, _ = ask(cluster, "first turn")
    again, cached = ask(cluster, "second turn")
    assert again == answer and cached > 0
    for role in ("mooncake-store", "mooncake-master", "router", "prefill", "decode"):
        assert set(cluster.roll(f"sglang-demo-{role}")) == {0}, role
        print(f"updated: {role}", flush=True)
    after, cached = ask(cluster, "after the update")
    assert after == answer and cached > 0, "what the store nodes held is gone"


def main(etcd, group, image, folder):
    network = Network.make()
    if not network.real:
        return 77
    folder = pathlib.Path(folder)
    with open(etcd, encoding="utf-8") as file:
        etcd = [one for one in yaml.safe_load_all(file) if one]
    with open(group, encoding="utf-8") as file:
        group, _ = [one for one in yaml.safe_load_all(file) if one]
    ours = kubelet.Image(image, {"PATH": "/usr/bin", "HOME": "/var/lib/mooncake"}, 65532, folder="/var/lib/mooncake")
    stand_in = stand_ins.install(folder)["python_path"][0]
    # Its mooncake is the one that the pod's volume has; beside it only the stand-in.
    engine = kubelet.Image("/", {"PATH": f"{pathlib.Path(sys.executable).parent}:/usr/bin:/bin", "HOME": "/tmp"}, 0)
    images = {"mooncake:0.5.0-c1": ours, "lmsysorg/sglang:v0.5.3.post1": engine}
    images.update({one["spec"]["template"]["spec"]["containers"][0]["image"]: rolling.etcd_image(image, folder) for one in etcd if one["kind"] == "StatefulSet"})
    cluster = kubelet.Cluster(folder, network, images, {**rolling.SIZES, "PYTHONPATH": f"/mooncake:{stand_in}"})
    try:
        play(cluster, etcd, group)
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"---- {log.name}\n{log.read_text(errors='replace')[-1500:]}", file=sys.stderr)
        raise
    finally:
        cluster.end()
        network.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
