"""The master's flags of what goes to a disk and what comes back from it, at real processes: --promotion_*, the queue's limits, --offload_force_evict, and --root_fs_dir
beside --enable_offload."""
import contextlib
import json
import time

import pytest

import cluster
from python_cluster import MooncakeDistributedStore, joined, pattern, wait_until

MIB = 1 << 20
MEMORY, COUNT = 16 * MIB, 40  # objects of 1 MiB: more than twice the memory
LEASE_MS = 20


@contextlib.contextmanager
def started(folder, monkeypatch, *flags):
    """A master with those flags, and a store with a disk in that folder."""
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(512 * MIB))
    with cluster.Master("--enable_offload", f"--default_kv_lease_ttl={LEASE_MS}", *flags) as master:
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", MEMORY, MIB, "tcp", "", master.address, enable_ssd_offload=True, ssd_offload_path=str(folder)) == 0
        wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
        wait_until(lambda: store.put("first", b"of all") == 0)
        wait_until(lambda: store.remove("first", True) == 0)
        try:
            yield master, store
        finally:
            assert store.close() == 0


def settled(master):
    """Nothing is on its way to a disk."""
    wait_until(lambda: (now := master.metrics())["mooncake_offload_begun_total"] == now["mooncake_offload_done_total"] + now["mooncake_offload_failed_total"], 20)


def put(master, store, numbers=range(COUNT)):
    for number in numbers:
        wait_until(lambda number=number: store.put(f"key-{number}", pattern(MIB, number)) == 0)
        settled(master)


def lies(master, number):
    """(in memory, on a disk)"""
    answer = json.loads(master.get(f"/batch_query_keys?keys=key-{number}")[1])["data"][f"key-{number}"]
    return bool(answer["values"]), bool(answer["local_disk_values"])


def read(store, number):
    assert store.get(f"key-{number}") == pattern(MIB, number)
    time.sleep(2 * LEASE_MS / 1000)  # so that it may be evicted


def promotions(master):
    values = master.metrics()
    return [values[f"master_promotion_{name}_total"] for name in ("admitted", "rejected_frequency", "rejected_cap")]


def loaded(master, store, numbers, others):
    """Each is read from the disk, if need be after others that take its place in memory."""
    for number in numbers:
        while lies(master, number) != (False, True):
            read(store, next(others))
        before, waited = master.metrics()["master_promotion_completed_total"], store.get_offload_rpc_read_count()
        read(store, number)
        assert master.metrics()["master_promotion_completed_total"] == before + 1
        assert store.get_offload_rpc_read_count() == waited + 1


def begun(master):
    return master.metrics()["mooncake_loads_begun_total"]


@pytest.mark.parametrize("late", [[], ["--offload_on_evict"]])
def test_a_value_stays_from_the_threshold_on(folder, monkeypatch, late):
    with started(folder, monkeypatch, "--promotion_on_hit", "--promotion_admission_threshold=3", "--promotion_max_per_heartbeat=65536", *late) as (master, store):
        put(master, store)
        others = iter(range(3, 24))
        loaded(master, store, (0, 1, 0), others)  # what is not promoted makes room for the next
        assert promotions(master) == [0, begun(master), 0]
        loaded(master, store, [0], others)
        assert promotions(master) == [1, begun(master) - 1, 0]
        wanted = begun(master) + 4
        while begun(master) < wanted:
            read(store, next(others))
        assert lies(master, 0) == (True, True)
        read(store, 0)
        assert promotions(master) == [1, wanted - 1, 0] and begun(master) == wanted


def test_no_value_is_promoted_unless_that_is_asked_for(folder, monkeypatch):
    with started(folder, monkeypatch, "--promotion_admission_threshold=1") as (master, store):
        put(master, store)
        loaded(master, store, (0, 1, 0, 1, 0), iter(range(2, 24)))
        assert promotions(master) == [0, 0, 0]


@pytest.mark.parametrize("limit", ["--promotion_queue_limit=1", "--promotion_max_per_heartbeat=1"])
def test_limits_of_promotion(folder, monkeypatch, limit):
    """Many are asked for at once: all come, few of them stay."""
    with started(folder, monkeypatch, "--promotion_on_hit", "--promotion_admission_threshold=1", "--promotion_max_per_heartbeat=65536", limit) as (master, store):
        put(master, store)
        assert store.get_batch([f"key-{number}" for number in range(12)]) == [pattern(MIB, number) for number in range(12)]
        admitted, rare, capped = promotions(master)
        assert rare == 0 and admitted > 0 and capped > 0
        assert admitted + capped == begun(master) >= 12


def test_limit_of_the_queue(folder, monkeypatch):
    """What finds it full when it is put stays in memory only, and is lost when that is full, which is counted."""
    with started(folder, monkeypatch, "--offloading_queue_limit=1") as (master, store):
        assert store.put_batch([f"key-{number}" for number in range(8)], [pattern(MIB, number) for number in range(8)]) == 0
        settled(master)
        late = [number for number in range(8) if lies(master, number) == (True, False)]
        assert len(late) < 8  # mostly seven; how many find it full is a matter of who is faster
        put(master, store, range(8, COUNT))
        assert master.metrics()["mooncake_offload_late_total"] == len(late)
        assert [store.get(f"key-{number}") for number in range(8)] == [b"" if number in late else pattern(MIB, number) for number in range(8)]


@pytest.mark.parametrize("flags, is_stored", [(["--offload_cap_ratio=0"], False), (["--offload_cap_ratio=1"], True), (["--offload_force_evict"], True)])
def test_what_eviction_may_fill_of_the_queue(folder, monkeypatch, flags, is_stored):
    with started(folder, monkeypatch, "--offload_on_evict", *flags) as (master, store):
        put(master, store)
        values = master.metrics()
        assert values["master_evicted_key_count"] >= COUNT - MEMORY // MIB
        assert (values["mooncake_offload_ahead_total"] > 0, values["mooncake_offload_late_total"] == 0) == (is_stored, is_stored)
        assert store.get("key-0") == (pattern(MIB, 0) if is_stored else b"")


def test_root_beside_disks_of_their_own(folder, monkeypatch):
    """Who has a disk uses it, who has none uses the root's."""
    (folder / "root").mkdir(), (folder / "own").mkdir()
    with started(folder / "own", monkeypatch, f"--root_fs_dir={folder}/root", "--cluster_id=here") as (master, store):
        assert master.log().count("which the original forbids") == 1 and list((folder / "root").iterdir()) == []
        other = joined(master, MEMORY)
        wait_until(lambda: master.metrics()["mooncake_disks"] == 2)
        assert [path.name for path in (folder / "root" / "here").iterdir()] == ["mooncake-c.0"]
        put(master, store, range(2 * COUNT))
        assert master.metrics()["mooncake_offload_done_total"] >= 2 * COUNT
        assert all(client.get(f"key-{number}") == pattern(MIB, number) for client in (store, other) for number in range(0, 2 * COUNT, 5))
        assert other.close() == 0
