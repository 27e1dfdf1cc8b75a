#!/usr/bin/env python3
"""A batch whose keys lie on many nodes behind a link of 1 ms: this tree's client and another commit's, in turn, on the same nodes, in one run.

    ./dev bench batch [--rounds 5] [--nodes 16] [--keys 64] [--size 262144] [--no-stop] [--commit 3f6ce5a | --other FOLDER]

Master and nodes are in one network namespace, the client in another; packets take 1 ms each way (`tc netem` where the kernel has it, else the
switch of tests/lab). Each round puts and gets a batch of fresh keys, puts one with two replicas each, and gets one while a node is stopped
(SIGSTOP) that has some of its keys. Ratios are taken within a round: how many times as fast this tree is. With a node that is stopped the
figure is what the call takes beyond the limit of 700 ms that such a node has. --other: a folder that `mooncake` is imported from, in place of a
commit's. Exit code 1 when a call failed. Needs root.
"""

import argparse
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import paths  # noqa: F401, before what it makes importable
import figures
import released
from contestants.base import ROOT, free_port
from engine_link import Link
from figures import spread_of
from worker import answer

LIMIT_S = 0.7  # MC_STALL_NS
HERE = pathlib.Path(__file__).resolve()
WAIT_S = 60
LOG = ROOT / ".cache" / "bench" / "batch.log"  # of all processes of a run


class Client:
    """One client process's side: batches out of one buffer."""

    def __init__(self, arguments):
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig

        self.size, self.count = arguments.size, arguments.keys
        self.buffer = ctypes.create_string_buffer(os.urandom(self.size * self.count), self.size * self.count)
        self.into = ctypes.create_string_buffer(self.size * self.count)
        self.store, self.config = MooncakeDistributedStore(), ReplicateConfig()
        rc = self.store.setup(arguments.host, "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", arguments.address)
        if rc != 0:
            raise SystemExit(f"setup at {arguments.address} returned {rc}")

    def keys(self, name):
        return [f"{name}-{number}" for number in range(self.count)]

    def places(self, buffer):
        return [ctypes.addressof(buffer) + number * self.size for number in range(self.count)]

    def step_put(self, name, replicas=1):
        self.config.replica_num = replicas
        keys, places, sizes = self.keys(name), self.places(self.buffer), [self.size] * self.count
        start = time.perf_counter()
        results = self.store.batch_put_from(keys, places, sizes, self.config)
        return {"seconds": time.perf_counter() - start, "failed": sum(rc != 0 for rc in results)}

    def step_get(self, name):
        """`missed` may be what lies on a node that is stopped, `wrong` nothing."""
        ctypes.memset(self.into, 0, len(self.into))
        keys, places, sizes = self.keys(name), self.places(self.into), [self.size] * self.count
        start = time.perf_counter()
        results = self.store.batch_get_into(keys, places, sizes)
        seconds = time.perf_counter() - start
        wrong = sum(
            rc == self.size and self.into[at : at + self.size] != self.buffer[at : at + self.size]
            for rc, at in zip(results, range(0, self.size * self.count, self.size))
        )
        return {"seconds": seconds, "missed": sum(rc != self.size for rc in results), "wrong": wrong}

    def step_remove(self, name):
        return {"removed": sum(self.store.remove(key, True) == 0 for key in self.keys(name))}


class Remote:
    """A client in the near namespace."""

    def __init__(self, link, arguments, address, folder, log):
        words = ["client", "--address", address, "--host", link.near_address, "--keys", arguments.keys, "--size", arguments.size]
        env = {**os.environ, "PYTHONPATH": str(folder), "MC_PATHS": "tcp"}
        command = [*link.near, sys.executable, "-B", str(HERE), *map(str, words)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env, text=True)

    def ask(self, **step):
        self.child.stdin.write(json.dumps(step) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line or "failed_step" in line:
            raise RuntimeError(f"the client failed: {line or self.child.wait()}")
        return json.loads(line)

    def stop(self):
        self.child.stdin.close()
        self.child.wait(WAIT_S)


def processes(link, arguments, build, log):
    """The master, and the nodes when each is ready."""
    address = f"{link.far_address}:{free_port()}"
    port = address.rsplit(":", 1)[1]

    def far(*words):
        return subprocess.Popen([*link.far, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    started = [far(build / "mooncake_master", f"--rpc_address={link.far_address}", f"--rpc_port={port}", f"--metrics_port={free_port()}")]
    node = (build / "mooncake_bench", "node", "--master", address, "--segment", arguments.segment, "--host", link.far_address)
    started += [far(*node) for _ in range(arguments.nodes)]
    for process in started[1:]:
        process.stdout.readline()
    return address, started


def spread_out(client, nodes):
    """Puts until space on every node is offered: nodes populate their memory in the background."""
    end = time.monotonic() + WAIT_S
    while client.ask(step="put", name="first")["failed"] > 0:
        client.ask(step="remove", name="first")
        if time.monotonic() > end:
            raise RuntimeError(f"the {nodes} nodes did not take a batch within {WAIT_S} s")
    client.ask(step="remove", name="first")


def measure(arguments, clients, nodes):
    """{what: {side: [seconds]}}, and how many calls went wrong."""
    found, wrong = {}, 0
    for number in range(-1, arguments.rounds):  # one that does not count, in which connections are made
        for side in sorted(clients, reverse=number % 2 == 0):
            client, name = clients[side], f"{side}{number}"
            steps = {
                "put": client.ask(step="put", name=name),
                "get": client.ask(step="get", name=name),
                "put, two replicas": client.ask(step="put", name=name + "-two", replicas=2),
            }
            if not arguments.no_stop:
                stopped = nodes[number % len(nodes)]
                os.kill(stopped.pid, signal.SIGSTOP)
                steps["get, one node stopped"] = client.ask(step="get", name=name)
                os.kill(stopped.pid, signal.SIGCONT)
                time.sleep(arguments.pause)  # until it is offered again, and no client avoids it
            for what, result in steps.items():
                is_stopped = "stopped" in what
                wrong += result.get("wrong", 0) + result.get("failed", 0) + (0 if is_stopped else result.get("missed", 0))
                if number >= 0:
                    found.setdefault(what, {}).setdefault(side, []).append(result["seconds"])
            for part in ("", "-two"):
                client.ask(step="remove", name=name + part)
    return found, wrong


def report(found):
    form = "{:<24} {:<24} {:<24} {}"
    print(form.format("median (min-max), ms", "this tree", "the other", "ratio").rstrip())
    for what, sides in found.items():
        mine, others = sides["ours"], sides["before"]
        ratios = [other / one for one, other in zip(mine, others)]
        print(form.format(what, spread_of(mine, 1e3), spread_of(others, 1e3), spread_of(ratios, form="{:.2f}")))
        if "stopped" in what:
            beyond = ([one - LIMIT_S for one in side] for side in (mine, others))
            print(form.format("  beyond its limit", *(spread_of(one, 1e3) for one in beyond), "").rstrip())


def parser_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", nargs="?", choices=("all", "client"), default="all", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--size", type=int, default=256 << 10)
    parser.add_argument("--segment", type=int, default=64 << 20, help="bytes that each node lends")
    parser.add_argument("--no-stop", action="store_true", help="no node is stopped")
    parser.add_argument("--pause", type=float, default=2.5, help="seconds after a node went on")
    parser.add_argument("--commit", default=released.COMMIT, help="the other tree: %(default)s, the release before")
    parser.add_argument("--other", type=pathlib.Path, help="in place of a commit: a folder with its package")
    for name in ("--address", "--host"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    return parser


def main():
    arguments = parser_of().parse_args()
    if arguments.role == "client":
        answer(Client(arguments))
        return 0
    if Link.why_not():
        raise SystemExit(Link.why_not())
    build, folder = pathlib.Path(os.environ["MC_BUILD"]), pathlib.Path(os.environ["MC_PYTHONPATH"])
    other = arguments.other
    if other is None:
        old = released.build(ROOT / ".cache", arguments.commit)
        if old is None:
            raise SystemExit(released.WHY)
        other = old.python_path
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with open(LOG, "wb") as log, Link(build, loss_per_million=0) as link:
        address, started = processes(link, arguments, build, log)
        clients = {}
        try:
            for side, path in (("ours", folder), ("before", other)):
                clients[side] = Remote(link, arguments, address, path, log)
                spread_out(clients[side], arguments.nodes)
            found, wrong = measure(arguments, clients, started[1:])
        finally:
            for client in clients.values():
                client.stop()
            for process in reversed(started):
                process.kill()
                process.wait()
        print(f"{arguments.keys} keys of {arguments.size} bytes on {arguments.nodes} nodes, {arguments.rounds} rounds, link of 1 ms each way by {link.kind}")
    print(f"load {os.getloadavg()[0]:.1f}, {figures.machine()}")
    report(found)
    if wrong:
        print(f"PROBLEM: {wrong} calls failed or gave wrong bytes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
