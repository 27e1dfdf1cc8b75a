"""The services of compose.yaml as containers in namespaces: put at one store node, got at the other, also when the first has ended.

laptop.py COMPOSE IMAGE_ROOT FOLDER
"""
import json
import pathlib
import sys

import yaml

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "packaging"), str(HERE.parent / "system")]

import image  # noqa: E402
import kubelet  # noqa: E402
from cluster import request  # noqa: E402
from network import Network  # noqa: E402


def seconds(text):
    return int(text.removesuffix("s"))


def template(name, service):
    """As a pod: what Compose says in its own words."""
    check = service.get("healthcheck", {"test": image.CONFIG["Healthcheck"]["Test"], "interval": "1s", "timeout": "5s"})
    assert check["test"][0] == "CMD" and service["cap_drop"] == ["ALL"]
    container = {"name": name, "image": service["image"], "command": service["command"], "volumeMounts": [],
                 "env": [{"name": key, "value": value} for key, value in service.get("environment", {}).items()],
                 "readinessProbe": {"exec": {"command": check["test"][1:]}, "periodSeconds": seconds(check["interval"]), "timeoutSeconds": seconds(check["timeout"])},
                 "securityContext": {"readOnlyRootFilesystem": service["read_only"], "capabilities": {"drop": ["ALL"]},
                                     "allowPrivilegeEscalation": "no-new-privileges:true" not in service["security_opt"]}}
    volumes = []
    for text in service.get("volumes", ()):
        volume, place = text.split(":")
        container["volumeMounts"].append({"name": volume, "mountPath": place})
        volumes.append({"name": volume, "emptyDir": {}})
    # Docker gives a new volume the owner that the image's folder has.
    return {"metadata": {}, "spec": {"containers": [container], "volumes": volumes, "securityContext": {"fsGroup": image.USER},
                                     "terminationGracePeriodSeconds": seconds(service.get("stop_grace_period", "10s"))}}


def play(cluster, services):
    started, left = {}, {name: service for name, service in services.items() if "profiles" not in service}
    while left:
        for name, service in list(left.items()):
            wanted = service.get("depends_on", {})
            if all(other in started for other in wanted):
                started[name] = kubelet.Pod(cluster, name, template(name, left.pop(name)), domain="")
                cluster.pods.append(started[name])
                cluster.publish(started[name], started[name].address)
                started[name].start()
        cluster.wait(lambda: all(pod.is_ready() for pod in cluster.pods), 60, "the services' health")
    body = json.dumps({"key": "greeting", "value": "hello"}).encode()
    cluster.wait(lambda: request(8080, "PUT", "/api/put", body, host=started["store1"].address)[0] == 200, 30, "room")
    for name in ("store1", "store2"):
        assert request(8080, "GET", "/api/get/greeting", host=started[name].address) == (200, b"hello")
    print("both have it")
    assert started["store1"].terminate() == 0
    assert request(8080, "GET", "/api/get/greeting", host=started["store2"].address) == (200, b"hello")
    print("one has it")
    assert [started[name].terminate() for name in ("store2", "master")] == [0, 0]
    print("all have ended")


def main(compose, root, folder):
    network = Network.make()
    if not network.real:
        return 77
    with open(compose, encoding="utf-8") as file:
        services = yaml.safe_load(file)["services"]
    said = kubelet.Image(root, dict(line.split("=", 1) for line in image.CONFIG["Env"]), image.USER, image.CONFIG["Cmd"], image.CONFIG["WorkingDir"])
    cluster = kubelet.Cluster(folder, network, {service["image"]: said for service in services.values()}, {"MOONCAKE_GLOBAL_SEGMENT_SIZE": "64mb"})
    try:
        play(cluster, services)
    finally:
        cluster.end()
        network.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
