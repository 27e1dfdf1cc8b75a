"""Drain jobs over HTTP: a segment takes nothing new, its owner moves its objects to others, and it can go without a loss."""
import itertools
import json
import pathlib
import re

import pytest

import cluster
from cluster import request
from python_cluster import SLOW, MooncakeDistributedStore, arguments, joined, pattern, wait_until
from store_process import StoreProcess

COUNT, SIZE = 60, 100_000
LARGE = 64 << 20


def ask(master, method, path, body=None):
    status, text = request(master.metrics_port, method, path, body if body is None or isinstance(body, bytes) else json.dumps(body).encode())
    return status, json.loads(text)


def segments(master):
    return request(master.metrics_port, "GET", "/get_all_segments")[1].decode().split()


def status_of(master, name):
    return ask(master, "GET", f"/api/v1/segments/status?segment={name}")[1]["status_name"]


@pytest.fixture
def master():
    with cluster.Master("--default_kv_lease_ttl=0ms") as running:
        yield running


@pytest.fixture
def client(master):
    store = MooncakeDistributedStore()
    assert store.setup(*arguments(master, 0)) == 0
    yield store
    assert store.close() == 0


def fill(client):
    values = {f"key-{i}": pattern(SIZE - i, i) for i in range(COUNT)}
    wait_until(lambda: client.put("warm", bytes(8 << 20)) == 0)
    assert client.remove("warm", True) == 0
    for key, value in values.items():
        assert client.put(key, value) == 0
    return values


def test_a_drained_node_can_go(master, client):
    """Its only lends: a node without a local buffer moves its objects too."""
    old = StoreProcess(master.address, size=32 << 20).start()
    values = fill(client)
    name = segments(master)[0]
    with StoreProcess(master.address, size=32 << 20):
        assert status_of(master, name) == "OK"
        status, job = ask(master, "POST", "/api/v1/drain_jobs", {"segments": [name], "target_segments": [], "max_concurrency": 4})
        assert status == 200 and job["success"] and job["status"] == "CREATED" and job["total_units"] == COUNT
        assert status_of(master, name) in ("DRAINING", "DRAINED")
        wait_until(lambda: client.put(f"new-{client.get_hostname()}", b"new") == 0)  # placed elsewhere, as soon as there is room

        def look():
            return ask(master, "GET", f"/api/v1/drain_jobs/query?job_id={job['job_id']}")[1]

        wait_until(lambda: look()["status_name"] == "SUCCEEDED", 30)
        told = look()
        assert told["status"] == 3 and told["type"] == 0 and told["succeeded_units"] == COUNT and told["failed_units"] == 0 and told["migrated_bytes"] > COUNT * SIZE * 0.9
        assert status_of(master, name) == "DRAINED"
        assert ask(master, "POST", f"/api/v1/drain_jobs/cancel?job_id={job['job_id']}")[0] == 409
        old.stop()
        assert name not in segments(master)
        assert all(client.get(key) == value for key, value in values.items())
        assert look()["status_name"] == "SUCCEEDED"


def own_memory(pid):
    """Bytes of a process that no other has: without what it lends."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) << 10


def test_large_objects_are_moved_one_at_a_time(master, client):
    """Several are under way together, but of those whose copies are large only one, lest a node dies of its own drain."""
    old = StoreProcess(master.address, size=320 << 20).start()
    wait_until(lambda: client.put("large-0", pattern(LARGE, 0)) == 0)
    values = {f"large-{i}": pattern(LARGE, i) for i in range(4)} | {f"small-{i}": pattern(SIZE, i) for i in range(COUNT)}
    for key, value in values.items():
        assert client.put(key, value) == 0
    name, before, most = segments(master)[0], own_memory(old.process.pid), 0
    with StoreProcess(master.address, size=320 << 20):
        wait_until(lambda: client.put(f"new-{client.get_hostname()}", b"new") == 0)
        job = ask(master, "POST", "/api/v1/drain_jobs", {"segments": [name]})[1]

        def look():
            nonlocal most
            most = max(most, own_memory(old.process.pid))
            return ask(master, "GET", f"/api/v1/drain_jobs/query?job_id={job['job_id']}")[1]["status_name"] == "SUCCEEDED"

        wait_until(look, 60 * SLOW)
        old.stop()
        assert all(client.get(key) == value for key, value in values.items())
        if not cluster.SANITIZED:
            assert most - before < 2 * LARGE, (before, most)


def test_values_with_two_replicas_keep_two(master, client):
    from mooncake.store import ReplicateConfig
    config = ReplicateConfig()
    config.replica_num = 2
    nodes = [joined(master, 32 << 20) for _ in range(3)]
    name = nodes[0].get_hostname()
    try:
        wait_until(lambda: len(segments(master)) == 3)
        values = {f"two-{i}": pattern(5000, i) for i in range(30)}
        tries = itertools.count()

        def two_take_it():
            """A key of its own each time: one that was put while a single node took puts keeps its one replica."""
            key = f"warm-{next(tries)}"
            return client.put(key, b"1", config) == 0 and len(client.get_replica_desc(key)) == 2
        wait_until(two_take_it)
        for key, value in values.items():
            assert client.put(key, value, config) == 0
        job = ask(master, "POST", "/api/v1/drain_jobs", {"segments": [name]})[1]["job_id"]
        wait_until(lambda: ask(master, "GET", f"/api/v1/drain_jobs/query?job_id={job}")[1]["status_name"] == "SUCCEEDED", 30)
        for key, value in values.items():
            assert client.get(key) == value and len(client.get_replica_desc(key)) == 2
    finally:
        for node in nodes:
            assert node.close() == 0


def test_cancelled_with_nowhere_to_go(master, client):
    """One segment alone cannot be drained: its objects stay readable, and after the end of the job it takes puts again."""
    with StoreProcess(master.address, size=32 << 20) as node:
        values = fill(client)
        name = segments(master)[0]
        job = ask(master, "POST", "/api/v1/drain_jobs", {"segments": [name]})[1]["job_id"]
        wait_until(lambda: "could not be moved away yet" in node.log(), 20)
        assert client.put("refused", b"1") == -200
        assert all(client.get(key) == value for key, value in values.items())
        status, told = ask(master, "POST", f"/api/v1/drain_jobs/cancel?job_id={job}")
        assert status == 200 and told["status_name"] == "CANCELED"
        assert status_of(master, name) == "OK"
        wait_until(lambda: client.put("accepted", b"1") == 0)
        assert ask(master, "POST", f"/api/v1/drain_jobs/cancel?job_id={job}")[0] == 409


def test_a_segment_that_is_lost_fails_the_job(master, client):
    with StoreProcess(master.address, size=32 << 20) as node:
        fill(client)
        name = segments(master)[0]
        job = ask(master, "POST", "/api/v1/drain_jobs", {"segments": [name]})[1]["job_id"]
        node.stop()
        wait_until(lambda: ask(master, "GET", f"/api/v1/drain_jobs/query?job_id={job}")[1]["status_name"] == "FAILED", 20 * SLOW)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"segments": "x"}', b'{"segments": []}', b'{"segments": [1]}', b'{"segments": [""]}',
                                  b'{"segments": ["' + b"x" * 300 + b'"]}', json.dumps({"segments": ["a"] * 65}).encode(), b"x" * 70_000])
def test_bad_bodies(master, body):
    status, told = ask(master, "POST", "/api/v1/drain_jobs", body)
    assert status == 400 and told == {"success": False, "error_code": -600, "error_message": "INVALID_PARAMS"}


def test_unknown_names(master):
    assert ask(master, "POST", "/api/v1/drain_jobs", {"segments": ["nobody:1"]})[0] == 404
    assert ask(master, "GET", "/api/v1/segments/status?segment=nobody:1")[0] == 404
    assert ask(master, "GET", "/api/v1/segments/status")[0] == 400
    for job in ("", "x", "1", "1-", "0-0", "1-2x", "1" * 100):
        assert ask(master, "GET", f"/api/v1/drain_jobs/query?job_id={job}")[0] == 400, job
    for path, method in (("query", "GET"), ("cancel", "POST")):
        assert ask(master, method, f"/api/v1/drain_jobs/{path}?job_id=1-2") == (404, {"success": False, "error_code": -1402, "error_message": "JOB_NOT_FOUND"})
        assert ask(master, method, f"/api/v1/drain_jobs/{path}")[0] == 400
