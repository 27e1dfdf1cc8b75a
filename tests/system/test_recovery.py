"""A master dies and comes back empty: the store nodes tell it what they hold."""
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import cluster
from python_cluster import MISSING, joined, pattern, wait_until, with_fields
from store_process import StoreProcess, rebooted

SIZES = [1, 63, 64, 65, 4096, 65536, 65537, 300000, 1 << 20]


def value_of(number):
    return pattern(SIZES[number % len(SIZES)], number)


@pytest.fixture
def pool():
    """A master, two store nodes, a client without a segment."""
    with cluster.Master() as master, StoreProcess(master.address), StoreProcess(master.address):
        client = joined(master, 0)
        wait_until(lambda: client.put("warm up", bytes(1 << 20)) == 0)
        yield master, client
        client.close()


def fill(client, count, replicas=1):
    config = with_fields(replica_num=replicas)
    for number in range(count):
        wait_until(lambda number=number: client.put(f"key-{number}", value_of(number), config) == 0)


def all_there(client, numbers):
    return all(client.get(f"key-{number}") == value_of(number) for number in numbers)


def restart(master):
    master.kill()
    master.start()


def test_what_was_put_is_there_again(pool):
    master, client = pool
    fill(client, 60)
    removed, kept = range(0, 60, 7), [number for number in range(60) if number % 7]
    for number in removed:
        assert client.remove(f"key-{number}", True) == 0
    for _ in range(3):
        restart(master)
        wait_until(lambda: all_there(client, kept), 20)
        assert all(client.get_size(f"key-{number}") == MISSING for number in removed)
    assert client.put("key-0", b"new") == 0
    assert client.get("key-0") == b"new"
    assert client.put("key-1", b"the old value stays") == 0
    assert client.get("key-1") == value_of(1)


def test_replicas_and_what_is_removed_after(pool):
    master, client = pool
    # Both segments have room before it counts: replicas are a best effort.
    wait_until(lambda: client.put("both", b"v", with_fields(replica_num=2)) == 0 and len(client.get_replica_desc("both")) == 2
               or client.remove("both", True) != 0)
    fill(client, 20, replicas=2)
    assert len(client.get_replica_desc("key-3")) == 2
    restart(master)
    wait_until(lambda: all_there(client, range(20)), 20)
    wait_until(lambda: len(client.get_replica_desc("key-3")) == 2)
    for number in range(10):
        assert client.remove(f"key-{number}", True) == 0
    restart(master)
    wait_until(lambda: all_there(client, range(10, 20)), 20)
    time.sleep(1.5)
    assert all(client.get_size(f"key-{number}") == MISSING for number in range(10))


def test_a_master_that_dies_again_and_again(pool):
    """Also in the middle of what it is told."""
    master, client = pool
    fill(client, 40)
    for pause in (0, 0.05, 0.2, 0.6, 1.1):
        restart(master)
        time.sleep(pause)
    wait_until(lambda: all_there(client, range(40)), 30)
    for number in range(40, 50):
        wait_until(lambda number=number: client.put(f"key-{number}", value_of(number)) == 0)
    assert all_there(client, range(50))


def test_a_segment_that_fills_up_is_logged_once():
    """The owner tells how much of its memory is ready many times; a log of those would hide what matters."""
    with cluster.Master() as master, StoreProcess(master.address, size=256 << 20):
        cluster.wait_until(lambda: master.log().count("is mounted") >= 1, 20, "the line")
        time.sleep(2)  # populated meanwhile
        lines = [line for line in master.log().splitlines() if "mounted" in line]
        assert len(lines) == 1 and "268435456 bytes) is mounted" in lines[0], lines


# A client that is killed after its removal was answered: who heard of that master ends with it.
REMOVER = """
import os, sys
sys.path.insert(0, os.environ["MC_PYTHONPATH"])
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", sys.argv[1]) == 0
print(store.remove("key-1", True), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("keeps_note, reboots", [(True, False), (True, True), (False, False)])
def test_what_a_master_removed_whom_nobody_remembers(keeps_note, reboots, tmp_path):
    """The only node is stopped for the whole life of a master, which removes one of its keys and ends with its only client, or with its machine."""
    flags = [] if keeps_note else ["--state_dir=none"]
    with cluster.Master(*flags) as master, StoreProcess(master.address) as node:
        with_first = joined(master, 0)
        wait_until(lambda: with_first.put("warm up", bytes(1 << 20)) == 0)
        fill(with_first, 3)
        with_first.close()
        cluster.hold_still(node.process.pid)
        restart(master)
        with subprocess.Popen([sys.executable, "-c", REMOVER, master.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as remover:
            assert int(remover.stdout.readline()) == MISSING  # once the master has lived for three seconds
            master.kill()
            remover.kill()
        if reboots:
            master.program = rebooted(tmp_path, master.program)
        master.start()
        node.process.send_signal(signal.SIGCONT)
        client = joined(master, 0)
        wait_until(lambda: client.put("new", b"new") == 0)
        time.sleep(1.5)  # a master trusts contents after a second
        in_doubt = "taken on the word of who is here" in master.log()
        if keeps_note:
            assert client.get_size("key-1") == MISSING
        assert in_doubt == (not keeps_note), master.log()
        assert master.metrics()["mooncake_recovery_in_doubt_total"] == (not keeps_note)
        client.close()


def test_a_note_outlives_a_long_outage(pool):
    """Everybody was without a master for longer than it takes to be given up: nothing is lost, and nothing is in doubt."""
    master, client = pool
    fill(client, 10)
    master.kill()
    assert [entry.suffix for entry in pathlib.Path(master.state_dir.name).iterdir()] == [".note"]
    time.sleep(5)
    master.start()
    wait_until(lambda: all_there(client, range(10)), 20)
    assert "in doubt" not in master.log() and master.metrics()["mooncake_recovery_in_doubt_total"] == 0
