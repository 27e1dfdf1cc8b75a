"""Many connections: idle ones keep nobody out, cost little, and are let go."""
import os
import pathlib
import resource
import socket
import struct
import threading
import time

import pytest

import cluster
import wire
from idle_peers import ROLE_DATA, SEGMENTS, SEGMENTS_REPLY, IdlePeers, hello, raise_limit, segments
from python_cluster import SLOW, MooncakeDistributedStore, arguments, wait_until
from store_process import StoreProcess

VALUE = b"value" * 800


def resident(pid):
    """Bytes."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def reads(store, count=200):
    """(failures, slowest in seconds)"""
    failures, slowest = 0, 0.0
    for _ in range(count):
        start = time.monotonic()
        failures += store.get("key") != VALUE
        slowest = max(slowest, time.monotonic() - start)
    return failures, slowest


@pytest.fixture
def tcp_only(monkeypatch):
    monkeypatch.setenv("MC_PATHS", "tcp")
    raise_limit()


def test_a_node_full_of_idle_connections_takes_a_new_client(tcp_only):
    """Its limit comes of its descriptors: here it has few of them."""
    few = ["prlimit", "--nofile=1024:1024"]
    with cluster.Master() as master, StoreProcess(master.address, before=few) as node:
        writer, reader = MooncakeDistributedStore(), MooncakeDistributedStore()
        assert writer.setup(*arguments(master, 0)) == 0
        wait_until(lambda: writer.put("key", VALUE) == 0)
        nonce, address = segments(master.port)[0]
        with IdlePeers(address, 1500, ROLE_DATA, nonce) as idle:
            assert set(idle.codes) <= {0, -1900}, idle.codes  # BUSY at the worst, in words
            time.sleep(1.1)
            assert reader.setup(*arguments(master, 0)) == 0
            assert reads(reader) == (0, pytest.approx(0, abs=2.0 * SLOW))
            assert idle.open() > 500
            assert writer.put("other", VALUE) == 0
        assert node.process.poll() is None
        assert writer.close() == 0 and reader.close() == 0


def segments_soon(port):
    """None while the master says BUSY: the last places are for nodes until a caller has rested for a second."""
    try:
        return segments(port)
    except AssertionError as error:
        if str(error).startswith("-1900"):
            return []
        raise


def test_a_master_full_of_resting_callers_takes_a_node(tcp_only):
    """Its callers come again when they have something to say. The one that goes on all the time is not closed for it."""
    ask = wire.record(struct.pack("<Q16s", 0, bytes(16)))
    with cluster.Master() as master:
        busy = wire.Connection(master.port, wire.ROLE_CALL, os.urandom(16))
        resource.prlimit(master.pid, resource.RLIMIT_NOFILE, (64, 64))
        callers = [socket.create_connection(("127.0.0.1", master.port)) for _ in range(100)]
        for one in callers:
            one.sendall(hello(wire.ROLE_CALL, os.urandom(16)))
        is_done, answers = threading.Event(), []

        def keep_asking():
            while not is_done.wait(0.05):
                answers.append(busy.call(SEGMENTS, SEGMENTS_REPLY, ask))
        asking = threading.Thread(target=keep_asking)
        asking.start()
        try:
            with StoreProcess(master.address):
                wait_until(lambda: len(segments_soon(master.port)) == 1)
                count = len(answers)
                wait_until(lambda: len(answers) > count + 5)
        finally:
            is_done.set()
            asking.join()
            for one in callers:
                one.close()
            busy.close()


@pytest.mark.parametrize("half", [b"", b"\1"])
def test_a_master_full_of_owners_that_lend_nothing_takes_a_node(tcp_only, half):
    """They have said hello as owners do, and nothing more, or the first byte of a frame: they rest from when a MOUNT would have come. The node that lends stays."""
    with cluster.Master() as master, StoreProcess(master.address):
        wait_until(lambda: len(segments_soon(master.port)) == 1)
        resource.prlimit(master.pid, resource.RLIMIT_NOFILE, (64, 64))
        owners, is_full = [], False
        try:
            while not is_full:
                assert len(owners) < 64
                owners.append(socket.create_connection(("127.0.0.1", master.port), timeout=1))
                owners[-1].sendall(hello(wire.ROLE_OWNER, os.urandom(16)))
                try:
                    is_full = owners[-1].recv(1) == b""
                except (TimeoutError, ConnectionResetError):
                    is_full = True
            owners.pop().close()
            for one in owners:
                one.sendall(half)
            time.sleep(16)
            with StoreProcess(master.address):
                wait_until(lambda: len(segments_soon(master.port)) == 2, 60)
        finally:
            for one in owners:
                one.close()


def test_a_client_without_descriptors_goes_on_with_what_it_has(tcp_only):
    """More threads than it can have connections: no call fails, and the node is not to blame."""
    with cluster.Master() as master, StoreProcess(master.address):
        store = MooncakeDistributedStore()
        assert store.setup(*arguments(master, 0)) == 0
        wait_until(lambda: store.put("key", VALUE) == 0)
        assert reads(store, 5)[0] == 0
        threads, failures = [], []
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = 1 + max(int(one.name) for one in pathlib.Path("/proc/self/fd").iterdir())
        fillers = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 8, limits[1]))
            while True:
                try:
                    fillers.append(open("/dev/null", "rb"))
                except OSError:
                    break
            for _ in range(3):  # calls to the master need them, too
                fillers.pop().close()
            for _ in range(4):
                threads.append(threading.Thread(target=lambda: failures.append(reads(store, 100)[0])))
                threads[-1].start()
            for thread in threads:
                thread.join()
        finally:
            for one in fillers:
                one.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert failures == [0] * 4
        assert reads(store, 20)[0] == 0
        assert store.close() == 0


def test_a_thousand_idle_connections_cost_little(tcp_only):
    """At the node and at the master; and who works meanwhile does not feel them."""
    count = 1000
    with cluster.Master() as master, StoreProcess(master.address) as node:
        store = MooncakeDistributedStore()
        assert store.setup(*arguments(master, 0)) == 0
        wait_until(lambda: store.put("key", VALUE) == 0)
        nonce, address = segments(master.port)[0]
        assert reads(store)[0] == 0
        before = resident(node.process.pid), resident(master.pid)
        with IdlePeers(address, count, ROLE_DATA, nonce) as data, IdlePeers(("127.0.0.1", master.port), count, wire.ROLE_CALL) as calls:
            assert data.codes == {0: count} and calls.codes == {0: count}
            time.sleep(1.5)  # they settle
            after = resident(node.process.pid), resident(master.pid)
            assert reads(store) == (0, pytest.approx(0, abs=1.0 * SLOW))
            assert data.open() == count and calls.open() == count
        if not cluster.SANITIZED:
            assert (after[0] - before[0]) / count < 2048, (before, after)
            assert (after[1] - before[1]) / count < 2048, (before, after)
        assert store.close() == 0
