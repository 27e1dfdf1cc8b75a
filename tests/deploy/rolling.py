"""A rolling update under load: the chart's three masters, three members of etcd and six store nodes as pods (kubelet.py), every one replaced by the
steps that Kubernetes takes. Two clients put and get meanwhile and compare every byte. Prints what they saw as JSON; exits 77 without namespaces.

rolling.py MANIFEST IMAGE_ROOT FOLDER [WORKLOAD PODS [HOW]]    only so many pods of that one; crash, restart: not the pods, but the containers in them,
by SIGKILL or SIGTERM
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import kubelet
from network import Network

import yaml

SIZES = {"MOONCAKE_GLOBAL_SEGMENT_SIZE": "64mb", "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": "268435456"}
CLIENTS, OBJECTS, BYTES, PUTS_PER_S = 2, 100, 256 << 10, 2
SETTLE_S = 2
SIGNALS = {"update": 0, "crash": signal.SIGKILL, "restart": signal.SIGTERM}
ORDER = ("mooncake-store", "mooncake-master", "mooncake-etcd")
HERE = pathlib.Path(__file__).resolve().parent


def etcd_image(image, folder):
    """Debian's etcd, in a copy of our image: the manifest's own is not at hand."""
    root = folder / "etcd-image"
    subprocess.run(["cp", "-al", image, root], check=True)
    shutil.copy(shutil.which("etcd"), root / "usr/bin/etcd")
    return kubelet.Image(root, {"PATH": "/usr/bin"})


class Load:
    def __init__(self, cluster, address, seed):
        self.host = cluster.network.host(f"client{seed}")
        self.log = cluster.folder / f"client{seed}.log"
        # Names are looked up where pods do it.
        words = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"', cluster.folder / "resolv.conf", sys.executable, "-B", HERE / "load.py",
                 address, self.host.address, seed, OBJECTS, BYTES, PUTS_PER_S]
        with open(self.log, "ab") as log:
            self.process = self.host.popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.output = ""

    def says(self, word):
        self.output += (self.process.stdout.read() or b"").decode()
        assert self.process.poll() is None or word in self.output, self.log.read_text()[-3000:]
        return word in self.output

    def end(self, cluster):
        self.process.stdin.close()
        cluster.wait(lambda: self.says('"lost"'), 120, "the clients' end")
        return json.loads(self.output.splitlines()[-1])


def summary(results, start, phases):
    hits, gets = {}, {}
    for result in results:
        for second, (hit, got) in result["seconds"].items():
            hits[int(second)] = hits.get(int(second), 0) + hit
            gets[int(second)] = gets.get(int(second), 0) + got
    parts = {}
    for name, (_, began, ended) in phases.items():
        inside = [second for second in gets if began <= second <= ended]
        parts[name] = round(sum(hits[second] for second in inside) / max(1, sum(gets[second] for second in inside)), 4)
    ratios = {second - int(start): round(hits[second] / gets[second], 4) for second in sorted(hits) if gets[second] >= 10}
    return {"calls": sum(result["calls"] for result in results), "failed": [one for result in results for one in result["failed"]],
            "wrong": sum(result["wrong"] for result in results), "lost": sum(len(result["lost"]) for result in results),
            "objects": sum(result["objects"] for result in results), "slowest_s": max(result["slowest_s"] for result in results),
            "hit_ratio": round(sum(hits.values()) / sum(gets.values()), 4), "worst_second": min(ratios.values()),
            "seconds_below_99": sum(ratio < 0.99 for ratio in ratios.values()), "seconds": len(ratios),
            "phases": {name: [count, round(ended - began, 1)] for name, (count, began, ended) in phases.items()}, "hit_ratios": parts}


def restart(cluster, name, most, number):
    pods = cluster.of(name)[:most]
    for pod in pods:
        pod.crash(number)
        cluster.wait(lambda pod=pod: pod.is_ready(SETTLE_S), 60, f"readiness of {pod.name}")
    return len(pods)


def play(cluster, documents, names, most, number):
    cluster.apply(documents)
    [address] = {one["value"] for pod in cluster.pods for one in pod.container["env"] if one["name"] == "MOONCAKE_MASTER"}
    loads = [Load(cluster, address, seed) for seed in range(CLIENTS)]
    for load in loads:
        cluster.wait(lambda load=load: load.says("ready"), 60, "the clients' objects")
    start, phases = time.monotonic(), {}
    for name in names:
        began = time.monotonic()
        if number:
            count = restart(cluster, name, most, number)
        else:
            codes = cluster.roll(name, most)
            assert set(codes) == {0}, f"{name}: exit codes {codes}"
            count = len(codes)
        phases[name] = count, began, time.monotonic()
    result = summary([load.end(cluster) for load in loads], start, phases)
    kept = [line for log in cluster.folder.glob("mooncake-store*.log") for line in log.read_text().splitlines() if " leaving: " in line and " left" not in line]
    return {**result, "leaving": sorted({line.split(" leaving: ")[1] for line in kept})}


def main(manifest, image, folder, only="", most="99", how="update"):
    network = Network.make()
    if not network.real:
        return 77
    folder = pathlib.Path(folder)
    documents = [one for one in yaml.safe_load_all(pathlib.Path(manifest).read_text()) if one]
    images = {one["spec"]["template"]["spec"]["containers"][0]["image"] for one in documents if "template" in one["spec"]}
    ours = kubelet.Image(image, {"PATH": "/usr/bin", "HOME": "/var/lib/mooncake"}, 65532, folder="/var/lib/mooncake")
    cluster = kubelet.Cluster(folder, network, {name: etcd_image(image, folder) if "etcd" in name else ours for name in images}, SIZES)
    try:
        print(json.dumps(play(cluster, documents, [only] if only else ORDER, int(most), SIGNALS[how])))
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
