"""mooncake_master and mooncake.store with protocol rdma: this process has rxe0 and rxe1 and no segment, the owner is a process with rxe2 and rxe3."""
import os
import pathlib
import subprocess
import threading
import time

import pytest

import cables
import python_cluster
from python_cluster import pattern, wait_until
from store_process import StoreProcess

pytestmark = pytest.mark.skipif(cables.COUNT < 4, reason="two devices for each side")
PROGRAM = pathlib.Path(os.environ["MC_BUILD"]) / "tests" / "store_check"
MINE, THEIRS = "rxe0,rxe1", "rxe2,rxe3"
SETTINGS = {"MC_PATHS": "rdma,tcp", "MC_RDMA_RAIL_PAUSE_SECONDS": "2"}
LARGE = 8 << 20


@pytest.fixture(scope="module")
def master():
    with python_cluster.cluster.Master() as running:
        yield running


@pytest.fixture(params=["oob", "cm"])
def settings(request, monkeypatch):
    for name, value in {**SETTINGS, "MC_RDMA_SETUP": request.param}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def owner(master, settings):
    with StoreProcess(master.address, size=64 << 20, protocol="rdma", devices=THEIRS) as node:
        yield node


@pytest.fixture
def store(master, owner):
    client = python_cluster.MooncakeDistributedStore()
    assert client.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "rdma", MINE, master.address) == 0
    wait_for_rdma(client)
    yield client
    client.remove_all(True)
    assert client.close() == 0


def wait_for_rdma(client):
    """Until its segment is populated and registered an owner is reached by tcp. A try at RDMA that has no answer in 4 s, as in an emulated machine
    beside other work, is followed by others after 1, 2, 4, ... s."""
    def look():
        before = cables.carried(0) + cables.carried(1)
        if client.put("warm up", pattern(65536)) != 0 or client.remove("warm up", True) != 0:
            return False
        return cables.carried(0) + cables.carried(1) - before > 65536
    wait_until(look, 120)


def moved(before):
    return [after - each for each, after in zip(before, cables.carried_by_all())]


def test_put_get_remove(store):
    before = cables.carried_by_all()
    total = 0
    for size in (1, 64, 4095, 65536, 65537, (1 << 20) + 1, LARGE):
        data = pattern(size, size)
        assert store.put(f"size {size}", data) == 0
        assert store.get_size(f"size {size}") == size
        assert store.get(f"size {size}") == data
        total += 2 * size
    by = moved(before)
    assert by[0] + by[1] > total and by[2] + by[3] > total, by
    for size in (1, LARGE):
        assert store.remove(f"size {size}", True) == 0
        assert store.is_exist(f"size {size}") == 0
        assert store.get(f"size {size}") == b""


def test_batches(store):
    keys = [f"batch {number}" for number in range(64)]
    values = [pattern(1 + 997 * number, number) for number in range(64)]
    assert store.put_batch(keys, values) == 0
    assert store.get_batch(keys) == values


def test_spread(store):
    data = pattern(LARGE, 3)
    before = cables.carried_by_all()
    assert store.put("spread", data) == 0
    assert store.get("spread") == data
    by = moved(before)
    assert min(by) > sum(by) // 20 and sum(by[:2]) > 2 * LARGE, by


def test_registered_memory_is_not_copied(master, owner):
    """In a process of its own, whose counters say so; the cable of each device carried its part."""
    before = cables.carried_by_all()
    done = subprocess.run([PROGRAM, master.address, MINE], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=170, stdin=subprocess.DEVNULL, text=True)
    assert done.returncode == 0 and "store_check: good" in done.stdout, done.stdout[-4000:]
    by = moved(before)
    assert min(by) > sum(by) // 20, by


def test_cable_pulled(store):
    """While puts and gets go on. A call may fail or find nothing in that moment, none returns a wrong byte; then all is well again by the other
    device. Plugged: the device carries again."""
    wrong, good, bad, ends = [], [0], [0], threading.Event()

    def work():
        while not ends.is_set() and not wrong:
            number = good[0] + bad[0]
            key, data = f"round {number}", pattern(LARGE // 2, number)
            put = store.put(key, data)
            got = store.get(key)
            if got not in (data, b"") or (got == b"" and store.get(key) not in (data, b"")):
                wrong.append(f"{key}: put {put}, then {len(got)} bytes")
            store.remove(key, True)
            if put == 0 and got == data:
                good[0] += 1
            else:
                bad[0] += 1

    def wait(condition, seconds):
        until = time.monotonic() + seconds
        while not condition():
            assert not wrong, wrong
            assert time.monotonic() < until, f"not within {seconds} s; {good[0]} good rounds, {bad[0]} bad"
            time.sleep(0.002)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        wait(lambda: good[0] >= 1, 60)
        before = cables.carried(1)
        wait(lambda: cables.carried(1) - before > 1 << 20, 60)
        cables.pull(1)
        before, rounds = cables.carried(0), good[0]
        wait(lambda: good[0] >= rounds + 4 and cables.carried(0) - before > 4 << 20, 60)
        cables.plug(1)
        before = cables.carried(1)
        wait(lambda: cables.carried(1) - before > 1 << 20, 60)
    finally:
        ends.set()
        worker.join(60)
    print(f"{good[0]} good rounds, {bad[0]} bad")
    assert not worker.is_alive() and not wrong, wrong


def test_owner_killed(master, settings):
    """Calls end; they find nothing, and never a wrong byte."""
    client = python_cluster.MooncakeDistributedStore()
    assert client.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "rdma", MINE, master.address) == 0
    with StoreProcess(master.address, size=64 << 20, protocol="rdma", devices=THEIRS) as node:
        data = pattern(LARGE, 5)
        wait_for_rdma(client)
        assert client.put("killed", data) == 0
        killer = threading.Timer(0.05, node.kill)
        killer.start()
        answers = {client.get("killed") for _ in range(3)}
        killer.join()
        assert answers <= {data, b""}
        assert client.get("killed") == b""
    assert client.close() == 0
