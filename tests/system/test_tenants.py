"""Tenants: equal keys of two are two objects in every call; whose a key is says the key of who asks, where there are keys."""
import concurrent.futures
import contextlib
import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import keyed
from cluster import BUILD, Master, request, samples_of, says, wait_until
from keyed import NOT_PERMITTED, Client, Key
from python_cluster import BUFFER, MISSING, SEGMENT, SLOW, MooncakeDistributedStore, ReplicateConfig, arguments
from store_process import StoreProcess

SOURCE = pathlib.Path(os.environ["MC_SOURCE"])
TENANTS = ("blue", "red", "default")


@contextlib.contextmanager
def opened(master, tenant, segment=0):
    store = MooncakeDistributedStore()
    code = store.setup(*arguments(master, segment), tenant_id=tenant)
    assert code == 0
    try:
        yield store
    finally:
        store.close()


@pytest.fixture(scope="module")
def scene():
    """A store for each of three tenants, and memory."""
    with Master("--enable_multi_tenants") as master, contextlib.ExitStack() as stack:
        node = StoreProcess(master.address, SEGMENT).start()
        try:
            stores = {tenant: stack.enter_context(opened(master, tenant)) for tenant in TENANTS}
            wait_until(lambda: stores["blue"].put("probe", b"x") == 0)
            yield master, stores
        finally:
            node.stop()


@pytest.fixture
def empty(scene):
    for store in scene[1].values():
        wait_until(lambda: store.remove_all(True) >= 0)
    return scene


def value(tenant, size=5000):
    return (tenant.encode() * size)[:size]


def put_all(stores, key="k"):
    for tenant, store in stores.items():
        assert store.put(key, value(tenant)) == 0


# ---- equal keys ----

def test_equal_keys_are_objects_of_their_own(empty):
    _master, stores = empty
    assert stores["blue"].put("k", value("blue")) == 0
    for other in ("red", "default"):
        assert stores[other].get("k") == b"" and stores[other].is_exist("k") == 0 and stores[other].get_size("k") == MISSING
        assert stores[other].remove("k", True) == MISSING
    put_all(stores)
    for tenant, store in stores.items():
        assert store.get("k") == value(tenant) and store.get_batch(["k", "none"]) == [value(tenant), b""]
        assert store.batch_is_exist(["k", "none"]) == [1, 0] and store.get_size("k") == 5000
    assert stores["blue"].upsert("k", b"another") == 0 and stores["red"].remove("k", True) == 0
    assert [stores[tenant].get("k") for tenant in TENANTS] == [b"another", b"", value("default")]


def test_batches_ranges_and_buffers(empty):
    _master, stores = empty
    keys = [f"b{i}" for i in range(40)]
    for tenant, store in stores.items():
        assert store.put_batch(keys, [value(tenant, 100 + i) for i in range(40)]) == 0
    memory = ctypes.create_string_buffer(8192)
    base = ctypes.addressof(memory)
    for tenant, store in stores.items():
        assert store.register_buffer(base, len(memory)) == 0
        assert store.get_batch(keys) == [value(tenant, 100 + i) for i in range(40)]
        assert store.batch_get_into(["b0", "b1"], [base, base + 4096], [4096, 4096]) == [100, 101]
        assert memory.raw[:100] == value(tenant, 100) and memory.raw[4096:4197] == value(tenant, 101)
        assert store.get_into_ranges([base], [["b3", "b4"]], [[[0], [50]]], [[[1], [2]]], [[[7], [8]]]) == [[[7], [8]]]
        assert memory.raw[:7] == value(tenant, 103)[1:8] and memory.raw[50:58] == value(tenant, 104)[2:10]
        assert store.put_from("from", base, 100) == 0 and store.get("from") == memory.raw[:100]
        assert store.unregister_buffer(base) == 0


def test_sessions(empty):
    _master, stores = empty
    memory = ctypes.create_string_buffer(8192)
    base = ctypes.addressof(memory)
    for tenant, store in stores.items():
        assert store.put("s", value(tenant)) == 0
        assert store.register_buffer(base, len(memory)) == 0
        assert store.batch_get_session_start(["s", "none"]) == [0, MISSING]
        assert store.batch_get_into_multi_buffer_ranges(["s"], [[base, base + 100]], [[50, 60]], [[0, 1000]]) == [110]
        assert memory.raw[:50] == value(tenant)[:50] and memory.raw[100:160] == value(tenant)[1000:1060]
        assert store.batch_get_session_end(["s"]) == 0
        assert store.batch_get_into_multi_buffer_ranges(["s"], [[base]], [[50]], [[0]])[0] < 0
        assert store.unregister_buffer(base) == 0


def test_removal_by_pattern_and_of_all_is_of_ones_own(empty):
    _master, stores = empty
    for store in stores.values():
        assert store.put_batch(["a1", "a2", "b1"], [b"x"] * 3) == 0
    assert stores["blue"].remove_by_regex("blue", True) == 0
    assert stores["blue"].remove_by_regex("^a", True) == 2
    assert stores["red"].remove_all(True) == 3
    assert [store.batch_is_exist(["a1", "a2", "b1"]) for store in stores.values()] == [[0, 0, 1], [0, 0, 0], [1, 1, 1]]
    assert stores["default"].remove_all(True) == 3 and stores["blue"].is_exist("b1") == 1


def test_groups_of_one_name_are_the_tenants_own(empty):
    _master, stores = empty
    for tenant, store in stores.items():
        config = ReplicateConfig()
        config.group_ids = ["together"]
        assert store.put("g", value(tenant), config) == 0
    assert [store.get("g") for store in stores.values()] == [value(tenant) for tenant in TENANTS]


def test_long_keys_have_room_for_the_tenant(empty):
    _master, stores = empty
    assert stores["default"].put("x" * 1024, b"v") == 0 and stores["default"].get("x" * 1024) == b"v"
    assert stores["blue"].put("x" * (1024 - 6), b"v") == 0 and stores["blue"].get("x" * (1024 - 6)) == b"v"
    assert stores["blue"].put("x" * (1024 - 5), b"v") == -400


# ---- the master's lists ----

def test_the_admin_port_is_told_a_tenant(empty):
    master, stores = empty
    put_all(stores)
    assert stores["red"].put("only", b"v") == 0
    assert master.get("/get_all_keys?tenant_id=blue") == (200, b"k\n")
    assert sorted(master.get("/get_all_keys?tenant_id=red")[1].split()) == [b"k", b"only"]
    assert master.get("/get_all_keys?tenant_id=default")[1] == b"k\n"
    assert sorted(master.get("/get_all_keys")[1].splitlines()) == [b"%00blue%00k", b"%00red%00k", b"%00red%00only", b"k"]
    assert master.get("/query_key?key=only&tenant_id=red")[0] == 200
    assert master.get("/query_key?key=only")[0] == 404 and master.get("/query_key?key=only&tenant_id=blue")[0] == 404
    assert master.get("/query_key?key=only&tenant_id=_red")[0] == 400
    found = json.loads(master.get("/batch_query_keys?keys=k,only&tenant_id=red")[1])["data"]
    assert [found[key]["ok"] for key in ("k", "only")] == [True, True]


# ---- nodes and masters that come back ----

def test_objects_are_their_tenants_after_restarts(tmp_path):
    with Master("--enable_multi_tenants") as master, opened(master, "blue") as blue, opened(master, "red") as red:
        node = StoreProcess(master.address, SEGMENT, f"/dev/shm/mc-tenants-{tmp_path.name}-{master.port}").start()
        try:
            wait_until(lambda: blue.put("k", value("blue")) == 0)
            wait_until(lambda: red.put("k", value("red")) == 0)
            master.kill()
            master.start()
            wait_until(lambda: blue.get("k") == value("blue") and red.get("k") == value("red"), 30 * SLOW)
            node.kill()
            node.start()
            wait_until(lambda: blue.get("k") == value("blue") and red.get("k") == value("red"), 30 * SLOW)
            assert wait_until(lambda: blue.remove_all(True), 30 * SLOW) == 1
            assert blue.get("k") == b"" and red.get("k") == value("red")
        finally:
            node.stop()


def test_a_node_that_is_drained_moves_the_objects_of_all():
    with Master("--enable_multi_tenants") as master, opened(master, "blue") as blue, opened(master, "red") as red:
        with opened(master, "default", SEGMENT) as leaving:
            config = ReplicateConfig()
            config.preferred_segment = leaving.get_hostname()
            wait_until(lambda: blue.put("k", value("blue"), config) == 0)
            assert red.put("k", value("red"), config) == 0
            with opened(master, "red", SEGMENT) as staying:
                wait_until(lambda: len(master.get("/get_all_segments")[1].split()) == 2)
                job = json.dumps({"segments": [leaving.get_hostname()]}).encode()
                assert request(master.metrics_port, "POST", "/api/v1/drain_jobs", job)[0] == 200
                for tenant in ("blue", "red"):
                    wait_until(lambda: staying.get_hostname() in master.get(f"/query_key?key=k&tenant_id={tenant}")[1].decode(), 30 * SLOW)
                assert blue.get("k") == value("blue") and red.get("k") == value("red")


# ---- off ----

def test_off_a_tenant_is_a_warning_and_changes_nothing():
    with Master() as master, Client(master, segment=SEGMENT) as node:
        assert node.code == 0
        store = MooncakeDistributedStore()
        assert store.setup(*arguments(master, 0), tenant_id="blue") == 0
        wait_until(lambda: store.put("k", b"v") == 0)
        assert node.exist(["k"]) == [1]
        assert master.get("/get_all_keys") == (200, b"k\n")
        assert store.close() == 0


@pytest.mark.parametrize("name", ["_blue", "a\nb", "x" * 64])
def test_bad_names(scene, name):
    store = MooncakeDistributedStore()
    assert store.setup(*arguments(scene[0], 0), tenant_id=name) == -600


# ---- with keys ----

@pytest.fixture
def keys(tmp_path):
    made = {"node": Key("nodes", "read,write,node"), "admin": Key("operators"), "plain": Key("plain", "read,write"),
            "blue": Key("blue-1", "read,write", "blue"), "red": Key("red-1", "read,write", "red")}
    with Master(f"--auth_file={keyed.write(tmp_path, 'keys', *made.values())}") as master:
        node = StoreProcess(master.address, MC_AUTH_TOKEN=made["node"].token).start()
        try:
            with Client(master, made["plain"]) as probe:
                wait_until(lambda: probe.put("probe", "probe", 10) == 0)
            yield master, made
        finally:
            node.stop()


def bearer(master, key, path, method="GET"):
    return request(master.metrics_port, method, path, headers={"Authorization": f"Bearer {key.token}"})


def test_the_key_says_the_tenant(keys):
    master, made = keys
    with Client(master, made["blue"]) as blue, Client(master, made["red"]) as red, Client(master, made["plain"]) as plain:
        assert [one.put("k", name, 3000) for one, name in ((blue, "b"), (red, "r"), (plain, "p"))] == [0, 0, 0]
        assert [one.same("k", name, 3000) for one, name in ((blue, "b"), (red, "r"), (plain, "p"))] == [True] * 3
        for other in (red, plain):  # as the key stands at the master
            assert other.put("\0blue\0x", "b", 100) in ((0,) if other is red else (-400,))
            assert other.same("\0blue\0k", "b", 3000) is None
        assert blue.same("x", "b", 100) is None


def test_who_is_connected_when_its_tenant_changes_is_let_go(tmp_path):
    plain, moved = Key("plain", "read,write,node"), Key("moved", "read,write", "blue")
    master = Master(f"--auth_file={keyed.write(tmp_path, 'keys', plain, moved)}")
    with master, keyed.Client(master, plain, segment=64 << 20), Client(master, moved) as client:
        assert client.put("mine", "b", 100) == 0
        moved.tenant = "red"
        keyed.write(tmp_path, "keys", plain, moved)
        wait_until(lambda: "was read again" in master.log())
        assert client.put("mine", "r", 100) == NOT_PERMITTED  # this store is of the tenant that it began with
        says(master, "its key, moved, is not what it was any more")
        with Client(master, moved) as other:
            assert other.same("mine", "b", 100) is None


def test_a_name_that_is_said_is_not_believed(keys):
    master, made = keys
    program = ("import os, sys; sys.path.insert(0, os.environ['MC_PYTHONPATH']); from mooncake.store import MooncakeDistributedStore;"
               "print(MooncakeDistributedStore().setup('127.0.0.1', 'P2PHANDSHAKE', 0, 1 << 20, 'tcp', '', sys.argv[1], tenant_id=sys.argv[2]))")
    for key, tenant, code in ((made["red"], "blue", NOT_PERMITTED), (made["red"], "red", 0), (made["red"], "default", 0), (made["admin"], "blue", 0)):
        done = subprocess.run([sys.executable, "-c", program, master.address, tenant], capture_output=True, text=True, timeout=60, env=keyed.environment(key))
        assert int(done.stdout) == code, (tenant, done.stderr)
    says(master, "it says another tenant than its key does")


def test_a_tenant_lends_no_memory_and_sees_only_its_own(keys, tmp_path):
    master, made = keys
    bad = Key("bad", "read,write,node", "blue")
    with pytest.raises(AssertionError, match="a key of a tenant may read and write only"):
        Master(f"--auth_file={keyed.write(tmp_path, 'bad', bad)}").start()
    with Client(master, made["blue"]) as blue, Client(master, made["plain"]) as plain:
        assert blue.put("mine", "b", 100) == 0 and plain.put("theirs", "p", 100) == 0
    assert bearer(master, made["blue"], "/get_all_keys") == (200, b"mine\n")
    assert bearer(master, made["blue"], "/get_all_keys?tenant_id=default") == (200, b"mine\n")
    assert bearer(master, made["blue"], "/query_key?key=theirs&tenant_id=default")[0] == 404
    for path in ("/metrics", "/get_all_segments", "/get_segments_detail", "/metrics/summary"):
        assert bearer(master, made["blue"], path)[0] == 403, path
        assert bearer(master, made["admin"], path)[0] == 200, path
    assert bearer(master, made["red"], "/get_all_keys") == (200, b"")
    assert b"%00blue%00mine" in bearer(master, made["admin"], "/get_all_keys")[1]


REFUSED = re.compile("path shm to segment .*NOT_PERMITTED")


def test_who_has_no_tenant_sees_only_the_default_ones(keys):
    """Unless it holds the memory of all, or runs the cluster."""
    master, made = keys
    with Client(master, made["blue"]) as blue, Client(master, made["plain"]) as plain:
        assert blue.put("theirs", "b", 100) == 0 == plain.put("mine", "p", 100)
    for path in ("/get_all_keys?tenant_id=blue", "/api/v1/keys?tenant_id=blue", "/query_key?key=theirs&tenant_id=blue", "/api/v1/misses/why?key=theirs&tenant_id=blue"):
        assert bearer(master, made["plain"], path)[0] == 403, path
        assert bearer(master, made["node"], path)[0] == 200 == bearer(master, made["admin"], path)[0], path
    for query in ("", "?tenant_id=default"):
        assert sorted(bearer(master, made["plain"], f"/get_all_keys{query}")[1].split()) == [b"mine", b"probe"]
    listed = json.loads(bearer(master, made["plain"], "/api/v1/keys")[1])
    assert "theirs" not in json.dumps(listed) and "mine" in json.dumps(listed)
    assert "theirs" in json.dumps(json.loads(bearer(master, made["admin"], "/api/v1/keys")[1]))


def test_events_are_told_to_whom_they_concern(tmp_path):
    """A page may have none of its reader's: he goes on behind it."""
    made = {"node": Key("nodes", "read,write,node"), "plain": Key("plain", "read,write"), "blue": Key("blue", "read,write", "blue"), "red": Key("red", "read,write", "red")}
    with Master("--enable_kv_events=true", f"--auth_file={keyed.write(tmp_path, 'keys', *made.values())}") as master, \
            Client(master, made["node"], segment=64 << 20), Client(master, made["blue"]) as blue, Client(master, made["plain"]) as plain:
        assert [blue.put(f"b{i}", "b", 100) for i in range(8)] == [0] * 8 and plain.put("mine", "p", 100) == 0 == blue.put("late", "b", 100)

        def told(name, more):
            status, body = bearer(master, made[name], f"/api/v1/kv_events{more}")
            assert status == 200, body
            return json.loads(body)

        epoch = told("node", "")["epoch"]
        of = {name: told(name, f"?epoch={epoch}&after=0") for name in made}
        assert [event["object_key"] for event in of["plain"]["events"]] == ["mine"]
        assert [event["object_key"] for event in of["blue"]["events"]] == [f"b{i}" for i in range(8)] + ["late"]
        assert len(of["node"]["events"]) == 10 and of["red"]["events"] == []
        assert all(one["next"] == one["last"] == 10 for one in of.values())
        first = told("plain", f"?epoch={epoch}&after=0&limit=2")  # the pages before it are all another's
        assert [event["object_key"] for event in first["events"]] == ["mine"] and first["next"] == 10
        for name, count in (("node", 10), ("blue", 9), ("plain", 1), ("red", 0)):
            listed = json.loads(bearer(master, made[name], "/api/v1/kv_events/snapshot")[1])["keys"]
            assert len(listed) == count and {one["tenant_id"] for one in listed} <= {"default", "blue"}
        assert bearer(master, made["plain"], f"/api/v1/kv_events?epoch={epoch}&after=0&tenant_id=blue")[0] == 403


def test_a_tenant_maps_no_memory(keys):
    """Nothing tells tenants apart in what is mapped: they go by tcp, where their tags do. Who is of none maps it."""
    master, made = keys
    for name, is_refused in (("blue", True), ("plain", False)):
        with Client(master, made[name], MC_LOG_LEVEL="DEBUG") as client:
            assert client.put("big", name, 1 << 20) == 0
            assert client.same("big", name, 1 << 20) is True
            wait_until(lambda client=client, is_refused=is_refused: bool(REFUSED.search(client.said())) is is_refused, 20, "the refusal")
            assert "path tcp" not in client.said()  # it has not failed


def test_tenants_map_memory_where_the_node_lets_them(keys):
    master, made = keys
    node = StoreProcess(master.address, MC_AUTH_TOKEN=made["node"].token, MC_TENANTS_MAP="yes").start()
    try:
        wait_until(lambda: len(bearer(master, made["admin"], "/get_all_segments")[1].split()) == 2)
        with Client(master, made["blue"], MC_LOG_LEVEL="DEBUG") as blue:
            wait_until(lambda: blue.put("k", "b", 1000) == 0)
            names = [blue.put(f"k{i}", "b", 1 << 20) for i in range(16)]
            assert names == [0] * 16 and all(blue.same(f"k{i}", "b", 1 << 20) for i in range(16))
            wait_until(lambda: REFUSED.search(blue.said()), 20, "the refusal")
            refused = {line.split("to segment ")[1].split()[0].rstrip(":,") for line in blue.said().splitlines() if REFUSED.search(line)}
            assert len(refused) == 1  # only of the other node
    finally:
        node.stop()


# ---- removal over HTTP ----

def remove_all(master, query="", method="POST", **headers):
    status, body = request(master.metrics_port, method, f"/api/v1/remove_all{query}", headers=headers)
    return status, json.loads(body) if status == 200 else None


def test_remove_all_over_http(empty):
    master, stores = empty
    for store in stores.values():
        assert store.put_batch(["a1", "a2"], [b"x"] * 2) == 0
    assert remove_all(master, "?tenant_id=green") == (200, {"success": True, "removed_count": 0})
    assert remove_all(master, "?tenant_id=blue&force=true") == (200, {"success": True, "removed_count": 2})
    assert [store.batch_is_exist(["a1", "a2"]) for store in stores.values()] == [[0, 0], [1, 1], [1, 1]]
    assert remove_all(master, "?tenant_id=default&force=1")[1]["removed_count"] == 2
    assert stores["blue"].put("b", b"x") == 0 == stores["red"].put("b", b"x")
    assert stores["red"].get("b") == b"x"  # and is leased
    assert remove_all(master) == (200, {"success": True, "removed_count": 3}), "of all tenants, but what was just read"
    assert stores["red"].is_exist("b") == 1 and remove_all(master, "?force=yes")[1]["removed_count"] == 0
    assert remove_all(master, "?force=true")[1]["removed_count"] == 1
    assert remove_all(master, "?tenant_id=_blue")[0] == 400 and remove_all(master, method="GET")[0] == 405
    assert remove_all(master, "?force=true", Origin="http://elsewhere")[0] == 403, "a page of another site"


def test_many_are_removed_at_once_over_http(empty):
    """More than a slice, by several who ask at the same time: each object goes once, and all are answered."""
    master, stores = empty
    keys = [f"k{i}" for i in range(3000)]
    for start in range(0, len(keys), 1000):
        assert stores["blue"].put_batch(keys[start:start + 1000], [b"x"] * 1000) == 0
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda tenant: remove_all(master, f"?force=true&tenant_id={tenant}"), ("blue", "blue", "red")))
    assert [status for status, _ in found] == [200] * 3
    assert found[0][1]["removed_count"] + found[1][1]["removed_count"] == 3000 and found[2][1]["removed_count"] == 0
    assert stores["blue"].batch_is_exist(keys[:1000]) == [0] * 1000


def test_who_may_remove_all_over_http(keys):
    master, made = keys
    with Client(master, made["blue"]) as blue, Client(master, made["plain"]) as plain:
        assert blue.put("k", "b", 100) == 0 == plain.put("k", "p", 100)
        assert remove_all(master)[0] == 401
        for refused in ("blue", "plain", "node"):
            assert remove_all(master, "?force=true", Authorization=f"Bearer {made[refused].token}")[0] == 403, refused
        assert blue.same("k", "b", 100) and plain.same("k", "p", 100)
        assert remove_all(master, "?force=true&tenant_id=blue", Authorization=f"Bearer {made['admin'].token}")[1]["removed_count"] == 1
        assert blue.same("k", "b", 100) is None and plain.same("k", "p", 100)


# ---- quotas ----

POLICY = """version: 1
tenants:
  - name: blue
    quota: 1MB
  - name: "red"
    quota: 8MB
    objects: 3
"""
KIB = 1024


@contextlib.contextmanager
def quota_master(tmp_path, *flags, policy=POLICY):
    file = tmp_path / "quotas.yaml"
    file.write_text(policy)
    with Master("--enable_multi_tenants", f"--tenant_quota_connector_uri={file}", *flags) as master:
        node = StoreProcess(master.address, SEGMENT, f"/dev/shm/mc-quotas-{tmp_path.name}-{master.port}").start()
        try:
            wait_until(lambda: len(master.get("/get_all_segments")[1].split()) == 1)
            yield master, node, file
        finally:
            node.stop()


def quota(master, tenant):
    status, body = master.get(f"/api/v1/tenant_quotas?tenant_id={tenant}")
    return json.loads(body)["data"] if status == 200 else status


def call(master, method, tenant, **body):
    status, answer = request(master.metrics_port, method, f"/api/v1/tenant_quotas?tenant_id={tenant}", json.dumps(body).encode())
    return status, json.loads(answer)


def test_quotas_of_a_file(tmp_path):
    with quota_master(tmp_path) as (master, _node, _file), opened(master, "blue") as blue, opened(master, "red") as red, opened(master, "default") as other:
        assert other.put("k", b"v") == -1701 and other.get("k") == b""
        wait_until(lambda: blue.put("0", bytes(256 * KIB)) == 0)
        assert [blue.put(str(i), bytes(256 * KIB)) for i in (1, 2, 3)] == [0] * 3
        assert quota(master, "blue") == {
            "tenant_id": "blue", "requested_quota_bytes": 1 << 20, "effective_quota_bytes": 1 << 20, "charged_bytes": 1 << 20, "admission_closed": False, "over_quota": False,
            "has_explicit_policy": True, "requested_quota_objects": 0, "charged_objects": 4, "guaranteed_bytes": 0, "guaranteed_objects": 0,
            "firm_pin_quota_bytes": 0, "firm_pin_bytes": 0}
        assert blue.put("4", bytes(256 * KIB)) == 0  # its oldest makes room, and nobody else's
        assert blue.batch_is_exist(["0", "1", "2", "3", "4"]) == [0, 1, 1, 1, 1]
        assert blue.put("huge", bytes(2 << 20)) == -1700 and blue.batch_is_exist(["1", "2", "3", "4"]) == [1] * 4
        assert [red.put(str(i), b"v") for i in range(4)] == [0] * 4
        assert red.batch_is_exist(["0", "1", "2", "3"]) == [0, 1, 1, 1]
        two = ReplicateConfig()
        two.with_hard_pin = True
        assert [blue.upsert(str(i), bytes(256 * KIB), two) for i in (1, 2, 3, 4)] == [0] * 4
        assert blue.put("more", bytes(256 * KIB)) == -1700  # what is pinned does not go
        assert blue.remove("1", True) == 0 and blue.put("more", bytes(256 * KIB)) == 0
        assert quota(master, "blue")["charged_bytes"] == 1 << 20


def test_usage_is_known_to_the_next_master_and_the_next_process_of_a_node(tmp_path):
    with quota_master(tmp_path) as (master, node, _file), opened(master, "blue") as blue:
        wait_until(lambda: blue.put("0", bytes(400 * KIB)) == 0)
        assert blue.put("1", bytes(400 * KIB)) == 0
        used = quota(master, "blue")
        assert used["charged_bytes"] == 800 * KIB and used["charged_objects"] == 2
        master.kill()
        master.start()
        wait_until(lambda: quota(master, "blue") == used, 30 * SLOW)
        node.kill()
        node.start()
        wait_until(lambda: blue.get("1") == bytes(400 * KIB), 30 * SLOW)
        wait_until(lambda: quota(master, "blue") == used, 30 * SLOW)
        wait_until(lambda: blue.put("2", bytes(400 * KIB)) == 0, 30 * SLOW)
        assert quota(master, "blue")["charged_bytes"] == 800 * KIB and sum(blue.batch_is_exist(["0", "1", "2"])) == 2
        assert wait_until(lambda: blue.remove_all(True), 30 * SLOW) == 2
        assert quota(master, "blue")["charged_bytes"] == 0 and quota(master, "blue")["charged_objects"] == 0


def test_what_lies_on_disks_alone_is_not_counted(tmp_path):
    (tmp_path / "disks").mkdir()
    flags = (f"--root_fs_dir={tmp_path / 'disks'}", f"--quota_bytes={256 << 20}")
    with quota_master(tmp_path, *flags) as (master, _node, _file), opened(master, "blue") as blue:
        wait_until(lambda: blue.put("0", bytes([1]) * (256 * KIB)) == 0)
        assert [blue.put(str(i), bytes([i + 1]) * (256 * KIB)) for i in (1, 2, 3)] == [0] * 3
        wait_until(lambda: samples_of(master.get("/metrics")[1])["file_cache_nums_"] == 4, 30 * SLOW)
        for round in range(2):
            for i in range(8):  # each comes to memory, and another of the tenant's goes from there
                if round == 0 and i > 3:
                    assert blue.put(str(i), bytes([i + 1]) * (256 * KIB)) == 0
                    wait_until(lambda: samples_of(master.get("/metrics")[1])["file_cache_nums_"] == i + 1, 30 * SLOW)
                assert blue.get(str(i)) == bytes([i + 1]) * (256 * KIB)
                assert quota(master, "blue")["charged_bytes"] <= 1 << 20
        assert blue.batch_is_exist([str(i) for i in range(8)]) == [1] * 8
        assert wait_until(lambda: blue.remove_all(True), 30 * SLOW) == 8 and quota(master, "blue")["charged_bytes"] == 0


def test_the_admin_port_changes_quotas_and_the_file(tmp_path):
    with quota_master(tmp_path) as (master, _node, file), opened(master, 'a "b"\\c') as odd:
        name = "a%20%22b%22%5Cc"
        assert odd.put("k", b"v") == -1701 and quota(master, name) == 404
        status, answer = call(master, "PUT", name, requested_quota_bytes=4 << 20, requested_quota_objects=7, guaranteed_bytes=1 << 20, guaranteed_objects=2, firm_pin_quota_bytes=3 << 20)
        assert status == 200 and answer["success"] and answer["data"]["requested_quota_bytes"] == 4 << 20
        assert odd.put("k", b"v") == 0
        for body in ({}, {"requested_quota_bytes": 0}, {"requested_quota_bytes": 1 << 63}, {"requested_quota_bytes": 5, "guaranteed_bytes": 6}, {"requested_quota_bytes": "5"},
                     {"requested_quota_bytes": 5, "firm_pin_quota_bytes": 6},
                     {"requested_quota_bytes": 5, "else": 1}):
            assert call(master, "PUT", name, **body) == (400, {"success": False, "error_code": -600, "error_message": "INVALID_PARAMS"}), body
        assert call(master, "PUT", "", requested_quota_bytes=5)[0] == 400 and call(master, "PUT", "_x", requested_quota_bytes=5)[0] == 400
        assert call(master, "DELETE", name) == (409, {"success": False, "error_code": -1702, "error_message": "TENANT_NOT_EMPTY"})
        assert call(master, "DELETE", "nobody") == (404, {"success": False, "error_code": -1701, "error_message": "TENANT_NOT_REGISTERED"})
        assert call(master, "DELETE", "red")[0] == 200 and quota(master, "red") == 404
        names = [one["tenant_id"] for one in json.loads(master.get("/api/v1/tenant_quotas")[1])["data"]]
        assert names == ['a "b"\\c', "blue"]
        written = file.read_text()
        assert written.startswith("version: 1\n\ntenants:\n") and '  - name: "a \\"b\\"\\\\c"\n    quota: 4194304\n    objects: 7\n    guaranteed: 1048576\n    guaranteed_objects: 2\n    firm_pins: 3145728\n' in written
        before = json.loads(master.get("/api/v1/tenant_quotas")[1])["data"]
        master.kill()
        master.start()
        wait_until(lambda: json.loads(master.get("/api/v1/tenant_quotas")[1])["data"] == before, 30 * SLOW)
        assert odd.remove("k", True) == 0 or wait_until(lambda: odd.remove("k", True) == 0, 30 * SLOW)
        assert call(master, "DELETE", name)[0] == 200 and "a " not in file.read_text()


def test_a_quota_that_cannot_be_kept_does_not_count(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    with quota_master(folder) as (master, _node, file):
        file.unlink()
        folder.rename(tmp_path / "elsewhere")
        assert call(master, "PUT", "blue", requested_quota_bytes=7)[0] == 500 and quota(master, "blue")["requested_quota_bytes"] == 1 << 20
        assert call(master, "PUT", "new", requested_quota_bytes=7)[0] == 500 and quota(master, "new") == 404
        assert call(master, "DELETE", "red")[0] == 500 and quota(master, "red")["requested_quota_bytes"] == 8 << 20
        (tmp_path / "elsewhere").rename(folder)
        assert call(master, "PUT", "blue", requested_quota_bytes=7)[0] == 200 and "quota: 7\n" in file.read_text()


def test_without_tenants_there_are_no_quotas():
    with Master() as master:
        for method in ("GET", "PUT", "DELETE"):
            assert call(master, method, "blue", requested_quota_bytes=5)[0] == 409
        assert b"mooncake_tenant_" not in master.get("/metrics")[1]


@pytest.mark.parametrize("policy, says", [
    ("", "version: 1"), ("version: 2\ntenants: []\n", "version: 1"), ("version: 1\n", "tenants is to be a list"), ("version: 1\ntenants: {}\n", "list"),
    ("version: 1\ntenants: [a]\n", "name"), ("version: 1\ntenants:\n  - name: _a\n    quota: 1\n", "name"), ("version: 1\ntenants:\n  - name: a\n", "a quota is 1 to"),
    ("version: 1\ntenants:\n  - name: a\n    quota: 5XB\n", "an amount is"), ("version: 1\ntenants:\n  - name: a\n    quota: 9223372036854775808\n", "an amount is"),
    ("version: 1\ntenants:\n  - name: a\n    quota: 1\n  - name: a\n    quota: 2\n", "twice"), ("version: 1\ntenants:\n  - name: a\n    quota: 1\n    guaranteed: 2\n", "guaranteed"), ("version: 1\ntenants:\n  - name: a\n    quota: 1\n    firm_pins: 2\n", "firm pins"),
    ("{", "--tenant_quota_connector_uri=")])
def test_bad_files(tmp_path, policy, says):
    file = tmp_path / "quotas.yaml"
    file.write_text(policy)
    done = subprocess.run([BUILD / "mooncake_master", "--enable_multi_tenants", f"--tenant_quota_connector_uri={file}", "--rpc_port=0", "--metrics_port=0"],
                          capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and says in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_metrics(tmp_path):
    with quota_master(tmp_path) as (master, _node, _file), opened(master, "blue") as blue, opened(master, "nobody") as nobody:
        wait_until(lambda: blue.put("0", bytes(600 * KIB)) == 0)
        before = samples_of(master.get("/metrics")[1])  # an attempt of that put that was given up makes room for the next
        assert blue.put("1", bytes(600 * KIB)) == 0 and blue.put("2", bytes(2 << 20)) == -1700 and nobody.put("k", b"v") == -1701
        samples = samples_of(master.get("/metrics")[1])

        def of(name, tenant="blue"):
            return samples[f'mooncake_tenant_{name}{{tenant_id="{tenant}"}}']

        def evicted(name):
            return of(name) - before[f'mooncake_tenant_{name}{{tenant_id="blue"}}']
        assert of("quota_requested_bytes") == of("quota_effective_bytes") == 1 << 20 and of("quota_charged_bytes") == 600 * KIB
        assert of("quota_explicit_policy") == 1 and of("quota_admission_closed") == of("quota_over_quota") == 0
        assert of("quota_charged_objects") == 1 and evicted("evict_bytes_total") == 600 * KIB and evicted("evict_objects_total") == 1
        assert of("quota_requested_objects", "red") == 3
        assert samples['mooncake_tenant_quota_reject_total{tenant_id="blue",reason="quota_exceeded"}'] == 1
        assert samples['mooncake_tenant_quota_reject_total{tenant_id="",reason="tenant_not_registered"}'] == 1
        assert samples["mooncake_tenant_quota_allocatable_capacity_bytes"] == SEGMENT
        assert samples["mooncake_tenant_quota_requested_bytes_sum"] == samples["mooncake_tenant_quota_effective_bytes_sum"] == 9 << 20
        kinds = dict(re.findall(rb"^# TYPE (mooncake_tenant_\w+) (\w+)$", master.get("/metrics")[1], re.M))
    page = (SOURCE / "docs" / "metrics.md").read_text()
    told = page[page.index("\n## Tenants\n"):page.index("\n## ", page.index("\n## Tenants\n") + 5)]
    assert {name.decode() for name in kinds} == set(re.findall(r"`(mooncake_tenant_\w+)`", told))


def test_who_may_see_and_change_quotas_with_keys(tmp_path):
    made = {"admin": Key("operators"), "reader": Key("reader", "read"), "blue": Key("blue-1", "read,write", "blue"), "red": Key("red-1", "read,write", "red")}
    with Master(f"--auth_file={keyed.write(tmp_path, 'keys', *made.values())}", "--enable_tenant_quota") as master:
        def ask(key, method="GET", path="", **body):
            return request(master.metrics_port, method, f"/api/v1/tenant_quotas{path}", json.dumps(body).encode(), headers={"Authorization": f"Bearer {key.token}"})
        for tenant in ("blue", "red"):
            assert ask(made["admin"], "PUT", f"?tenant_id={tenant}", requested_quota_bytes=1 << 20)[0] == 200
        assert [ask(made[who], "PUT", "?tenant_id=blue", requested_quota_bytes=9)[0] for who in ("reader", "blue")] == [403, 403]
        assert ask(made["blue"], "DELETE", "?tenant_id=blue")[0] == 403
        for path in ("", "?tenant_id=red"):
            assert json.loads(ask(made["blue"], path=path)[1])["data"]["tenant_id"] == "blue"
        assert [one["tenant_id"] for one in json.loads(ask(made["admin"])[1])["data"]] == ["blue", "red"]
