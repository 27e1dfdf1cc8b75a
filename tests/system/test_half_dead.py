"""A store node whose thread that serves the data stands still, while all others of it go on, its heartbeats among them."""
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import cluster
from python_cluster import MISSING, SLOW, MooncakeDistributedStore, ReplicateConfig, arguments, wait_until

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(TESTS / "lab"), str(TESTS / "faults")]

from harm import HeldThread  # noqa: E402

TTL_S = 5 * SLOW
KEYS = 8


class Node(cluster.Child):
    """mooncake_bench node; its segment's name is known once the master lists it."""

    def __init__(self, master):
        before = set(self.names(master))
        self.process = subprocess.Popen([str(cluster.BUILD / "mooncake_bench"), "node", "--master", master.address, "--segment", "32MiB"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (self.name,) = wait_until(lambda: set(self.names(master)) - before, 20)

    @staticmethod
    def names(master):
        return [name.split('"')[1] for name in master.metrics() if name.startswith("segment_total_capacity_bytes")]


def opened(master):
    store = MooncakeDistributedStore()
    assert store.setup(*arguments(master, 0)) == 0
    return store


def put_at(store, node, key, value):
    config = ReplicateConfig()
    config.preferred_segment = node.name
    wait_until(lambda: store.put(key, value, config) == 0)


def timed(call, *arguments):
    start = time.monotonic()
    return call(*arguments), time.monotonic() - start


@pytest.fixture(params=["tcp", "shm,tcp"])
def scene(request, monkeypatch):
    monkeypatch.setenv("MC_PATHS", request.param)
    with cluster.Master(f"--client_ttl={TTL_S}s", "--default_kv_lease_ttl=0ms") as master:
        nodes = [Node(master), Node(master)]
        clients = [opened(master), opened(master)]
        try:
            yield master, nodes, clients
        finally:
            for client in clients:
                client.close()
            for node in nodes:
                node.stop(signal.SIGKILL)


def test_it_departs_and_comes_back(scene):
    master, (half, sound), (client, other) = scene
    time.sleep(3)  # a master that is young removes nothing
    for i in range(KEYS):
        put_at(client, half, f"half-{i}", b"h" * 5000)
        put_at(client, sound, f"sound-{i}", b"s" * 5000)
    held = HeldThread(half.process.pid, "mc-serve")
    try:
        began = time.monotonic()
        for store in (client, other):  # a hit, by shared memory, or a miss, and soon
            for i in range(KEYS):
                value, took = timed(store.get, f"half-{i}")
                assert value in (b"h" * 5000, b"") and took < 1 * SLOW, (value, took)
        for i in range(KEYS):
            value, took = timed(other.get, f"sound-{i}")
            assert value == b"s" * 5000 and took < 1 * SLOW
        wait_until(lambda: other.is_exist("half-0") == 0, 4)  # also when nobody complains
        # Removals go on, in the whole cluster; what lay there alone is put again elsewhere.
        wait_until(lambda: client.remove("half-0", True) == 0, 8)
        assert client.remove("sound-0", True) == 0
        wait_until(lambda: client.put("half-1", b"new") == 0, 8)
        assert time.monotonic() - began < 8 * SLOW
        assert other.get("half-1") == b"new"
        removed, took = timed(client.remove_by_regex, "^half-[23]$", True)
        assert removed >= 0 and took < 5 * SLOW
        wait_until(lambda: master.metrics()["mooncake_owners_stuck_total"] == 1, TTL_S + 5)
        assert master.metrics()["mooncake_segments"] == 1
        assert client.put("half-4", b"new") == 0
    finally:
        held.release()
    # It runs again: with new memory, and nothing of before.
    wait_until(lambda: master.metrics()["mooncake_segments"] == 2, 10)
    for i, value in enumerate([b"", b"new", b"", b"", b"new", b"", b"", b""]):
        assert other.get(f"half-{i}") == value
    put_at(client, half, "again", b"there")
    assert other.get("again") == b"there"


def test_it_returns_in_time(scene):
    """Nothing of what it holds is lost, but what was removed meanwhile."""
    master, (half, _), (client, other) = scene
    time.sleep(3)
    for i in range(KEYS):
        put_at(client, half, f"half-{i}", b"h" * 5000)
    held = HeldThread(half.process.pid, "mc-serve")
    try:
        wait_until(lambda: client.remove("half-0", True) == 0, 4.5)
    finally:
        held.release()
    assert other.is_exist("half-0") == 0
    for i in range(1, KEYS):
        wait_until(lambda i=i: other.get(f"half-{i}") == b"h" * 5000, 5)
    assert other.get("half-0") == b"" and other.is_exist("half-0") == 0
    assert master.metrics()["mooncake_owners_stuck_total"] == 0
    assert other.get_size("half-0") == MISSING
