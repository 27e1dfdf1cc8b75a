"""A cluster of hosts that lose packets: a master, two store nodes, one client's process; every host drops that share of what it receives.

    python lossy.py --loss 10 --seconds 10 --json FILE     # --loss: packets of a thousand

Prints and writes what calls on existing keys came to, how long they took, and whom anybody complained about. A process of its own: it moves into namespaces.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
BUILD = pathlib.Path(os.environ.setdefault("MC_BUILD", str(ROOT / ".cache" / "build-release")))

from network import Network  # noqa: E402

KEYS = {4 << 10: 64, 1 << 20: 8}  # how many of each size
SEGMENT = 64 << 20
RPC_PORT, HTTP_PORT = 50051, 9003  # of a namespace of our own
THREADS = 3


def content(key, size):
    return (key.encode() + b".") * (size // (len(key) + 1)) + b"." * (size % (len(key) + 1))


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


# -- the client's process --

def get_for(store, keys, seconds, samples):
    import ctypes
    import random
    draw, end = random.Random(threading.get_ident()), time.monotonic() + seconds
    buffer = ctypes.create_string_buffer(max(KEYS))
    address = ctypes.addressof(buffer)
    while True:
        start = time.monotonic()
        if start >= end:
            return
        key, size = keys[draw.randrange(len(keys))]
        result = store.get_into(key, address, size)
        took = time.monotonic() - start
        right = result != size or buffer.raw[:size] == content(key, size)
        samples.append((size, took, result, right))


def put_for(store, seconds, samples):
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        start = time.monotonic()
        result = store.put(f"new-{number}", bytes(4 << 10))
        samples.append((time.monotonic() - start, result))


def sleep_for(seconds, worst):
    """The longest wait of a thread that only wanted to wake: what this machine costs whoever measures times."""
    start = end = time.monotonic()
    while end < start + seconds:
        begun = end
        time.sleep(0.001)
        end = time.monotonic()
        worst[0] = max(worst[0], 1000 * (end - begun) - 1)


def client(arguments):
    sys.path.insert(0, os.environ["MC_PYTHONPATH"])
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    assert store.setup(arguments.host, "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", arguments.master) == 0
    keys = [(f"key-{size}-{number}", size) for size, count in KEYS.items() for number in range(count)]
    for key, size in keys:
        until = time.monotonic() + 10
        while store.put(key, content(key, size)) != 0:
            assert time.monotonic() < until, "the cluster takes nothing"
            time.sleep(0.1)
    print("ready", flush=True)
    sys.stdin.readline()
    gets, puts, worst = [], [], [0.0]
    threads = [threading.Thread(target=get_for, args=(store, keys, arguments.seconds, gets)) for _ in range(THREADS)]
    threads.append(threading.Thread(target=put_for, args=(store, arguments.seconds, puts)))
    threads.append(threading.Thread(target=sleep_for, args=(arguments.seconds, worst)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    figures = {"wrong bytes": sum(not right for _, _, _, right in gets), "a sleeper waited ms": worst[0]}
    for size in KEYS:
        mine = [(took, result) for one, took, result, _ in gets if one == size]
        took_ms = [1000 * took for took, _ in mine]
        figures[f"{size}"] = {"gets": len(mine), "failed": sum(result != size for _, result in mine),
                              "codes": sorted({result for _, result in mine if result != size}),
                              "median ms": percentile(took_ms, 0.5), "p99 ms": percentile(took_ms, 0.99),
                              "p99.9 ms": percentile(took_ms, 0.999), "slowest ms": max(took_ms)}
    took_ms = [1000 * took for took, _ in puts]
    figures["puts"] = {"puts": len(puts), "failed": sum(result != 0 for _, result in puts), "codes": sorted({result for _, result in puts if result != 0}),
                       "median ms": percentile(took_ms, 0.5), "p99 ms": percentile(took_ms, 0.99), "slowest ms": max(took_ms)}
    print("figures " + json.dumps(figures), flush=True)
    sys.stdin.readline()  # the network is whole again before anybody leaves
    store.close()


# -- the hosts --

def lose(host, thousandths):
    host.run(["nft", "add", "table", "ip", "loss"])
    host.run(["nft", "add chain ip loss input { type filter hook input priority 0; }"])
    host.run(["nft", f"add rule ip loss input iif != lo numgen random mod 1000 < {thousandths} drop"])


def heal(host):
    host.run(["nft", "delete", "table", "ip", "loss"])


def wait_line(process, start):
    for line in process.stdout:
        if line.startswith(start):
            return line[len(start):]
    raise RuntimeError(f"the client ended before '{start}'")


def metric(host, address, name):
    # By a process in that host: this one is in none of them.
    code = f"import urllib.request; print(urllib.request.urlopen('http://{address}:{HTTP_PORT}/metrics', timeout=10).read().decode())"
    text = host.run([sys.executable, "-c", code]).stdout
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


@contextlib.contextmanager
def hosts_with(client_words):
    """A master, two store nodes and a client's process, each on a host of its own: (hosts, the client's process, folder of logs). None where that
    is not allowed here. client_words: of the client, which is told --master and --host besides."""
    network = Network.make()
    if not network.real:
        yield None
        return
    hosts = {name: network.host(name) for name in ("master", "node0", "node1", "client")}
    environment = {**os.environ, "MC_PATHS": "tcp"}
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mc-lossy-"))
    children = []

    def start(name, words, **more):
        log = open(folder / f"{name}.log", "ab")
        children.append(hosts[name].popen(words, stderr=log, env=environment, **more))
        return children[-1]

    master = f"{hosts['master'].address}:{RPC_PORT}"
    try:
        start("master", [BUILD / "mooncake_master", f"--rpc_address={hosts['master'].address}", f"--rpc_port={RPC_PORT}",
                         f"--metrics_host={hosts['master'].address}", f"--metrics_port={HTTP_PORT}"], stdout=subprocess.DEVNULL)
        for name in ("node0", "node1"):
            start(name, [BUILD / "mooncake_bench", "node", "--master", master, "--segment", str(SEGMENT), "--host", hosts[name].address],
                  stdout=subprocess.DEVNULL)
        worker = start("client", [sys.executable, "-B", *client_words, "--master", master, "--host", hosts["client"].address],
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        yield hosts, worker, folder
    finally:
        for child in children:
            child.kill()
            child.wait()
        network.end()


def tell(worker, line=""):
    worker.stdin.write(line + "\n")
    worker.stdin.flush()


def run(arguments):
    with hosts_with([__file__, "--client", "--seconds", str(arguments.seconds)]) as made:
        if made is None:
            return None
        hosts, worker, folder = made
        wait_line(worker, "ready")
        for host in hosts.values():
            lose(host, arguments.loss)
        tell(worker)
        figures = json.loads(wait_line(worker, "figures "))
        for host in hosts.values():
            heal(host)
        figures["suspects"] = metric(hosts["client"], hosts["master"].address, "mooncake_suspects_total")
        figures["probes"] = metric(hosts["client"], hosts["master"].address, "mooncake_probes_total")
        figures["probes failed"] = metric(hosts["client"], hosts["master"].address, "mooncake_probes_failed_total")
        tell(worker)
        worker.wait(timeout=30)
        figures["client's complaints"] = [line for line in (folder / "client.log").read_text().splitlines() if "cannot be reached" in line]
        figures["master's complaints"] = [line for line in (folder / "master.log").read_text().splitlines() if "suspect" in line]
        return figures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--loss", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json")
    parser.add_argument("--client", action="store_true")
    parser.add_argument("--master")
    parser.add_argument("--host")
    arguments = parser.parse_args()
    if arguments.client:
        client(arguments)
        return
    figures = run(arguments)
    print(json.dumps(figures, indent=1))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
