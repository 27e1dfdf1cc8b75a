"""mooncake.store's sessions: pieces of objects that are read, or put together, over many calls."""
import threading
import time

import pytest

import cluster

from python_cluster import MISSING, address, joined, master, node, pattern, store, wait_until, with_fields  # noqa: F401


@pytest.fixture
def memory():
    return bytearray(1 << 20)


def test_get_session_reads_pieces(store, memory):
    values = {key: pattern(300_000, seed) for seed, key in enumerate(["a", "b"])}
    for key, value in values.items():
        assert store.put(key, value) == 0
    assert store.batch_get_session_start(["a", "b", "missing"]) == [0, 0, MISSING]
    base = address(memory)
    for layer in range(10):
        at = layer * 30_000
        read = store.batch_get_into_multi_buffer_ranges(
            ["a", "b"], [[base, base + 20_000], [base + 500_000]], [[20_000, 10_000], [30_000]], [[at, at + 20_000], [at]]
        )
        assert read == [30_000, 30_000]
        assert memory[:30_000] == values["a"][at : at + 30_000]
        assert memory[500_000:530_000] == values["b"][at : at + 30_000]
    assert store.batch_get_session_end(["a", "b", "missing"]) == 0
    assert store.batch_get_into_multi_buffer_ranges(["a"], [[base]], [[1]], [[0]]) == [-600]


def test_codes_of_get_sessions(store, memory):
    base, ranges = address(memory), store.batch_get_into_multi_buffer_ranges
    assert store.put("a", pattern(1000)) == 0 and store.put("b", pattern(1000)) == 0
    assert ranges(["a"], [[base]], [[10]], [[0]]) == [-600]
    assert store.batch_get_session_start([]) == [] and store.batch_get_session_end([]) == 0
    assert store.batch_get_session_start(["a"]) == [0] == store.batch_get_session_start(["a"])
    assert store.batch_get_session_start([""]) == [-400]
    assert ranges(["a", "b"], [[base], [base]], [[10], [5]], [[0], [3]]) == [10, -600]
    assert ranges(["a"], [[base]], [[1001]], [[0]]) == [-600] == ranges(["a"], [[base]], [[1]], [[1000]])
    assert ranges(["a"], [[base]], [[1000]], [[0]]) == [1000] and memory[:1000] == pattern(1000)
    assert ranges(["a", "b"], [[base]], [[10]], [[0]]) == [-600, -600]
    assert ranges(["a"], [[base]], [[10]], [[0, 1]]) == [-600]
    assert ranges(["a"], [[]], [[]], [[]]) == [0] == ranges(["a"], [[base]], [[0]], [[0]])
    assert ranges(["a"], [[0]], [[10]], [[0]]) == [-600]
    assert ranges([], [], [], []) == []
    assert store.batch_get_session_end(["a"]) == 0 == store.batch_get_session_end(["a"])


def test_a_session_keeps_its_objects_from_eviction(master, store, memory):
    size = 1 << 20
    kept = [f"kept {i}" for i in range(8)]
    for i, key in enumerate(kept):
        assert store.put(key, pattern(size, i)) == 0
    assert store.batch_get_session_start(kept) == [0] * 8
    for i in range(100):  # far more than the segment holds
        assert store.put(f"filler {i}", pattern(size, i)) == 0
    assert store.is_exist("filler 0") == 0
    base = address(memory)
    for i, key in enumerate(kept):
        assert store.batch_get_into_multi_buffer_ranges([key], [[base]], [[size]], [[0]]) == [size]
        assert memory == pattern(size, i)
    assert store.batch_get_session_end(kept) == 0
    for i in range(200):
        assert store.put(f"more {i}", pattern(size, i)) == 0
        for _ in range(2):  # of as much use as what was kept: what was not would not displace it
            assert store.get_into(f"more {i}", base, size) == size
    assert store.batch_is_exist(kept) == [0] * 8, "the end of the session lets them go"


def test_a_session_outlives_a_short_lease_and_ends_in_silence(memory):
    with cluster.Master("--default_kv_lease_ttl=2000") as own:
        store = joined(own)
        wait_until(lambda: store.put("kept", pattern(1 << 20)) == 0)
        assert store.batch_get_session_start(["kept"]) == [0]
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert store.put(f"filler {time.monotonic()}", bytes(1 << 20)) == 0
            time.sleep(0.005)
        assert store.batch_get_into_multi_buffer_ranges(["kept"], [[address(memory)]], [[1 << 20]], [[0]]) == [1 << 20]
        assert memory == pattern(1 << 20)
        assert store.remove("kept") == -706, "its lease was renewed"
        own.kill()
        ranges = lambda: store.batch_get_into_multi_buffer_ranges(["kept"], [[address(memory)]], [[1]], [[0]])[0]
        wait_until(lambda: ranges() == -707)
        assert ranges() == -600
        assert store.close() == 0


def test_what_left_during_a_session_is_a_miss_or_the_new_value(store, memory):
    base = address(memory)
    assert store.put("a", pattern(1000, 1)) == 0 and store.put("b", pattern(1000, 2)) == 0
    assert store.batch_get_session_start(["a", "b"]) == [0, 0]
    assert store.remove("a", True) == 0 and store.upsert("b", pattern(2000, 3)) == 0
    read = store.batch_get_into_multi_buffer_ranges(["a", "b"], [[base], [base + 4096]], [[500], [500]], [[0], [0]])
    assert read == [MISSING, 500] and memory[4096:4596] == pattern(2000, 3)[:500]
    assert store.batch_get_session_end(["a", "b"]) == 0


def test_put_session_puts_the_whole_at_its_end(master, store, memory):
    memory[:] = pattern(len(memory))
    base, other = address(memory), joined(master, 0)
    assert store.batch_put_session_start(["a", "b"], [100_000, 20]) == [0, 0]
    write = store.batch_put_from_multi_buffer_ranges
    assert write(["a"], [[base + 60_000]], [[40_000]], [[60_000]]) == [40_000]
    assert write(["b", "a"], [[base], [base, base + 30_000]], [[20], [30_000, 30_000]], [[0], [0, 30_000]]) == [20, 60_000]
    assert other.batch_is_exist(["a", "b"]) == [0, 0]
    assert store.batch_put_session_end(["a"]) == [0]
    assert other.get("a") == memory[:100_000] and other.is_exist("b") == 0
    assert store.batch_put_session_revoke(["b"]) == [0] and other.is_exist("b") == 0
    assert store.put("b", b"free") == 0
    assert other.close() == 0


def test_codes_of_put_sessions(store, memory):
    base, write, start = address(memory), store.batch_put_from_multi_buffer_ranges, store.batch_put_session_start
    assert store.put("there", b"value") == 0
    assert start(["a", "there", "zero", ""], [100, 100, 0, 5]) == [0, -705, -600, -400]
    assert start(["a"], [100]) == [-600]
    assert start(["x", "y"], [10]) == [-600, -600]
    assert start(["huge"], [1 << 40]) == [-200]
    assert start(["n"], [10], with_fields(replica_num=0)) == [-600]
    assert start([], []) == []
    assert write(["a"], [[base]], [[101]], [[0]]) == [-600] == write(["a"], [[base]], [[1]], [[100]])
    assert write(["a"], [[base]], [[1]], [[(1 << 64) - 1]]) == [-600]
    assert write(["none"], [[base]], [[1]], [[0]]) == [-600]
    assert write(["a"], [[base]], [[10]], [[]]) == [-600]
    assert write(["a"], [[]], [[]], [[]]) == [-702]
    assert write(["a"], [[0]], [[1]], [[0]]) == [-600]
    assert store.batch_put_session_end(["a", "none"]) == [0, -600]
    assert store.get("a") == bytes(100), "what was not written is zero"
    assert store.batch_put_session_end(["a"]) == [-600] == store.batch_put_session_revoke(["a"])
    assert store.batch_put_session_end([]) == []


def test_put_session_of_a_key_that_another_has_put_meanwhile(store, memory):
    assert store.batch_put_session_start(["a"], [10]) == [0]
    assert store.put("a", b"first") == 0
    assert store.batch_put_session_end(["a"]) == [0] and store.get("a") == b"first"


def test_a_store_that_closes_with_open_sessions(master, store):
    assert store.put("a", b"value") == 0
    other = joined(master, 0)
    assert other.batch_get_session_start(["a"]) == [0]
    assert other.batch_put_session_start(["b"], [1 << 20]) == [0]
    assert other.close() == 0
    assert store.is_exist("b") == 0


def test_threads_write_one_object_together(store):
    parts, size = 8, 100_000
    memory = bytearray(pattern(parts * size))
    base = address(memory)
    assert store.batch_put_session_start(["a"], [parts * size]) == [0]

    answers = []

    def write(part):
        for at in range(part * size, (part + 1) * size, size // 10):
            answers.append(store.batch_put_from_multi_buffer_ranges(["a"], [[base + at]], [[size // 10]], [[at]]))

    threads = [threading.Thread(target=write, args=(part,)) for part in range(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[size // 10]] * (parts * 10)
    assert store.batch_put_session_end(["a"]) == [0] and store.get("a") == memory
