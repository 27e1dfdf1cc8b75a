#!/usr/bin/env python3
"""One large value, as one object on one node and in pieces on many: the same client gets both in turn, in one run.

    ./dev bench stripes [--rounds 5] [--nodes 4] [--size 1073741824] [--stripe 16777216] [--rate 50] [--delay-us 200]

Each node, and the client beside the master, is in a network namespace of its own; the switch of tests/lab is between them, and lets each node send
and receive `--rate` MB/s. A round gets the value that was put whole, then the one that was put in pieces, and compares all bytes. Ratios are taken
within a round. `--size` is lowered to a quarter of the memory that is free. Exit code 1 when a call failed, a byte was wrong, or nothing was gained
over four nodes or more (1.5 times as fast). Needs root.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import paths  # noqa: F401, before what it makes importable
from contestants.base import ROOT, free_port
from switch import Switch

HERE = pathlib.Path(__file__).resolve()
WAIT_S = 120
LOG = ROOT / ".cache" / "bench" / "stripes.log"  # of all processes of a run
NETWORK = "10.231.88"
BAR = 1.5


class Client:
    """The client process's side: two stores, of which one puts in pieces."""

    def __init__(self, arguments):
        from mooncake.store import MooncakeDistributedStore

        self.size = arguments.size
        seed = os.urandom(1 << 20)
        self.buffer = ctypes.create_string_buffer(self.size)
        for at in range(0, self.size, len(seed)):
            part = (at // len(seed)).to_bytes(8, "little") + seed[8:]
            ctypes.memmove(ctypes.addressof(self.buffer) + at, part, min(len(part), self.size - at))
        self.into = ctypes.create_string_buffer(self.size)
        self.stores = {}
        for name, stripe in (("whole", 0), ("pieces", arguments.stripe)):
            os.environ["MC_STORE_STRIPE_SIZE"] = str(stripe)
            self.stores[name] = MooncakeDistributedStore()
            rc = self.stores[name].setup(arguments.host, "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", arguments.address)
            if rc != 0:
                raise SystemExit(f"setup at {arguments.address} returned {rc}")

    def step_nodes(self, port):
        """How many segments the master knows that have all their memory."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/get_segments_detail") as found:
            segments = json.load(found)["segments"]
        return {"nodes": sum(one["allocator_capacity_bytes"] == one["populated_bytes"] for one in segments)}

    def step_put(self, name):
        return {"rc": self.stores[name].put_from(name, ctypes.addressof(self.buffer), self.size)}

    def step_get(self, name):
        ctypes.memset(self.into, 0, self.size)
        start = time.perf_counter()
        got = self.stores["whole"].get_into(name, ctypes.addressof(self.into), self.size)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "got": got, "right": got == self.size and bytes(memoryview(self.into)) == bytes(memoryview(self.buffer))}


class Network:
    """A namespace for each of them, and the switch between."""

    def __init__(self, hosts, arguments):
        self.names = [f"mc-stripe-{os.getpid()}-{number}" for number in range(hosts)]
        self.arguments = arguments

    @staticmethod
    def do(*words, check=True):
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=check)

    @staticmethod
    def address(number):
        return f"{NETWORK}.{number + 1}"

    def prefix(self, number):
        return ["ip", "netns", "exec", self.names[number]]

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="mc-stripes-")
        self.switch = Switch(self.folder.name, build=os.environ["MC_BUILD"])
        for number, name in enumerate(self.names):
            self.do("ip", "netns", "add", name)
            self.switch.add(number + 1, f"/run/netns/{name}", "link0")
            self.do("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "link0")
            self.do("ip", "-n", name, "link", "set", "link0", "up")
            self.do("ip", "-n", name, "link", "set", "lo", "up")
            if number > 0:
                self.switch.port(number + 1, rate=self.arguments.rate * 1e6)
        self.switch.rule("*", "*", delay_ms=self.arguments.delay_us / 1000)
        return self

    def __exit__(self, *_):
        self.switch.end()
        self.folder.cleanup()
        for name in self.names:
            self.do("ip", "netns", "del", name, check=False)


def ask(client, step, name):
    client.stdin.write(json.dumps({"step": step, "name": name}) + "\n")
    client.stdin.flush()
    return json.loads(client.stdout.readline())


def until(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"stripes: {what} was not there in {WAIT_S} s: {LOG}")
        time.sleep(0.2)


def free_bytes():
    lines = dict(line.split(":") for line in open("/proc/meminfo"))
    return int(lines["MemAvailable"].split()[0]) * 1024


def spread(values):
    return f"{min(values):.2f} / {statistics.median(values):.2f} / {max(values):.2f}"


def run(arguments, network, log, children):
    port, metrics, build = free_port(), free_port(), pathlib.Path(os.environ["MC_BUILD"])
    address = f"{network.address(0)}:{port}"

    def start(number, *words, **more):
        children.append(subprocess.Popen([*network.prefix(number), *[str(word) for word in words]], stderr=log, **more))
        return children[-1]

    start(0, build / "mooncake_master", "--rpc_address", network.address(0), "--rpc_port", port, "--metrics_port", metrics, stdout=log)
    segment = arguments.size * 2 + (256 << 20)
    for number in range(1, arguments.nodes + 1):
        start(number, build / "mooncake_bench", "node", "--master", address, "--segment", segment, "--host", network.address(number),
              stdin=subprocess.PIPE, stdout=log)
    client = start(0, sys.executable, "-B", HERE, "--client", "--address", address, "--host", network.address(0), "--size", arguments.size,
                   "--stripe", arguments.stripe, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    until(lambda: ask(client, "nodes", metrics)["nodes"] == arguments.nodes, "memory of all nodes")
    for name in ("whole", "pieces"):
        until(lambda: ask(client, "put", name)["rc"] == 0, f"the value {name}")
    seconds, bad = {"whole": [], "pieces": []}, 0
    for _ in range(arguments.rounds):
        for name, found in seconds.items():
            result = ask(client, "get", name)
            bad += not result["right"]
            found.append(result["seconds"])
    ratios = [whole / pieces for whole, pieces in zip(seconds["whole"], seconds["pieces"])]
    mb = arguments.size / 1e6
    print(f"{arguments.size} bytes, {arguments.nodes} nodes of {arguments.rate:g} MB/s each, {arguments.rounds} rounds: min / median / max")
    print(f"  as one object  {spread([mb / one for one in seconds['whole']])} MB/s")
    print(f"  in pieces      {spread([mb / one for one in seconds['pieces']])} MB/s")
    print(f"  times as fast  {spread(ratios)}")
    if bad:
        print(f"  {bad} gets failed, or were wrong")
    return 1 if bad or (arguments.nodes >= 4 and statistics.median(ratios) < BAR) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, usual in (("rounds", int, 5), ("nodes", int, 4), ("size", int, 1 << 30), ("stripe", int, 16 << 20), ("rate", float, 50.0),
                              ("delay-us", int, 200)):
        parser.add_argument(f"--{name}", type=kind, default=usual)
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        sys.path.insert(0, os.environ["MC_PYTHONPATH"])
        return serve(arguments)
    if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
        raise SystemExit("stripes: needs root, for network namespaces, and /dev/net/tun")
    arguments.size = min(arguments.size, free_bytes() // 4 // (arguments.nodes + 2))
    LOG.parent.mkdir(parents=True, exist_ok=True)
    children = []
    with open(LOG, "wb") as log, Network(arguments.nodes + 1, arguments) as network:
        try:
            return run(arguments, network, log, children)
        finally:
            for child in reversed(children):
                child.terminate()
            for child in children:
                child.wait()


def serve(arguments):
    client = Client(arguments)
    for line in sys.stdin:
        wish = json.loads(line)
        print(json.dumps(getattr(client, f"step_{wish['step']}")(wish["name"])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
