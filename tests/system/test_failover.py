"""The master dies, comes back, or stops while clients work: every call ends by its deadline, and nobody is restarted."""
import ctypes
import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest

import cluster
import secured
from python_cluster import SLOW, MooncakeDistributedStore, arguments, lateness, pattern, stopped
from store_process import StoreProcess

TIMEOUT_MS = 1500
GRACE_S = 0.01 + 0.25 * SLOW  # a call ends within 10 ms of its deadline; the rest is for Python, beside what a sleeper waits on a loaded machine
KNOWN = 50
SIZE = 20000


@pytest.fixture
def timeout(monkeypatch):
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", str(TIMEOUT_MS * SLOW))


def open_store(master, segment=0):
    store = MooncakeDistributedStore()
    assert store.setup(*arguments(master, segment)) == 0
    return store


class Worker(threading.Thread):
    """Calls in a loop; notes how long each took and what it said."""

    def __init__(self, store, number, late_s):
        super().__init__()
        self.store, self.number, self.late_s = store, number, late_s
        self.ending = False
        self.slowest_s = 0.0
        self.wrong = []
        self.codes = set()
        self.acknowledged = []
        self.good_puts = 0

    def timed(self, call, *parameters):
        start = time.monotonic()
        result = call(*parameters)
        self.slowest_s = max(self.slowest_s, time.monotonic() - start)
        return result

    def run(self):
        turn = 0
        while not self.ending:
            turn += 1
            key = f"w{self.number}-{turn}"
            code = self.timed(self.store.put, key, pattern(SIZE, turn))
            self.codes.add(code)
            if code == 0:
                self.good_puts += 1
                got = self.timed(self.store.get, key)
                if got and got != pattern(SIZE, turn):
                    self.wrong.append(key)
                self.timed(self.store.remove, key)
            known = turn % KNOWN
            got = self.timed(self.store.get, f"known-{known}")
            if got and got != pattern(SIZE, known):
                self.wrong.append(f"known-{known}")
            self.timed(self.store.is_exist, "nothing")

    def finish(self):
        self.ending = True
        self.join(60 * SLOW)
        assert not self.is_alive()
        assert self.wrong == []
        assert self.slowest_s < TIMEOUT_MS * SLOW / 1000 + GRACE_S + self.late_s()
        assert self.codes <= {0, -900, -901, -200, -703, -800}, self.codes


@pytest.fixture
def late_s():
    with lateness() as late:
        yield late


@pytest.fixture
def work(timeout, late_s):
    """A master, a store node, a client with known objects, and four threads that call all the time."""
    with cluster.Master("--default_kv_lease_ttl=200") as master:
        node, client = open_store(master, 256 << 20), open_store(master)
        for number in range(KNOWN):
            cluster.wait_until(lambda: client.put(f"known-{number}", pattern(SIZE, number)) == 0, 20 * SLOW)
            assert client.get(f"known-{number}") == pattern(SIZE, number)
        workers = [Worker(client, number, late_s) for number in range(4)]
        for worker in workers:
            worker.start()
        try:
            yield master, client, workers
        finally:
            for worker in workers:
                worker.ending = True
            for worker in workers:
                worker.join(60 * SLOW)
            client.close()
            node.close()


def finish(workers):
    for worker in workers:
        worker.finish()


def puts(workers):
    return sum(worker.good_puts for worker in workers)


def working_again(workers, seconds):
    before = puts(workers)
    start = time.monotonic()
    cluster.wait_until(lambda: puts(workers) > before, seconds * SLOW, "a put after the master is back")
    return time.monotonic() - start


def test_a_master_that_is_killed_and_restarted(work):
    master, client, workers = work
    for _ in range(3):
        cluster.wait_until(lambda: puts(workers) > 0, 10 * SLOW)
        master.kill()
        time.sleep(0.3)
        master.start()
        print("works again after", working_again(workers, 10))
    finish(workers)
    assert client.health_check() == 0


def test_known_objects_are_read_while_there_is_no_master(work, late_s):
    master, client, workers = work
    finish(workers)
    master.kill()
    for end in (time.monotonic() + 0.5, time.monotonic() + 2 + 3 * SLOW):  # while calls are still tried, and when they are not
        while time.monotonic() < end:
            for number in range(0, KNOWN, 7):
                start = time.monotonic()
                assert client.get(f"known-{number}") == pattern(SIZE, number)
                assert time.monotonic() - start < 0.3 * SLOW + late_s()
            time.sleep(0.05)
        assert client.health_check() == 2
    assert client.get("unknown") == b""
    start = time.monotonic()
    assert client.put("new", b"x") == -900
    assert client.remove("known-0") == -900
    assert time.monotonic() - start < 0.1 * SLOW + late_s()  # away for long: no waiting
    master.start()
    cluster.wait_until(lambda: client.health_check() == 0, 5 * SLOW, "a healthy client")


def test_an_object_removed_before_is_not_read_while_there_is_no_master(work):
    master, client, workers = work
    finish(workers)
    other = open_store(master)
    cluster.wait_until(lambda: other.remove("known-3") == 0, 10 * SLOW)  # after its lease
    other.close()
    master.kill()
    assert client.get("known-3") == b""
    assert client.get("known-4") == pattern(SIZE, 4)
    master.start()


def test_memory_of_a_node_that_has_died_is_not_read_without_a_master(timeout):
    """A reader of the same machine still has it mapped, with every slot live: another master may have given its keys away."""
    bench = pathlib.Path(os.environ["MC_BUILD"]) / "mooncake_bench"
    with cluster.Master() as master:
        node = subprocess.Popen([bench, "node", "--master", master.address, "--segment", "64MiB"], stdout=subprocess.PIPE)
        try:
            assert node.stdout.readline().startswith(b"node ready")
            client = open_store(master)
            cluster.wait_until(lambda: client.put("known", pattern(SIZE, 1)) == 0, 10 * SLOW)
            assert client.get("known") == pattern(SIZE, 1)
            master.kill()
            assert client.get("known") == pattern(SIZE, 1)  # the node lives
        finally:
            node.kill()
            node.wait()
        assert client.get("known") == b""
        master.start()
        client.close()


def test_a_stopped_master_holds_nobody_beyond_the_deadline(work, late_s):
    master, client, workers = work
    cluster.wait_until(lambda: puts(workers) > 0, 10 * SLOW)
    timer = stopped(master, 8 + SLOW)
    try:
        cluster.wait_until(lambda: client.health_check() == 2, 3 * SLOW)
        time.sleep(4 + SLOW)
        start = time.monotonic()
        assert client.health_check() == 2
        assert client.is_exist("known-1") < 0
        assert time.monotonic() - start < 0.2 * SLOW + late_s()
        assert client.get("known-1") == b""  # it may be a partition, and the master may have given the owner up
    finally:
        timer.join()
    print("works again after", working_again(workers, 10))
    finish(workers)
    assert client.health_check() == 0


def test_a_master_that_stops_for_a_moment_fails_no_call(work):
    master, _, workers = work
    for _ in range(3):
        cluster.wait_until(lambda: puts(workers) > 0, 10 * SLOW)
        os.kill(master.pid, signal.SIGSTOP)
        time.sleep(0.4)
        os.kill(master.pid, signal.SIGCONT)
        time.sleep(0.2)
    finish(workers)
    assert not {code for worker in workers for code in worker.codes} & {-900, -901}


def test_calls_wait_for_a_master_as_long_as_their_deadline(monkeypatch):
    """An election took longer than usual: a call that has the time outlasts it, and so do those that begin meanwhile."""
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", str(20000 * SLOW))
    with cluster.Master() as master:
        node, client = open_store(master, 64 << 20), open_store(master)
        cluster.wait_until(lambda: client.put("known", b"x" * SIZE) == 0, 20 * SLOW)
        timer = stopped(master, 4.5)
        codes = []
        while timer.is_alive():
            codes += [client.put(f"key-{len(codes)}", b"y" * SIZE), client.is_exist("known")]
        assert set(codes) == {0, 1}, codes
        client.close()
        node.close()


def test_setup_waits_for_a_master_that_starts(timeout):
    master = cluster.Master()
    with master:
        port = master.port
    later = cluster.Master(f"--rpc_port={port}")
    timer = threading.Timer(0.5, later.start)
    timer.start()
    try:
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", f"127.0.0.1:{port}") == 0
        assert store.health_check() == 0
        store.close()
    finally:
        timer.join()
        later.stop()
        later.log_file.close()


@secured.within_a_machine
def test_a_node_to_which_no_way_leads_is_a_miss(monkeypatch):
    """Its address is one that the kernel refuses at once, as a filter's or a router's word does: no call waits for its deadline, and nobody is accused."""
    with cluster.Master() as master, StoreProcess(master.address, host="255.255.255.255") as node:
        writer = open_store(master)
        cluster.wait_until(lambda: writer.put("key", pattern(SIZE)) == 0)
        assert writer.get("key") == pattern(SIZE)
        monkeypatch.setenv("MC_PATHS", "tcp")
        reader, buffer = open_store(master), bytearray(SIZE)
        where = (ctypes.c_char * SIZE).from_buffer(buffer)
        assert reader.batch_get_into(["key"], [ctypes.addressof(where)], [SIZE]) == [-704]
        assert writer.get("key") == pattern(SIZE)
        assert b"SUSPECT" not in master.get("/get_segments_detail")[1]
        reader.close()
        writer.close()
        assert node.process.poll() is None
