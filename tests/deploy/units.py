"""The units of the package in the system it was installed into: each one's command, with its environment, as its user, with the folders that systemd
would make, all on one host; then SIGTERM. systemd itself does not run here, so of its confinement only user, privileges and capabilities hold.

units.py ROOT FOLDER
"""
import json
import pathlib
import shlex
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "system"))

import kubelet  # noqa: E402
from cluster import request  # noqa: E402
from network import Network  # noqa: E402

PORTS = {"mooncake-master": 9003, "mooncake-metadata": 8080, "mooncake-store": 8081, "mooncake-proxy": 8000}  # two of them want 8080


def settings(path):
    """{name: its last value} of a unit, as far as it has one section that matters here."""
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line and not line.startswith(("#", "[")))


def environment(path):
    return dict(shlex.split(line, comments=True)[0].split("=", 1) for line in path.read_text().splitlines() if shlex.split(line, comments=True))


def template(root, name, user):
    unit = settings(root / f"usr/lib/systemd/system/{name}.service")
    assert unit["User"] == unit["Group"] == "mooncake" and unit["NoNewPrivileges"] == "yes" and unit["CapabilityBoundingSet"] == ""
    variables = environment(root / unit["EnvironmentFile"].lstrip("/")) if "EnvironmentFile" in unit else {}
    words = []
    for word in unit["ExecStart"].split():
        words += variables[word[1:]].split() if word.startswith("$") else [word]
    if name == "mooncake-store":
        words += ["--port=8081"]
    container = {"name": name, "image": "system", "command": words, "volumeMounts": [],
                 "readinessProbe": {"tcpSocket": {"port": PORTS[name]}, "periodSeconds": 1},
                 "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": unit["ProtectSystem"] == "strict"}}
    volumes = []
    if "StateDirectory" in unit:
        place = f"/var/lib/{unit['StateDirectory']}"
        variables["STATE_DIRECTORY"] = place
        container["volumeMounts"].append({"name": "state", "mountPath": place})
        volumes.append({"name": "state", "emptyDir": {}})
    container["env"] = [{"name": key, "value": value} for key, value in variables.items()]
    return {"metadata": {}, "spec": {"containers": [container], "volumes": volumes, "securityContext": {"runAsUser": user, "runAsGroup": user, "fsGroup": user},
                                     "terminationGracePeriodSeconds": int(unit["TimeoutStopSec"])}}


def main(root, folder):
    network = Network.make()
    if not network.real:
        return 77
    root = pathlib.Path(root)
    user = next(int(line.split(":")[2]) for line in (root / "etc/passwd").read_text().splitlines() if line.startswith("mooncake:"))
    cluster = kubelet.Cluster(folder, network, {"system": kubelet.Image(root, {"PATH": "/usr/bin:/bin"})}, {"MOONCAKE_GLOBAL_SEGMENT_SIZE": "16mb"})
    host = network.host("machine")
    try:
        for name in PORTS:
            pod = kubelet.Pod(cluster, name, template(root, name, user), host=host)
            cluster.pods.append(pod)
            pod.start()
            cluster.wait(pod.is_ready, 60, name)
        body = json.dumps({"key": "a", "value": "b"}).encode()
        cluster.wait(lambda: request(8081, "PUT", "/api/put", body, host=host.address)[0] == 200, 30, "room")
        assert request(8081, "GET", "/api/get/a", host=host.address) == (200, b"b")
        assert request(8080, "PUT", "/metadata?key=k", b"1", host=host.address)[0] == 200
        print("all serve")
        for pod in reversed(list(cluster.pods)):
            print("ended", pod.name, pod.terminate())
    finally:
        cluster.end()
        network.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
