"""mooncake.store's group_ids: what is evicted together, what a read protects, and that a key stays in its group."""
import pytest

import cluster
from python_cluster import MISSING, address, joined, pattern, small, wait_until, with_fields  # noqa: F401

SIZE = 100_000
MEMBERS = ["m0", "m1", "m2"]
PLACES = 140  # objects of that size that 16 MiB take before anything is evicted


def fill(store, start, count):
    for number in range(start, start + count):
        wait_until(lambda number=number: store.put(f"k{number}", bytes(SIZE)) == 0)


def there(store):
    """How many members are; a look that is no use of them."""
    return sum(store.get_size(key) == SIZE for key in MEMBERS)


def test_evicted_together(small):
    """Its members lie far apart in age. It goes when the oldest comes to its turn, or, if the clock that ages groups has ticked between
    them, when the next one does; whenever that is, all of it goes."""
    _, store = small
    assert store.put_batch(MEMBERS[:1], [bytes(SIZE)], with_fields(group_ids=["g"])) == 0
    fill(store, 0, 120)
    assert store.put_batch(MEMBERS[1:], [bytes(SIZE)] * 2, with_fields(group_ids=["g", "g"])) == 0
    assert store.put("single", bytes(SIZE), with_fields(group_ids=[""])) == 0
    fill(store, 120, PLACES - 124)
    assert there(store) == 3
    for number in range(1000, 1000 + 3 * PLACES):
        fill(store, number, 1)
        left = there(store)
        assert left in (0, 3)
        if left == 0:
            break
    assert there(store) == 0 and store.get_size(f"k{number}") == SIZE
    assert store.get_size(f"k{PLACES - 5}") == SIZE  # the youngest of those that were there before


def test_a_read_protects_the_group(small):
    _, store = small
    assert store.put_batch(MEMBERS, [bytes(SIZE)] * 3, with_fields(group_ids=["g"] * 3)) == 0
    assert store.put_batch(["other"], [bytes(SIZE)], with_fields(group_ids=["h"])) == 0
    assert store.batch_get_session_start(MEMBERS[1:2]) == [0]
    fill(store, 0, 3 * PLACES)
    assert there(store) == 3 and store.get_size("other") == MISSING
    assert store.batch_get_session_end(MEMBERS[1:2]) == 0
    for number in range(3 * PLACES, 6 * PLACES):  # each of as much use as the member was: what was not would not displace it
        fill(store, number, 1)
        assert store.get(f"k{number}") == store.get(f"k{number}") == bytes(SIZE)
    assert there(store) == 0


def test_leases_and_removal(small):
    _, store = small
    assert store.put_batch(MEMBERS, [bytes(SIZE)] * 3, with_fields(group_ids=["g", "g", ""])) == 0
    assert store.get("m0") == bytes(SIZE)
    assert store.remove("m1") == -706 and store.remove("m2") == 0
    assert store.remove("m1", True) == 0
    assert store.get("m0") == bytes(SIZE) and store.get_size("m1") == MISSING


def test_a_key_stays_in_its_group(small):
    master, store = small
    grouped, other, none = (with_fields(group_ids=[group]) for group in ("g", "h", ""))
    assert store.put("key", b"one", grouped) == 0
    assert store.put("plain", b"one") == 0
    assert store.upsert("key", b"two", other) == -600 and store.upsert("plain", b"two", other) == -600
    assert store.get("key") == b"one" and store.get("plain") == b"one"
    assert store.upsert("key", b"two", grouped) == 0
    assert store.upsert("key", b"three") == 0 and store.upsert("key", b"four!", none) == 0
    assert store.upsert("key", b"five", other) == -600 and store.get("key") == b"four!"
    assert store.upsert_batch(["key", "plain"], [b"six", b"six"], with_fields(group_ids=["g", ""])) == 0
    assert store.put("key", b"there already", other) == 0 and store.get("key") == b"six"
    # The owner's memory knows it, so the next master does.
    master.kill()
    master.start()
    wait_until(lambda: store.get("key") == b"six", 20)
    assert store.upsert("key", b"seven", other) == -600 and store.upsert("plain", b"seven", other) == -600
    assert store.upsert("key", b"seven", grouped) == 0 and store.get("key") == b"seven"


def test_every_way_to_put(small):
    """Each takes the group of its key: an upsert of another one is refused."""
    _, store = small
    data = bytearray(pattern(100))
    at, two = address(data), with_fields(group_ids=["a", "b"])
    assert store.put_parts("parts", b"1", b"2", config=with_fields(group_ids=["a"])) == 0
    assert store.put_from("from", at, 100, with_fields(group_ids=["a"])) == 0
    assert store.batch_put_from(["from1", "from2"], [at, at], [100, 100], two) == [0, 0]
    # What is left out of a call does not shift the groups of the others.
    assert store.batch_put_from(["none", "late"], [at, at], [0, 100], two) == [-600, 0]
    assert store.batch_put_from(["bad", "later"], [0, at], [100, 100], two) == [-600, 0]
    assert store.batch_put_from_multi_buffers(["multi1", "multi2"], [[at, at + 50], [at]], [[50, 50], [100]], two) == [0, 0]
    assert store.batch_put_session_start(["session1", "session2"], [100, 100], two) == [0, 0]
    assert store.batch_put_session_end(["session2", "session1"]) == [0, 0]
    for key, group in (("parts", "a"), ("from", "a"), ("from1", "a"), ("from2", "b"), ("late", "b"), ("later", "b"), ("multi1", "a"), ("multi2", "b"),
                       ("session1", "a"), ("session2", "b")):
        wrong = "b" if group == "a" else "a"
        assert store.upsert(key, b"v", with_fields(group_ids=[wrong])) == -600, key
        assert store.upsert(key, b"v", with_fields(group_ids=[group])) == 0, key
