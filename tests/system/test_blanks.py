"""Places that are granted ahead: what a client, a node or a master leaves that is killed, or stopped, while they are used."""
import os
import signal
import subprocess
import sys
import time

import pytest

import cluster
from python_cluster import joined, wait_until

WRITER = """
import os, sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", int(os.environ.get("LENT", "0")), 1 << 24, "tcp", "", sys.argv[1]) == 0
print("ready", flush=True)
number = 0
for line in iter(lambda: number < 1 << 30, False):
    key = f"{sys.argv[2]}-{number}"
    rc = store.put(key, key.encode() * 200)
    if rc == 0:
        print(key, flush=True)
    number += 1
"""


class Writer:
    """Puts small values one after the other, and says of each that was acknowledged."""

    def __init__(self, master, name, **environment):
        settings = {"PYTHONPATH": os.environ["MC_PYTHONPATH"], "MC_LOG_LEVEL": "ERROR", "MC_STORE_BLANK_PLACES": "1", **environment}
        self.process = subprocess.Popen([sys.executable, "-B", "-c", WRITER, master.address, name], stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **settings})
        assert self.process.stdout.readline() == "ready\n"

    def keys(self, count):
        return [self.process.stdout.readline().strip() for _ in range(count)]

    def end(self):
        """Killed; what it had acknowledged and was not read yet."""
        self.process.kill()
        rest = self.process.stdout.read().split("\n")
        self.process.wait()
        self.process.stdout.close()
        return rest[:-1]


@pytest.fixture
def scene(monkeypatch):
    monkeypatch.setenv("MC_STORE_BLANK_PLACES", "1")
    with cluster.Master("--default_kv_lease_ttl=200ms", "--client_ttl=3s") as master:
        store = joined(master)
        wait_until(lambda: store.put("first", b"first") == 0)
        yield master, store
        store.close()


def whole(store, keys):
    for key in keys:
        assert store.get(key) == key.encode() * 200, key


def test_a_writer_that_is_killed_leaves_nothing_behind(scene):
    master, store = scene
    for life in range(5):
        writer = Writer(master, f"life{life}")
        keys = writer.keys(40 + 7 * life)
        keys += writer.end()
        whole(store, keys)
    time.sleep(0.5)
    assert store.remove_all() >= 0
    wait_until(lambda: master.metrics()["master_allocated_bytes"] == 0)


def test_a_writer_that_is_stopped_and_goes_on(scene):
    master, store = scene
    writer = Writer(master, "stopped")
    keys = writer.keys(50)
    writer.process.send_signal(signal.SIGSTOP)
    time.sleep(4)  # its place was cut
    writer.process.send_signal(signal.SIGCONT)
    keys += writer.keys(50)
    keys += writer.end()
    whole(store, keys)


def test_a_master_that_is_killed(scene):
    master, store = scene
    writer = Writer(master, "master")
    keys = writer.keys(50)
    master.kill()
    master.start()
    keys += writer.keys(50)
    keys += writer.end()
    wait_until(lambda: store.is_exist(keys[0]) == 1, 10)
    whole(store, keys)


def test_what_was_not_used_yet_is_free_after_a_master(scene):
    """A writer, stopped, has a place that the next master knows nothing of; nor does the node, as nothing lies there."""
    master, store = scene
    writer = Writer(master, "unused")
    keys = writer.keys(50)
    writer.process.send_signal(signal.SIGSTOP)
    master.kill()
    master.start()
    wait_until(lambda: store.is_exist(keys[0]) == 1, 10)
    assert master.metrics()["mooncake_blank_bytes"] == 0
    writer.process.send_signal(signal.SIGCONT)
    keys += writer.keys(20)
    keys += writer.end()
    whole(store, keys)
    time.sleep(0.5)
    assert store.remove_all() >= 0
    names = ("master_allocated_bytes", "mooncake_blank_bytes", "mooncake_clearing_bytes", "mooncake_quarantine_bytes")
    wait_until(lambda: not any(master.metrics()[name] for name in names), 10)
    assert store.put("large", bytes(4 << 20)) == 0


def test_places_that_nobody_uses_end(scene):
    master, store = scene
    writer = Writer(master, "idle")
    keys = writer.keys(50)
    writer.process.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    wait_until(lambda: master.metrics()["mooncake_blank_bytes"] == 0, 10)
    writer.process.send_signal(signal.SIGCONT)
    keys += writer.keys(10) + writer.end()
    whole(store, keys)
    assert master.metrics()["mooncake_blanks_bound_total"] > 0


def test_a_node_that_is_killed(scene):
    master, store = scene
    node = Writer(master, "node", LENT=str(64 << 20))
    writer = Writer(master, "beside")
    keys = writer.keys(50)
    node.end()
    keys += writer.keys(50)
    keys += writer.end()
    found = 0
    for key in keys:
        value = store.get(key)
        assert value in (b"", key.encode() * 200), key
        found += value != b""
    assert found > 0


def test_without_them(scene):
    master, store = scene
    writer = Writer(master, "plain", MC_STORE_BLANK_PLACES="0")
    keys = writer.keys(50)
    whole(store, keys + writer.end())


def test_what_is_there_stays(scene):
    _, store = scene
    for number in range(100):
        assert store.put(f"mine-{number}", b"a" * 1000) == 0
    for number in range(100):
        assert store.put(f"mine-{number}", b"b" * 1000) == 0, "of a key that is there"
    for number in range(100):
        assert store.get(f"mine-{number}") == b"a" * 1000
