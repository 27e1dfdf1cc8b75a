"""The image's health check, run as an engine would beside a master that is process 1 of a container: health.py IMAGE_ROOT FOLDER"""
import os
import pathlib
import signal
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent.parent / "packaging"))

import image  # noqa: E402
import kubelet  # noqa: E402
from network import Network  # noqa: E402


def main(root, folder):
    network = Network.make()
    if not network.real:
        return 77
    said = kubelet.Image(root, dict(line.split("=", 1) for line in image.CONFIG["Env"]), image.USER, image.CONFIG["Cmd"], image.CONFIG["WorkingDir"])
    cluster = kubelet.Cluster(folder, network, {"mooncake": said})
    try:
        container = {"image": "mooncake", "readinessProbe": {"httpGet": {"path": "/health", "port": 9003}, "periodSeconds": 1}}
        pod = kubelet.Pod(cluster, "master", {"metadata": {}, "spec": {"containers": [container]}})
        cluster.pods.append(pod)
        pod.start()
        cluster.wait(pod.is_ready, 60, "the master")
        check = image.CONFIG["Healthcheck"]["Test"][1:]

        def tell():
            print("well" if pod.execute(check, 30) == 0 else "ill")
        tell()
        os.kill(pod.pid, signal.SIGSTOP)
        tell()
        os.kill(pod.pid, signal.SIGCONT)
        tell()
        print("ended", pod.terminate())
    finally:
        cluster.end()
        network.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
