"""Values in pieces on many nodes (MC_STORE_STRIPE_SIZE): whole or a miss, one object to whoever looks, and gone together."""
import contextlib
import ctypes
import json
import threading

import pytest

import cluster
from python_cluster import MISSING, arguments, joined, pattern, wait_until
from store_process import StoreProcess
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

STRIPE = 1 << 20
NODE = 32 << 20


@contextlib.contextmanager
def pool(monkeypatch, nodes=3, *flags):
    """A master, nodes, and a store that puts in pieces; all nodes are known."""
    monkeypatch.setenv("MC_STORE_STRIPE_SIZE", str(STRIPE))
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(cluster.Master(*flags))
        processes = [stack.enter_context(StoreProcess(master.address, NODE)) for _ in range(nodes)]
        store = joined(master, 0)
        wait_until(lambda: len(segments(master)) == nodes)
        yield master, processes, store
        assert store.close() == 0


def segments(master):
    return master.get("/get_all_segments")[1].decode().split()


def keys(master):
    return master.get("/get_all_keys")[1].decode().split()


def held(master):
    """Replicas that lie in each segment."""
    return [one["objects"] for one in json.loads(master.get("/get_segments_detail")[1])["segments"]]


def count(master):
    return int(master.metrics()["master_key_count"])


@pytest.mark.parametrize("size", [STRIPE, STRIPE + 1, 3 * STRIPE, 5 * STRIPE + 12345])
def test_a_value_comes_back(monkeypatch, size):
    value = pattern(size)
    with pool(monkeypatch) as (master, _, store):
        assert store.put("key", value) == 0
        assert store.is_exist("key") == 1 and store.get_size("key") == size
        assert store.get("key") == value
        assert bytes(store.get_buffer("key")) == value
        assert count(master) == 1 and keys(master) == ["key"]
        assert store.put("key", bytes(10)) == 0  # it exists
        assert store.get("key") == value
        other = value[::-1] + b"more"
        assert store.upsert("key", other) == 0
        assert store.get("key") == other and store.get_size("key") == len(other)
        assert store.upsert("key", b"small") == 0
        assert store.get("key") == b"small"
        assert store.upsert("key", value) == 0
        assert store.get("key") == value
        assert store.remove("key", True) == 0
        assert store.get("key") == b"" and store.is_exist("key") == 0 and store.get_size("key") == MISSING
        assert count(master) == 0 and keys(master) == []


def test_it_lies_on_all_nodes_and_goes_with_its_key(monkeypatch):
    with pool(monkeypatch) as (master, _, store):
        assert store.put("a/1", pattern(6 * STRIPE)) == 0
        assert store.put("a/2", pattern(6 * STRIPE)) == 0
        assert store.put("b", b"whole") == 0
        assert all(1 <= one <= 6 for one in held(master)) and sum(held(master)) == 2 * 7 + 1
        assert sorted(keys(master)) == ["a/1", "a/2", "b"] and count(master) == 3
        assert store.remove_by_regex("^a/", True) == 2
        wait_until(lambda: sum(held(master)) == 1)
        assert store.put("a/1", pattern(6 * STRIPE)) == 0
        assert store.remove_all(True) == 2
        wait_until(lambda: sum(held(master)) == 0)


def test_ranges_and_batches(monkeypatch):
    value = pattern(4 * STRIPE + 77)
    with pool(monkeypatch) as (_, _, store):
        assert store.put_batch(["one", "two", "three"], [value, b"small", value[::-1]]) == 0
        assert store.get_batch(["one", "two", "three", "none"]) == [value, b"small", value[::-1], b""]
        memory = ctypes.create_string_buffer(len(value) + 64)
        base = ctypes.addressof(memory)
        assert store.register_buffer(base, len(memory)) == 0
        assert store.get_into("one", base, len(memory)) == len(value)
        assert memory.raw[:len(value)] == value
        for offset, size in ((0, 10), (STRIPE - 5, 10), (STRIPE, STRIPE), (STRIPE + 3, 2 * STRIPE + 9), (len(value) - 7, 7), (0, len(value))):
            assert store.get_into_ranges([base], [["one"]], [[[0]]], [[[offset]]], [[[size]]]) == [[[size]]]
            assert memory.raw[:size] == value[offset:offset + size]
        assert store.get_into_ranges([base], [["one"]], [[[0]]], [[[len(value) - 3]]], [[[4]]])[0][0][0] < 0
        assert store.get_into("one", base, 100) < 0
        assert store.unregister_buffer(base) == 0
        assert store.batch_is_exist(["one", "two", "none"]) == [1, 1, 0]


def test_a_node_dies_and_the_value_is_a_miss(monkeypatch):
    value = pattern(6 * STRIPE)
    with pool(monkeypatch) as (master, nodes, store):
        assert store.put("key", value) == 0
        nodes[0].kill()
        wait_until(lambda: store.is_exist("key") == 0, 20)
        assert store.get("key") == b""
        wait_until(lambda: count(master) == 0 and keys(master) == [], 20)
        wait_until(lambda: store.put("key", value[::-1]) == 0, 20)
        assert store.get("key") == value[::-1]


def test_with_replicas_a_node_may_die(monkeypatch):
    value, config = pattern(4 * STRIPE), ReplicateConfig()
    config.replica_num = 2
    with pool(monkeypatch) as (_, nodes, store):
        assert store.put("key", value, config) == 0
        nodes[1].kill()
        wait_until(lambda: store.get("key") == value, 20)


def test_a_master_finds_it_again(monkeypatch):
    value = pattern(5 * STRIPE)
    with pool(monkeypatch) as (master, _, store):
        assert store.put("key", value) == 0
        master.kill()
        master.start()
        wait_until(lambda: store.get("key") == value, 30)
        assert count(master) == 1 and keys(master) == ["key"]
        wait_until(lambda: store.remove("key", True) == 0)
        wait_until(lambda: sum(held(master)) == 0, 20)


def test_a_drain_takes_pieces_along(monkeypatch):
    value = pattern(6 * STRIPE)
    with pool(monkeypatch) as (master, nodes, store):
        assert store.put("key", value) == 0
        name = segments(master)[0]
        status, _ = cluster.request(master.metrics_port, "POST", "/api/v1/drain_jobs", json.dumps({"segments": [name]}).encode())
        assert status == 200
        wait_until(lambda: held(master)[0] == 0, 30)
        assert store.get("key") == value and count(master) == 1


def test_what_is_wished_of_one_object_is_kept(monkeypatch):
    """Pins, groups and places are of one object: such a value is put as one."""
    value = pattern(3 * STRIPE)
    with pool(monkeypatch) as (master, _, store):
        config = ReplicateConfig()
        config.with_soft_pin = True
        assert store.put("pinned", value, config) == 0
        assert sum(held(master)) == 1
        config = ReplicateConfig()
        config.preferred_segment = segments(master)[0]
        assert store.put("placed", value, config) == 0
        assert sum(held(master)) == 2
        assert store.get("pinned") == value == store.get("placed")
        assert store.upsert("placed", value[::-1]) == 0  # a value that was put as one stays one
        assert store.get("placed") == value[::-1]


def test_off_and_small(monkeypatch):
    value = pattern(3 * STRIPE)
    with pool(monkeypatch) as (master, _, store):
        assert store.put("pieces", value) == 0
        monkeypatch.delenv("MC_STORE_STRIPE_SIZE")
        other = joined(master, 0)
        assert other.put("whole", value) == 0
        assert sum(held(master)) == 4 + 1
        assert other.get("pieces") == value and store.get("whole") == value  # all read both
        assert other.upsert("pieces", value[::-1]) == 0
        assert store.get("pieces") == value[::-1]
        wait_until(lambda: sum(held(master)) == 2)
        assert other.close() == 0


def test_tenants_have_their_own(monkeypatch):
    value = pattern(3 * STRIPE)
    with pool(monkeypatch, 2, "--enable_multi_tenants") as (master, _, store):
        blue = MooncakeDistributedStore()
        assert blue.setup(*arguments(master, 0), tenant_id="blue") == 0
        assert blue.put("key", value) == 0
        assert store.get("key") == b"" and blue.get("key") == value
        assert store.put("key", value[::-1]) == 0
        assert blue.get("key") == value and store.get("key") == value[::-1]
        assert blue.remove_all(True) == 1
        assert store.get("key") == value[::-1] and blue.get("key") == b""
        assert blue.close() == 0


def test_who_comes_too_late_leaves_nothing(monkeypatch):
    """Two put, or upsert, the same keys at a time: of each key one value stays, and no pieces of the other."""
    keys_put, size = [f"key{number}" for number in range(8)], 2 * STRIPE
    with pool(monkeypatch) as (master, _, store):
        other = joined(master, 0)
        assert store.put("first", b"small") == 0 and store.remove("first", True) == 0  # the master is no beginner any more
        for call in ("put", "upsert"):
            gate, results = threading.Barrier(2), []

            def write(writer, fill):
                for key in keys_put:
                    gate.wait()
                    results.append(getattr(writer, call)(key, bytes([fill]) * size))

            threads = [threading.Thread(target=write, args=one) for one in ((store, 1), (other, 2))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert results == [0] * (2 * len(keys_put))
            assert all(store.get(key) in (bytes([1]) * size, bytes([2]) * size) for key in keys_put)
            wait_until(lambda: sum(held(master)) == 3 * len(keys_put), 20)
        assert other.close() == 0
