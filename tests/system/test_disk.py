"""A store node with a disk, as users switch it on: setup's arguments, the admin API, metrics, and mooncake_disk beside it."""
import json
import pathlib
import random
import shutil
import subprocess
import tempfile

import pytest

import cluster
from python_cluster import MISSING, MooncakeDistributedStore, address, joined, pattern, wait_until

SHM = pathlib.Path("/dev/shm")
MIB = 1 << 20
MEMORY = 16 * MIB
COUNT = 40  # objects of 1 MiB: more than twice the memory


@pytest.fixture
def folder():
    path = tempfile.mkdtemp(prefix="mc-test-", dir=SHM if SHM.is_dir() else None)
    yield pathlib.Path(path)
    shutil.rmtree(path)


@pytest.fixture
def master():
    with cluster.Master("--enable_offload", "--default_kv_lease_ttl=100") as running:
        yield running


def node(master, folder, monkeypatch):
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(512 * MIB))
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", MEMORY, MIB, "tcp", "", master.address, enable_ssd_offload=True, ssd_offload_path=str(folder)) == 0
    return store


def value_of(number):
    return pattern(MIB, number)


def stored(master):
    return master.metrics()["file_cache_nums_"]


def test_more_than_memory_and_again(master, folder, monkeypatch):
    store = node(master, folder, monkeypatch)
    wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
    for number in range(COUNT):
        wait_until(lambda number=number: store.put(f"key-{number}", value_of(number)) == 0)
        wait_until(lambda number=number: stored(master) == number + 1, 20)
    for number in range(COUNT):
        wait_until(lambda number=number: store.get(f"key-{number}") == value_of(number), 20)
    assert master.metrics()["master_promotion_completed_total"] > COUNT // 2
    answer = json.loads(master.get("/batch_query_keys?keys=key-0")[1])["data"]["key-0"]
    assert answer["ok"] and answer["local_disk_values"][0]["object_size"] == MIB
    assert store.remove("key-3", True) == 0
    assert store.get_size("key-3") == MISSING
    assert store.close() == 0

    looked = subprocess.run([cluster.BUILD / "mooncake_disk", "check", folder], capture_output=True, text=True, timeout=60)
    assert looked.returncode == 0, looked.stdout + looked.stderr

    store = node(master, folder, monkeypatch)
    wait_until(lambda: store.is_exist(f"key-{COUNT - 1}") == 1, 20)
    assert store.get_size("key-3") == MISSING
    for number in range(COUNT):
        if number != 3:
            wait_until(lambda number=number: store.get(f"key-{number}") == value_of(number), 20)
    assert store.close() == 0


def test_two_nodes_share_a_path(master, folder, monkeypatch):
    stores = [node(master, folder, monkeypatch) for _ in range(2)]
    client = joined(master, 0)
    wait_until(lambda: master.metrics()["mooncake_disks"] == 2)
    for number in range(12):
        wait_until(lambda number=number: client.put(f"key-{number}", value_of(number)) == 0)
    wait_until(lambda: stored(master) == 12, 20)
    assert sorted(path.name for path in folder.iterdir()) == ["mooncake-c.0", "mooncake-c.1"]
    for number in range(12):
        assert client.get(f"key-{number}") == value_of(number)
    for store in [client, *stores]:
        assert store.close() == 0


@pytest.fixture
def disk_folder():
    """On the disk of the machine: what is large."""
    path = tempfile.mkdtemp(prefix="mc-test-")
    yield path
    shutil.rmtree(path)


def large_node(master, path, memory, disk, monkeypatch):
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(disk))
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", memory, MIB, "tcp", "", master.address, enable_ssd_offload=True, ssd_offload_path=path) == 0
    wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
    return store


def large_values(store, count):
    """Registered memory in which value i is a MiB from byte i on."""
    base = bytearray(random.Random(1).randbytes(MIB + count))
    assert store.register_buffer(address(base), len(base)) == 0
    return base


@pytest.mark.skipif(cluster.SANITIZED, reason="copies much")
def test_a_burst_is_stored_whole(master, disk_folder, monkeypatch):
    """More at once than the disk has buffers for."""
    count = 400
    store = large_node(master, disk_folder, 640 * MIB, 1024 * MIB, monkeypatch)
    base = large_values(store, count)
    wait_until(lambda: store.put("room", bytes(500 * MIB)) == 0 and store.remove("room", True) == 0, 30)
    for number in range(count):
        assert store.put_from(f"key-{number}", address(base) + number, MIB) == 0
    wait_until(lambda: stored(master) == count, 60)
    assert store.close() == 0


@pytest.mark.skipif(cluster.SANITIZED, reason="as large as a load of vLLM")
def test_a_load_larger_than_memory(master, disk_folder, monkeypatch):
    """1.15 GiB in one call, of a node whose memory is a quarter of that; every value is there, though it came in windows."""
    count = 1178
    store = large_node(master, disk_folder, 256 * MIB, 2048 * MIB, monkeypatch)
    base = large_values(store, count)
    target = bytearray(count * MIB)
    assert store.register_buffer(address(target), len(target)) == 0
    for number in range(count):
        wait_until(lambda number=number: number - stored(master) < 64 and store.put_from(f"key-{number}", address(base) + number, MIB) == 0, 60)
    wait_until(lambda: stored(master) == count, 60)
    keys = [f"key-{number}" for number in range(count)]
    results = store.batch_get_into(keys, [address(target) + number * MIB for number in range(count)], [MIB] * count)
    assert [result for result in results if result != MIB] == []
    assert all(target[number * MIB:(number + 1) * MIB] == base[number:number + MIB] for number in range(count))
    assert store.close() == 0
