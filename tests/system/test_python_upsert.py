"""mooncake.store's upserts: every form, its codes, and that a reader sees one value or the other and nothing between."""
import threading
import time

import pytest

from python_cluster import address, joined, master, node, pattern, store, wait_until, with_fields  # noqa: F401


def test_upsert_puts_and_replaces(store):
    assert store.upsert("key", b"one") == 0 and store.get("key") == b"one"
    assert store.put("key", b"put keeps it") == 0 and store.get("key") == b"one"
    assert store.upsert("key", b"a longer value") == 0 and store.get("key") == b"a longer value"
    assert store.upsert("key", b"x", config=with_fields(replica_num=2)) == 0 and store.get("key") == b"x"
    assert store.get_size("key") == 1


def test_codes_of_upsert(store):
    assert store.upsert("empty", b"") == -600 and store.is_exist("empty") == 0
    assert store.upsert("key", b"stays") == 0
    assert store.upsert("key", b"") == -600 and store.get("key") == b"stays"
    assert store.upsert("", b"value") == -400
    assert store.upsert("key", b"value", with_fields(replica_num=0)) == -600
    with pytest.raises(TypeError, match="upsert"):
        store.upsert("key")
    with pytest.raises(TypeError):
        store.upsert("key", 5)


def test_upsert_parts_and_batch(store):
    assert store.upsert_parts("parts", b"a", bytearray(b"bc"), memoryview(b"def")) == 0
    assert store.upsert_parts("parts", b"new ", b"value") == 0 and store.get("parts") == b"new value"
    with pytest.raises(RuntimeError, match="1-D"):
        store.upsert_parts("parts", memoryview(bytes(4)).cast("B", (2, 2)))
    with pytest.raises(TypeError, match="upsert_parts"):
        store.upsert_parts("parts", b"", wrong=1)
    assert store.upsert_batch(["a", "b"], [b"1", b"2"]) == 0
    assert store.upsert_batch(["b", "c"], [b"3", b"4"]) == 0
    assert store.get_batch(["a", "b", "c"]) == [b"1", b"3", b"4"]
    assert store.upsert_batch(["a", "b"], [b"1"]) == -600 and store.get("b") == b"3"
    assert store.upsert_batch([], []) == 0


def test_upsert_from_addresses(store):
    memory = bytearray(pattern(4096))
    base = address(memory)
    assert store.upsert_from("a", base, 100) == 0 and store.upsert_from("a", base + 1, 4000) == 0
    assert store.get("a") == memory[1:4001]
    assert store.upsert_from("a", base, 0) == 0 and store.get("a") == memory[1:4001]
    assert store.upsert_from("a", 0, 10) == -600
    assert store.batch_upsert_from(["a", "b", "bad"], [base, base + 7, 0], [10, 20, 5]) == [0, 0, -600]
    assert store.get_batch(["a", "b"]) == [memory[:10], memory[7:27]]
    assert store.batch_upsert_from(["a", "b"], [base], [1, 2]) == [-600, -600]
    assert store.batch_upsert_from([], [], []) == []


def test_put_from_with_metadata(store):
    memory = bytearray(b"0123456789")
    base = address(memory)
    assert store.put_from_with_metadata("key", base, base + 5, 3, 5) == 0 and store.get("key") == b"56789012"
    assert store.put_from_with_metadata("bare", base, 0, 3, 0) == 0 and store.get("bare") == b"012"
    assert store.put_from_with_metadata("none", base, base, 0, 5) == 0 and store.is_exist("none") == 0
    assert store.put_from_with_metadata("bad", 0, base, 3, 5) == -600
    assert store.put_from_with_metadata("bad", base, 0, 3, 5) == -600


def test_readers_see_whole_values_only(master, store):
    """While a key is replaced again and again, every read gives one of the values, never a miss."""
    values = [pattern(200_000 + i * 50_000, i) for i in range(4)]
    assert store.upsert("turning", values[0]) == 0
    other, seen, stop = joined(master, 0), [], threading.Event()

    def read():
        while not stop.is_set():
            seen.append(other.get("turning"))

    reader = threading.Thread(target=read)
    reader.start()
    codes, until = [], time.monotonic() + 30
    while len(codes) < 100 or (len(seen) <= 5 and time.monotonic() < until):  # a busy machine gives the reader its turns late
        codes.append(store.upsert("turning", values[len(codes) % 4]))
    stop.set()
    reader.join()
    assert set(codes) == {0} and len(seen) > 5, (len(codes), len(seen))
    assert all(value in values for value in seen), [len(value) for value in seen if value not in values]
    assert other.close() == 0
