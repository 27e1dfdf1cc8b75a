"""A master dies and comes back empty: the store nodes tell it what they hold."""
import time

import pytest

import cluster
from python_cluster import MISSING, joined, pattern, wait_until, with_fields
from store_process import StoreProcess

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
