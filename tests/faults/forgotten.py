"""A firewall forgets the connections of a client's host: nothing that is sent on them arrives any more, and nobody is told; new ones pass.

    python forgotten.py --to nodes --order puts,gets --json FILE     # of which connections: to the nodes, or to the master; what is called then

Prints and writes what puts, calls on existing keys, and removals came to, and how long they took. A process of its own: it moves into namespaces.
"""
import argparse
import json
import os
import pathlib
import sys
import threading
import time

import lossy

KEYS, CALLS, SIZE = 12, 12, 4096
THREADS = 6  # so many calls at once: there are as many connections as that


def content(key):
    return key.encode() * (SIZE // 8)


def measured(call, is_good):
    """Of CALLS calls, one after the other."""
    took, failed = [], 0
    for number in range(CALLS):
        start = time.monotonic()
        failed += not is_good(call(number))
        took.append(1000 * (time.monotonic() - start))
    return {"failed": failed, "slowest ms": max(took), "all ms": sum(took)}


def client(arguments):
    sys.path.insert(0, os.environ["MC_PYTHONPATH"])
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    assert store.setup(arguments.host, "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", arguments.master) == 0

    def put(number, kind="new"):
        return store.put(f"{kind}-{number}", content(f"{kind}-{number}"))

    def has(number):
        return store.get(f"key-{number}") == content(f"key-{number}")

    def fill(first):
        for number in range(first, KEYS, THREADS):
            until = time.monotonic() + 10
            while put(number, "key") != 0:
                assert time.monotonic() < until, "the cluster takes nothing"
                time.sleep(0.1)
            assert all(has(number) for _ in range(20))
    threads = [threading.Thread(target=fill, args=(first,)) for first in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("ready", flush=True)
    sys.stdin.readline()
    calls = {"puts": (put, lambda code: code == 0), "gets": (has, bool),
             "removals": (lambda number: store.remove(f"new-{number}", True), lambda code: code == 0)}
    figures = {what: measured(*calls[what]) for what in arguments.order.split(",")}
    print("figures " + json.dumps(figures), flush=True)
    sys.stdin.readline()
    store.close()


def forget(host, others):
    """Loses what belongs to the connections to those hosts that stand now; how many they are. Each end loses what it receives: to its own kernel
    everything was sent."""
    ways = []
    for line in host.run(["ss", "-Htn", "state", "established"]).stdout.splitlines():
        near, far = (end.rsplit(":", 1) for end in line.split()[2:4])
        if far[0] in [other.address for other in others]:
            ways.append((*near, *far))
    for one, order in ((host, (2, 3, 0, 1)), *((other, (0, 1, 2, 3)) for other in others)):
        ends = ", ".join(" . ".join(way[at] for at in order) for way in ways)
        one.run(["nft", "add", "table", "ip", "forgotten"])
        one.run(["nft", "add chain ip forgotten input { type filter hook input priority 0; }"])
        one.run(["nft", f"add rule ip forgotten input ip saddr . tcp sport . ip daddr . tcp dport {{ {ends} }} drop"])
    return len(ways)


def run(arguments):
    with lossy.hosts_with([__file__, "--client", "--order", arguments.order]) as made:
        if made is None:
            return None
        hosts, worker, folder = made
        lossy.wait_line(worker, "ready")
        count = forget(hosts["client"], [hosts[name] for name in (("node0", "node1") if arguments.to == "nodes" else ("master",))])
        lossy.tell(worker)
        figures = json.loads(lossy.wait_line(worker, "figures "))
        figures["connections"] = count
        figures["suspects"] = lossy.metric(hosts["client"], hosts["master"].address, "mooncake_suspects_total")
        figures["client's log"] = (folder / "client.log").read_text()
        lossy.tell(worker)
        worker.wait(timeout=30)
        return figures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", choices=("nodes", "master"), default="nodes")
    parser.add_argument("--order", default="puts,gets,removals")
    parser.add_argument("--json")
    parser.add_argument("--client", action="store_true")
    parser.add_argument("--master")
    parser.add_argument("--host")
    arguments = parser.parse_args()
    if arguments.client:
        client(arguments)
        return
    figures = run(arguments)
    print(json.dumps(figures, indent=4))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
