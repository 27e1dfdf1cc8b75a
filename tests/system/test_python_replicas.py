"""mooncake.store's copies, moves, clears and mounts: replicas end where they are wanted, and values stay what they are."""
import fcntl
import os
import tempfile
import threading

import pytest

import cluster
from python_cluster import MISSING, SEGMENT, joined, master, node, pattern, store, wait_until, with_fields  # noqa: F401
from mooncake.store import QueryTaskResponse, TaskStatus, TaskType


@pytest.fixture(scope="module")
def second(master):
    other = joined(master)
    wait_until(lambda: other.put("warm up second", bytes(1000), with_fields(preferred_segment=other.get_hostname())) == 0)
    yield other
    assert other.close() == 0


def places(store, key):
    return sorted(one.get_memory_descriptor().buffer_descriptor.transport_endpoint for one in store.get_replica_desc(key))


def ended(store, task):
    """The response of a task when it has ended."""
    found = []

    def look():
        response, code = store.query_task(task)
        assert code == 0 and type(response) is QueryTaskResponse and response.id == task
        found[:] = [response]
        return response.status in (TaskStatus.SUCCESS, TaskStatus.FAILED)

    wait_until(look)
    return found[0]


def put_on(store, key, value, where):
    wait_until(lambda: store.upsert(key, value, with_fields(preferred_segment=where.get_hostname())) == 0)
    assert places(store, key) == [where.get_hostname()]


def test_copy_task(store, second):
    value = pattern(300_000)
    put_on(store, "key", value, store)
    task, code = store.create_copy_task("key", [second.get_hostname()])
    assert code == 0 and len(task) == 2 and all(type(part) is int for part in task)
    response = ended(store, task)
    assert (response.status, response.type, response.message) == (TaskStatus.SUCCESS, TaskType.REPLICA_COPY, "")
    assert response.last_updated_at_ms_epoch >= response.created_at_ms_epoch > 1_600_000_000_000
    assert places(store, "key") == sorted([store.get_hostname(), second.get_hostname()])
    assert store.get("key") == value == second.get("key")
    # To where it is already: nothing to do.
    assert ended(store, store.create_copy_task("key", targets=[store.get_hostname()])[0]).status == TaskStatus.SUCCESS
    assert len(places(store, "key")) == 2


def test_move_task(store, second):
    value = pattern(300_000)
    put_on(store, "key", value, store)
    task, code = store.create_move_task("key", store.get_hostname(), second.get_hostname())
    assert code == 0
    response = ended(store, task)
    assert (response.status, response.type) == (TaskStatus.SUCCESS, TaskType.REPLICA_MOVE)
    assert places(store, "key") == [second.get_hostname()] and store.get("key") == value


def test_refused_tasks(store, second):
    here, there = store.get_hostname(), second.get_hostname()
    put_on(store, "key", b"value", store)
    assert store.create_copy_task("missing", [here]) == ((0, 0), MISSING)
    assert store.create_copy_task("key", ["no such segment"]) == ((0, 0), -600)
    assert store.create_copy_task("key", []) == ((0, 0), -600)
    assert store.create_copy_task("key", [here] * 17) == ((0, 0), -600)
    assert store.create_move_task("key", here, here) == ((0, 0), -600)
    assert store.create_move_task("key", here, "x") == ((0, 0), -600)
    assert store.create_move_task("key", there, here) == ((0, 0), -600), "it is not there"
    assert store.create_move_task("key", "no such segment", here) == ((0, 0), -600)
    assert store.create_move_task("missing", "no such segment", here) == ((0, 0), MISSING)
    assert store.query_task((1, 2)) == (None, -1400)
    for bad in (5, (1,), (1, 2, 3), ("a", "b")):
        with pytest.raises(TypeError):
            store.query_task(bad)
    with pytest.raises(TypeError):
        store.create_copy_task("key", "text")
    with pytest.raises(TypeError):
        store.create_copy_task("key", [5])


def test_a_hard_pin_survives_a_move(store, second):
    put_config = with_fields(with_hard_pin=True, preferred_segment=store.get_hostname())
    assert store.put("pinned", pattern(1000), put_config) == 0
    task, _ = store.create_move_task("pinned", store.get_hostname(), second.get_hostname())
    assert ended(store, task).status == TaskStatus.SUCCESS
    for i in range(200):
        assert store.put(f"filler {i}", bytes(1 << 20)) == 0
    assert sum(store.batch_is_exist([f"filler {i}" for i in range(200)])) < 150, "others were evicted"
    assert store.get("pinned") == pattern(1000)
    assert store.remove("pinned", True) == 0


def test_moves_against_upserts_lose_no_value(store, second):
    """While a key is moved back and forth, upserts of others are never undone."""
    names = [store.get_hostname(), second.get_hostname()]
    put_on(store, "key", pattern(50_000, 0), store)
    stop, tasks, failures = threading.Event(), [], []

    def move():
        try:
            while not stop.is_set():
                for source, target in (names, names[::-1]):
                    task, code = store.create_move_task("key", source, target)
                    assert code in (0, -600, -900), code
                    if code == 0:
                        tasks.append(ended(store, task))
        except BaseException as error:  # a thread's own end fails no test
            failures.append(error)

    mover = threading.Thread(target=move)
    mover.start()
    for i in range(1, 3000):
        if i > 60 and any(task.status == TaskStatus.SUCCESS for task in tasks):
            break
        assert second.upsert("key", pattern(50_000, i)) == 0
        assert second.get("key") == pattern(50_000, i), i
    stop.set()
    mover.join()
    assert not failures
    assert any(task.status == TaskStatus.SUCCESS for task in tasks)


def test_replica_clear(master, store, second):
    here, there = store.get_hostname(), second.get_hostname()
    put_on(store, "one", b"1", store)
    assert store.put("two", b"2", with_fields(replica_num=2, preferred_segments=[here])) == 0 and sorted(places(store, "two")) == sorted([here, there])
    assert store.batch_replica_clear(["one", "two", "missing"], segment_name=there) == ["two"]
    assert places(store, "two") == [here] and store.get("two") == b"2" and store.get("one") == b"1"
    assert store.batch_replica_clear(["one"]) == [], "it was read a moment ago"
    assert store.put("fresh", b"x") == 0
    assert store.batch_replica_clear(["fresh", "missing"]) == ["fresh"] and store.is_exist("fresh") == 0
    put_on(store, "last", b"x", store)
    assert store.batch_replica_clear(["last"], here) == ["last"] and store.is_exist("last") == 0


def test_a_lease_keeps_replicas(store, second):
    """As from a removal, and one of several too."""
    here, there = store.get_hostname(), second.get_hostname()
    assert store.put("leased", pattern(1000), with_fields(replica_num=2)) == 0 and len(places(store, "leased")) == 2
    assert second.get("leased") == pattern(1000)
    assert store.batch_replica_clear(["leased"]) == [] and len(places(store, "leased")) == 2
    assert store.batch_replica_clear(["leased"], there) == [] and len(places(store, "leased")) == 2
    assert store.put("free", pattern(1000), with_fields(replica_num=2)) == 0 and len(places(store, "free")) == 2
    assert store.batch_replica_clear(["free", "leased"], there) == ["free"] and places(store, "free") == [here]
    assert second.get("leased") == pattern(1000)


# ---- mounts ----


def mounted(store, size=SEGMENT, **more):
    answer = store.allocate_and_mount_segment(size, **more)
    assert answer["ret"] == 0 and answer["allocated_size"] >= size and len(answer["segment_ids"]) == 1
    return answer["segment_ids"][0]


def test_mounted_memory_is_used_and_leaves(master):
    client = joined(master, 0)
    first = mounted(client, protocol="tcp", location="cpu:0")
    second = mounted(client)
    assert first != second
    wait_until(lambda: client.put("big", bytes(SEGMENT // 2), with_fields(preferred_segment="")) == 0)
    assert client.unmount_segment([first, second]) == 0
    assert client.unmount_segment([first]) == -1 == client.unmount_and_free_segment(["1-2"])
    assert client.unmount_segment([]) == 0
    assert client.close() == 0


def test_grace_is_read_from_and_not_written_to():
    with cluster.Master() as own:
        lender, client, stays = joined(own, 0), joined(own, 0), joined(own)
        wait_until(lambda: client.put("probe", bytes(1000)) == 0)
        segment = mounted(lender)
        leaving = []

        def found():
            client.upsert("key", pattern(5000))
            leaving[:] = [name for name in places(client, "key") if name != stays.get_hostname()]
            return leaving

        wait_until(found)
        assert lender.unmount_and_free_segment([segment], grace_period_seconds=3) == 0
        assert lender.unmount_and_free_segment([segment], 3) == -600, "it is leaving already"
        preferred = with_fields(preferred_segment=leaving[0])
        wait_until(lambda: client.upsert("probe", b"x", preferred) == 0 and places(client, "probe") != leaving, 1)
        for i in range(20):
            assert client.put(f"new {i}", bytes(100), preferred) == 0
            assert places(client, f"new {i}") == [stays.get_hostname()]
        assert places(client, "key") == leaving and client.get("key") == pattern(5000)
        wait_until(lambda: lender.unmount_segment([segment]) == -1, 8)
        wait_until(lambda: client.is_exist("key") == 0, 8)
        for store in (lender, client, stays):
            assert store.close() == 0


def test_codes_of_mounts(store, tmp_path):
    for size in (1, 16 << 20, (16 << 20) + 1):
        made = store.allocate_and_mount_segment(size)
        assert (made["ret"], made["allocated_size"]) == (0, (size + (16 << 20) - 1) >> 24 << 24), "in steps of 16 MiB, up"
        assert store.unmount_segment(made["segment_ids"]) == 0
    assert store.allocate_and_mount_segment(0) == {"ret": -600, "segment_ids": [], "allocated_size": 0}
    path = tmp_path / "memory"
    assert store.mount_segment(str(path), 1 << 20) == {"ret": -1100, "segment_ids": []}
    path.write_bytes(bytes(1 << 20))
    assert store.mount_segment(str(path), 1 << 21)["ret"] == -600
    assert store.mount_segment(str(path), 1 << 20, offset=0, protocol="tcp", location="") == {"ret": -1012, "segment_ids": []}
    assert store.unmount_local_disk_segment() == 0 == store.unmount_local_disk_segment(grace_period_seconds=5)
    with pytest.raises(TypeError):
        store.unmount_segment("text")
    with pytest.raises(TypeError):
        store.unmount_segment([], -1)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm to make a file in")
def test_memory_of_others_is_refused_with_the_reason(store, capfd):
    """The reason is the kernel's: nobody can seal a file with a name against being shortened. The day that this changes, a mount could be thought of."""
    with tempfile.NamedTemporaryFile(prefix="mc-test-", dir="/dev/shm") as file:
        file.truncate(32 << 20)
        with pytest.raises(PermissionError):
            fcntl.fcntl(file.fileno(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        capfd.readouterr()
        assert store.mount_segment(file.name, 32 << 20) == {"ret": -1012, "segment_ids": []}
        said = capfd.readouterr().err
        assert file.name in said and "memory of others is not lent" in said and "allocate_and_mount_segment" in said, said
        assert os.path.getsize(file.name) == 32 << 20 and store.put("k", b"v") == 0 == store.remove("k", True)


def test_too_many_mounts_are_refused(master):
    client = joined(master, 0)
    ids = []
    while (answer := client.allocate_and_mount_segment(1 << 20))["ret"] == 0 and len(ids) < 100:
        ids += answer["segment_ids"]
    assert answer["ret"] == -200 and len(ids) == 64
    assert client.unmount_segment(ids[:1]) == 0 and client.allocate_and_mount_segment(1 << 20)["ret"] == 0
    assert client.close() == 0, "it takes its mounts with it"
