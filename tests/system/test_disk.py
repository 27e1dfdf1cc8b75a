"""A store node with a disk, as users switch it on: setup's arguments, the admin API, metrics, and mooncake_disk beside it."""
import json
import random
import re
import resource
import shutil
import subprocess
import tempfile

import pytest

import cluster
from python_cluster import MISSING, MooncakeDistributedStore, address, joined, pattern, wait_until
from service_process import MODULE, REST, Service

MIB = 1 << 20
MEMORY = 16 * MIB
COUNT = 40  # objects of 1 MiB: more than twice the memory


@pytest.fixture
def master():
    with cluster.Master("--enable_offload", "--default_kv_lease_ttl=100") as running:
        yield running


@pytest.fixture
def late_master():
    with cluster.Master("--enable_offload", "--offload_on_evict", "--default_kv_lease_ttl=100") as running:
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


@pytest.mark.parametrize("is_restarted", [False, True])
def test_another_size_at_each_start(master, folder, monkeypatch, is_restarted):
    """What a disk may take follows what is free on its file system, and what its operator says: what lies there stays, under a master that knows it and
    under one that does not."""
    numbers = range(300, 400)  # so that what lies there has greater numbers than there may be objects
    for start, (limit, most) in enumerate(((512, 1000), (500, 500), (700, 2000), (300, 200), (700, 1000))):
        monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT", str(most))
        monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(limit * MIB))
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", MEMORY, MIB, "tcp", "", master.address, enable_ssd_offload=True, ssd_offload_path=str(folder)) == 0
        wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
        if start == 0:
            for number in range(400):
                assert store.put(f"key-{number}", pattern(20_000, number)) == 0
            wait_until(lambda: stored(master) == 400, 20)
            for number in range(300):
                assert store.remove(f"key-{number}", True) == 0
        for number in numbers:
            wait_until(lambda number=number: store.get(f"key-{number}") == pattern(20_000, number), 20)
        assert stored(master) == len(numbers)
        assert store.close() == 0
        if is_restarted:
            master.stop()
            master.start()


def lies_on_disk(master, key):
    answer = json.loads(master.get(f"/batch_query_keys?keys={key}")[1])["data"][key]
    return answer["ok"] and bool(answer["local_disk_values"])


def test_stored_before_they_are_evicted(late_master, folder, monkeypatch):
    master, store = late_master, node(late_master, folder, monkeypatch)
    wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
    for number in range(8):  # half of the memory
        assert store.put(f"key-{number}", value_of(number)) == 0
    assert master.metrics()["mooncake_offload_begun_total"] == 0
    for number in range(8, COUNT):
        wait_until(lambda number=number: store.put(f"key-{number}", value_of(number)) == 0)
        wait_until(lambda: (now := master.metrics())["mooncake_offload_begun_total"] == now["mooncake_offload_done_total"], 20)
    metrics = master.metrics()
    assert metrics["master_evicted_key_count"] >= COUNT - 16
    assert metrics["mooncake_offload_late_total"] == 0
    assert metrics["mooncake_offload_ahead_total"] == metrics["mooncake_offload_done_total"] < COUNT
    for number in range(COUNT):
        wait_until(lambda number=number: store.get(f"key-{number}") == value_of(number), 20)
    assert master.metrics()["mooncake_offload_late_total"] == 0
    there = [number for number in range(COUNT) if lies_on_disk(master, f"key-{number}")]
    assert len(there) >= COUNT - 16
    assert store.close() == 0

    store = node(master, folder, monkeypatch)
    wait_until(lambda: store.is_exist(f"key-{there[-1]}") == 1, 20)
    for number in there:
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


# ---- what is seen of it ----

def disks_of(master):
    return json.loads(master.get("/get_segments_detail")[1])["disks"]


def node_process(master, path, command=REST, **environment):
    """A store service with a disk there, as a process of its own, whose metrics can be read."""
    return Service(command=command, MOONCAKE_MASTER=master.address, MOONCAKE_LOCAL_HOSTNAME="127.0.0.1", MOONCAKE_GLOBAL_SEGMENT_SIZE=MEMORY, MOONCAKE_OFFLOAD_ENABLED="true",
                   MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=path, MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=512 * MIB, **environment).start()


def metrics_of(service):
    return cluster.samples_of(service.call("GET", "/metrics")[1])


def test_descriptors_and_admin_api(master, folder, monkeypatch):
    """A replica on a disk is named as the original names it, beside one in memory and alone."""
    store = node(master, folder, monkeypatch)
    wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
    assert store.put("key", value_of(1)) == 0
    wait_until(lambda: stored(master) == 1, 20)
    [memory, disk] = store.get_replica_desc("key")
    assert memory.is_memory_replica() and not memory.is_local_disk_replica() and memory.get_memory_descriptor().buffer_descriptor.size == MIB
    for replica in (disk, store.batch_get_replica_desc(["key"])["key"][1]):
        assert replica.is_local_disk_replica() is True and replica.is_memory_replica() is False and replica.is_disk_replica() is False
        assert replica.status == memory.status
        for what in (replica.get_disk_descriptor, replica.get_memory_descriptor):
            with pytest.raises(RuntimeError, match="on a node's disk"):
                what()
    # Memory forgets it when others come.
    for number in range(20):
        wait_until(lambda number=number: store.put(f"other-{number}", value_of(number)) == 0)

    def alone():
        replicas = store.get_replica_desc("key")
        return len(replicas) == 1 and replicas[0].is_local_disk_replica()
    wait_until(alone, 20)
    answer = json.loads(master.get("/batch_query_keys?keys=key")[1])["data"]["key"]
    [on_disk] = answer["local_disk_values"]
    assert answer["ok"] and answer["values"] == [] and answer["disk_values"] == []
    assert on_disk["object_size"] == MIB and on_disk["transport_endpoint"] == store.get_hostname()
    assert on_disk["client_id"] == disks_of(master)[0]["client_id"]
    assert store.get("key") == value_of(1)
    assert store.close() == 0


def test_metrics_of_node_and_master(master, folder):
    service = node_process(master, folder)
    client = joined(master, 0)
    wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
    label = f'disk="{folder}/mooncake-c.0"'
    for number in range(COUNT):
        wait_until(lambda number=number: client.put(f"key-{number}", value_of(number)) == 0)
        wait_until(lambda number=number: stored(master) == number + 1, 20)
    before = metrics_of(service)
    for number in range(10):
        wait_until(lambda number=number: client.get(f"key-{number}") == value_of(number), 20)

    def told():
        values = metrics_of(service)
        return values["mooncake_ssd_read_ops_total"] >= 10 and values
    values = wait_until(told, 10)
    ours = {name.split("{")[0].removeprefix("mooncake_client_disk_"): value for name, value in values.items() if name.endswith(f"{{{label}}}")}
    assert values["mooncake_ssd_write_ops_total"] == ours["stored_total"] == ours["objects"] == COUNT
    assert values["mooncake_ssd_write_bytes_total"] == ours["stored_bytes_total"] >= COUNT * MIB
    assert values["mooncake_ssd_write_latency_us_count"] == values["mooncake_ssd_write_latency_summary_us_count"] == COUNT
    assert values["mooncake_ssd_read_bytes_total"] >= before["mooncake_ssd_read_bytes_total"] + 10 * MIB
    assert values["mooncake_ssd_read_latency_us_count"] == values["mooncake_ssd_read_ops_total"] == ours["served_total"]
    assert values["mooncake_ssd_total_ops_total"] == values["mooncake_ssd_read_ops_total"] + COUNT
    assert 0 < values['mooncake_ssd_write_latency_summary_us{quantile="0.5"}'] <= values['mooncake_ssd_write_latency_summary_us{quantile="0.99"}']
    assert 1 <= ours["write_amplification"] < 1.2 and ours["written_bytes_total"] >= ours["stored_bytes_total"]
    assert ours["capacity_bytes"] == 512 * MIB and 0 < ours["free_bytes"] < 512 * MIB and ours["live_bytes"] >= COUNT * MIB
    assert ours["lost_total"] == ours["rotten_total"] == ours["write_errors_total"] == 0
    assert [values[f'mooncake_client_disk_health{{{label},health="{health}"}}'] for health in ("ok", "slow", "read_only", "recovering", "off")] == [1, 0, 0, 0, 0]
    assert f"SSD {folder}/mooncake-c.0: ok, ".encode() in service.call("GET", "/metrics/summary")[1]

    [disk] = disks_of(master)
    assert (disk["directory"], disk["status"], disk["health"], disk["objects"], disk["size_bytes"]) == (f"{folder}/mooncake-c.0", "OK", "ok", COUNT, 512 * MIB)
    seen = master.metrics()
    assert seen["master_total_file_capacity_bytes"] == disk["size_bytes"] and seen["master_allocated_file_size_bytes"] == disk["used_bytes"] >= COUNT * MIB
    assert seen["file_cache_nums_"] == COUNT and seen["file_cache_hit_nums_"] > 0
    assert seen["mooncake_disks_slow"] == seen["mooncake_disks_read_only"] == seen["mooncake_disks_off"] == 0
    assert re.search(r"Storage: \S+ MB / 16\.00 MB \(\S+%\) \| SSD Storage: \S+ MB / 512\.00 MB \(\d+\.\d%\) \| Keys: 40 ", master.get("/metrics/summary")[1].decode())
    told = json.loads(master.get("/api/v1/overview")[1])["data"]["disks"]
    assert (told["mounted"], told["objects"], told["used_bytes"], told["off"]) == (1, COUNT, disk["used_bytes"], 0)
    node = json.loads(master.get("/api/v1/nodes")[1])["nodes"][0]
    assert (node["disks"], node["disks_ill"], node["disk_used_bytes"], node["disk_objects"]) == (1, 0, disk["used_bytes"], COUNT)
    assert client.close() == 0
    service.kill()  # its disk stays known, and says so
    wait_until(lambda: [disk["health"] for disk in disks_of(master)] == ["absent"], 30)
    assert json.loads(master.get("/health")[1])["disks"] == {"mounted": 1, "absent": 1, "slow": 0, "read_only": 0, "off": 0}


def test_daily_budget(master, folder):
    """Four values of a MiB are all that is written unasked; of what comes then, those are stored that are read, at once."""
    service = node_process(master, folder, MOONCAKE_OFFLOAD_DAILY_WRITE_BYTES=4 * MIB + MIB // 2)
    client = joined(master, 0)
    wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
    budget = f'mooncake_client_disk_not_stored_total{{disk="{folder}/mooncake-c.0",reason="budget"}}'
    for number in range(4):
        wait_until(lambda number=number: client.put(f"key-{number}", value_of(number)) == 0)
        wait_until(lambda number=number: stored(master) == number + 1, 20)
    for number in range(4, 8):
        wait_until(lambda number=number: client.put(f"key-{number}", value_of(number)) == 0)
        wait_until(lambda number=number: metrics_of(service)[budget] == number - 3, 20)
    assert stored(master) == 4
    assert client.is_exist("key-4") == 1 and client.get_size("key-4") == MIB
    for number in (5, 7):
        assert client.get(f"key-{number}") == value_of(number)
        wait_until(lambda number=number: lies_on_disk(master, f"key-{number}"), 20)
    assert [lies_on_disk(master, f"key-{number}") for number in range(8)] == [True] * 4 + [False, True, False, True]
    assert metrics_of(service)[budget] == 4
    assert client.close() == 0
    service.kill()


def test_daily_budget_before_eviction(folder):
    """What memory evicts lies on the disk if it was read; of the rest as much as the budget allows."""
    read = (1, 6)
    with cluster.Master("--enable_offload", "--offload_on_evict", "--eviction_policy=lru", "--default_kv_lease_ttl=100") as master:
        service = node_process(master, folder, MOONCAKE_OFFLOAD_DAILY_WRITE_BYTES=2 * MIB + MIB // 2)
        client = joined(master, 0)
        wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
        for number in range(COUNT):
            wait_until(lambda number=number: client.put(f"key-{number}", value_of(number)) == 0)
            if number in read:
                assert client.get(f"key-{number}") == value_of(number)
            wait_until(lambda: (now := master.metrics())["mooncake_offload_begun_total"] == now["mooncake_offload_done_total"] + now["mooncake_offload_failed_total"], 20)
        there = {number for number in range(COUNT) if lies_on_disk(master, f"key-{number}")}
        assert there >= set(read) and 0 < len(there) <= len(read) + 2
        for number in read:
            wait_until(lambda number=number: client.get(f"key-{number}") == value_of(number), 20)
        assert metrics_of(service)[f'mooncake_client_disk_not_stored_total{{disk="{folder}/mooncake-c.0",reason="budget"}}'] > 0
        assert client.close() == 0
        service.kill()


def test_a_disk_that_cannot_be_used(master, folder):
    """A path that is missing, beside one that is well: the node, the master's pages and its log say so; the rest works."""
    service = node_process(master, f"{folder},{folder}/missing")
    wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
    wait_until(lambda: master.metrics()["mooncake_disks_off"] == 1)
    values = metrics_of(service)
    assert values[f'mooncake_client_disk_health{{disk="{folder}/missing",health="off"}}'] == 1
    assert values[f'mooncake_client_disk_health{{disk="{folder}/mooncake-c.0",health="ok"}}'] == 1
    detail = json.loads(master.get("/get_segments_detail")[1])
    assert detail["total_disks"] == 1 and [one["disks"] for one in detail["disks_off"]] == [1]
    assert " | SSD Storage: 0 B / 512.00 MB (0.0%, 1 off) | " in master.get("/metrics/summary")[1].decode()
    assert json.loads(master.get("/health")[1])["disks"]["off"] == 1
    assert "says that 1 of its disks cannot be used" in master.log()
    assert service.stop() == 0
    wait_until(lambda: master.metrics()["mooncake_disks_off"] == 0)


def test_a_disk_that_fails_to_write(master, folder):
    """The kernel writes nothing behind the second page of its files any more (the identity has two, the journal more by then): the disk is read-only, and
    given up, since a store that has failed may be found there by the next process and cannot be noted as dead. What memory has can be had. Python
    ignores SIGXFSZ, and what it becomes does, too."""
    service = node_process(master, folder, MODULE)
    client = joined(master, 0)
    wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
    for number in range(3):
        assert client.put(f"key-{number}", value_of(number)) == 0
    wait_until(lambda: stored(master) == 3, 20)
    for number in range(3):
        assert client.put(f"removed-{number}", value_of(number)) == 0
        wait_until(lambda: stored(master) == 4, 20)
        assert client.remove(f"removed-{number}", True) == 0
    wait_until(lambda: stored(master) == 3, 20)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (8192, 8192))
    assert client.put("after", value_of(9)) == 0
    wait_until(lambda: master.metrics()["mooncake_disks"] == 0, 20)
    label = f'disk="{folder}/mooncake-c.0"'
    values = metrics_of(service)
    assert values[f'mooncake_client_disk_health{{{label},health="read_only"}}'] == 1
    assert values[f"mooncake_client_disk_write_errors_total{{{label}}}"] > 0
    assert "is given up: its journal is broken" in service.log()
    assert stored(master) == 0 and client.get("after") == value_of(9) and client.get("key-1") == value_of(1)
    assert client.remove("key-0", True) == 0  # nobody waits for that disk
    service.kill()
    again = node_process(master, folder)
    wait_until(lambda: master.metrics()["mooncake_disks"] == 1, 20)
    assert stored(master) == 0 and client.get("key-0") == b"" and client.get("key-1") == b""
    assert again.stop() == 0
    assert client.close() == 0
