"""Stamps: what was put with one is there for the same one only, in every call; misses that are due to it are counted apart."""
import contextlib
import ctypes
import json
import urllib.parse

import pytest

from cluster import Master, wait_until
from python_cluster import MISSING, SEGMENT, MooncakeDistributedStore, arguments
from store_process import StoreProcess
from test_openapi import ask

LLAMA, MAMBA = "llama 3, fp8", "mamba 2, bf16"


@contextlib.contextmanager
def opened(master, **more):
    store = MooncakeDistributedStore()
    assert store.setup(*arguments(master, 0), **more) == 0
    try:
        yield store
    finally:
        store.close()


@pytest.fixture(scope="module")
def scene():
    """A store for each of two stamps, and one without; memory."""
    with Master("--enable_kv_events=true") as master, contextlib.ExitStack() as stack:
        node = StoreProcess(master.address, SEGMENT).start()
        try:
            stores = {stamp: stack.enter_context(opened(master, stamp=stamp)) for stamp in (LLAMA, MAMBA, "")}
            wait_until(lambda: stores[""].put("probe", b"x") == 0)
            yield master, stores
        finally:
            node.stop()


@pytest.fixture
def empty(scene):
    wait_until(lambda: scene[1][""].remove_all(True) >= 0)
    return scene


def value(stamp, size=5000):
    return ((stamp or "none").encode() * size)[:size]


def misses(master, reason="other_stamp"):
    return master.metrics()[f'mooncake_misses_total{{reason="{reason}"}}']


def query(master, path, stamp=None, **more):
    parameters = urllib.parse.urlencode({**more, **({"stamp": stamp} if stamp else {})})
    status, body, _ = ask(master.metrics_port, "GET", f"{path}?{parameters}")
    return status, body


def test_each_has_its_own(empty):
    _master, stores = empty
    assert stores[LLAMA].put("k", value(LLAMA)) == 0
    for other in (MAMBA, ""):
        assert stores[other].get("k") == b"" and stores[other].is_exist("k") == 0 and stores[other].get_size("k") == MISSING
        assert stores[other].remove("k", True) == MISSING and stores[other].longest_prefix(["k"]) == 0
    for stamp, store in stores.items():
        assert store.put("k", value(stamp)) == 0 and store.put_batch(["a", "b"], [value(stamp, 10), value(stamp, 20)]) == 0
    memory = ctypes.create_string_buffer(8192)
    for stamp, store in stores.items():
        assert store.get("k") == value(stamp) and store.get_batch(["a", "none", "b"]) == [value(stamp, 10), b"", value(stamp, 20)]
        assert store.register_buffer(ctypes.addressof(memory), 8192) == 0
        assert store.get_into("k", ctypes.addressof(memory), 8192) == 5000 and memory.raw[:5000] == value(stamp)
        assert store.batch_get_session_start(["k", "none"]) == [0, MISSING] and store.batch_get_session_end(["k"]) == 0
        assert store.unregister_buffer(ctypes.addressof(memory)) == 0
        assert store.longest_prefix(["a", "b", "k", "none"]) == 3
    assert stores[LLAMA].upsert("k", b"new") == 0 and stores[MAMBA].remove("k", True) == 0
    assert [store.get("k") for store in stores.values()] == [b"new", b"", value("")]


def test_removals(empty):
    _master, stores = empty
    for store in stores.values():
        assert store.put_batch(["a1", "a2", "b1"], [b"x"] * 3) == 0
    assert stores[LLAMA].remove_by_regex("^a", True) == 2
    assert stores[MAMBA].remove_all(True) == 3
    assert [store.batch_is_exist(["a1", "a2", "b1"]) for store in stores.values()] == [[0, 0, 1], [0, 0, 0], [1, 1, 1]]
    assert stores[""].remove_by_regex("^b1$", True) == 2, "who has none meets them all"


def test_misses_by_stamp(empty):
    master, stores = empty
    before = misses(master), misses(master, "never_stored")
    assert stores[LLAMA].put("missed", b"x") == 0 and stores[""].put("plain", b"x") == 0
    assert stores[MAMBA].get("missed") == b"" and stores[MAMBA].is_exist("plain") == 0 and stores[""].is_exist("missed") == 0
    assert misses(master) == before[0] + 3
    assert stores[MAMBA].is_exist("neither") == 0
    assert (misses(master), misses(master, "never_stored")) == (before[0] + 3, before[1] + 1)
    for stamp, wanted in ((LLAMA, None), (MAMBA, "other_stamp"), (None, "other_stamp"), ("unknown", "other_stamp")):
        status, body = query(master, "/api/v1/misses/why", stamp, key="missed")
        assert status == 200 and json.loads(body)["data"]["reason"] == wanted, (stamp, body)


def test_http(empty):
    master, stores = empty
    for stamp, store in stores.items():
        assert store.put("k", value(stamp)) == 0
    assert stores[LLAMA].put("l", b"x") == 0
    status, body = query(master, "/get_all_keys")
    assert status == 200 and sorted(body.split()) == [b"k", b"k", b"k", b"l"]
    assert sorted(query(master, "/get_all_keys", LLAMA)[1].split()) == [b"k", b"l"]
    keys = json.loads(query(master, "/api/v1/keys")[1])["keys"]
    assert sorted(one["key"] for one in keys) == ["k", "k", "k", "l"]
    stamps = {one.get("stamp") for one in keys}
    assert len(stamps) == 3 and None in stamps and all(len(one) == 32 for one in stamps if one)
    assert query(master, "/query_key", LLAMA, key="l")[0] == 200 and query(master, "/query_key", MAMBA, key="l")[0] == 404
    assert json.loads(query(master, "/api/v1/key", LLAMA, key="k")[1])["data"]["bytes"] == 5000
    status, body, _ = ask(master.metrics_port, "POST", "/api/v1/longest_prefix?stamp=" + urllib.parse.quote(LLAMA), b'["k", "l", "m"]')
    assert status == 200 and json.loads(body)["data"]["longest_matched"] == 2
    status, body, _ = ask(master.metrics_port, "POST", "/api/v1/remove_all?force=true&stamp=" + urllib.parse.quote(MAMBA))
    assert (status, json.loads(body)["removed_count"]) == (200, 1)
    assert [store.is_exist("k") for store in stores.values()] == [1, 0, 1]
    assert query(master, "/query_key", "s" * 1025, key="l")[0] == 400


def test_kv_events(empty):
    master, stores = empty
    after = json.loads(query(master, "/api/v1/kv_events", after=0, epoch=0)[1])
    for stamp, store in stores.items():
        assert store.put("e", value(stamp)) == 0
    def told():
        body = json.loads(query(master, "/api/v1/kv_events", after=after["last"], epoch=after["epoch"])[1])
        return [(one["object_key"], one.get("stamp")) for one in body["events"] if one["object_key"] == "e"]
    wait_until(lambda: len(told()) == 3)
    assert len(set(told())) == 3 and ("e", None) in told()


def test_by_the_environment(empty, monkeypatch):
    master, stores = empty
    assert stores[LLAMA].put("k", b"of llama") == 0
    monkeypatch.setenv("MC_STORE_STAMP", LLAMA)
    with opened(master) as store, opened(master, stamp=MAMBA) as other:
        assert store.get("k") == b"of llama" and other.is_exist("k") == 0
    monkeypatch.setenv("MC_STORE_STAMP", "s" * 1025)
    assert MooncakeDistributedStore().setup(*arguments(master, 0)) == -600


def test_tenants_have_stamps_each():
    with Master("--enable_multi_tenants") as master, contextlib.ExitStack() as stack:
        node = StoreProcess(master.address, SEGMENT).start()
        try:
            stores = [stack.enter_context(opened(master, tenant_id=tenant, stamp=stamp)) for tenant in ("blue", "red") for stamp in (LLAMA, MAMBA, "")]
            wait_until(lambda: stores[0].put("k", b"0") == 0)
            for number, store in enumerate(stores):
                assert store.upsert("k", b"%d" % number) == 0
            assert [store.get("k") for store in stores] == [b"%d" % number for number in range(6)]
            assert stores[0].remove_all(True) == 1 and stores[5].remove_all(True) == 3
            assert [store.is_exist("k") for store in stores] == [0, 1, 1, 0, 0, 0]
        finally:
            node.stop()


def test_a_store_node_that_comes_back_knows_the_stamps(tmp_path):
    with Master() as master:
        node = StoreProcess(master.address, SEGMENT, data_dir=str(tmp_path)).start()
        try:
            with opened(master, stamp=LLAMA) as llama, opened(master, stamp=MAMBA) as mamba:
                wait_until(lambda: llama.put("k", b"of llama") == 0)
                node.kill()
                node = StoreProcess(master.address, SEGMENT, data_dir=str(tmp_path)).start()
                wait_until(lambda: llama.get("k") == b"of llama")
                assert mamba.is_exist("k") == 0
        finally:
            node.stop()
