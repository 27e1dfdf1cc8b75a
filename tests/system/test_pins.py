"""Pins over real processes. Soft ones have a deadline of their own, which masters that follow, and disks, keep; what has
a firm one stays until then, and there are only so many."""
import contextlib
import json
import time

import pytest

from cluster import Master, wait_until
from python_cluster import BUFFER, SLOW, MooncakeDistributedStore, ReplicateConfig
from store_process import StoreProcess
from test_openapi import ask

from mooncake.store import SoftPinAction

INVALID = -600
LONG_MS = 3_600_000


def pin(ttl_ms=None, action=SoftPinAction.ENABLE):
    config = ReplicateConfig()
    config.soft_pin_action, config.soft_pin_ttl_ms = action, ttl_ms
    return config


@contextlib.contextmanager
def opened(master):
    """A store that lends nothing."""
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, BUFFER, "tcp", "", master.address) == 0
    try:
        yield store
    finally:
        store.close()


def pinned(master):
    return master.metrics()["master_soft_pin_key_count"]


def expired(master):
    return master.metrics()["mooncake_soft_pins_expired_total"]


@pytest.mark.parametrize("action", ["put", "upsert"])
def test_pin_ends_however_it_is_used(action):
    with Master("--max_kv_soft_pin_ttl=2h") as master, opened(master) as store:
        node = StoreProcess(master.address).start()
        try:
            put = store.put if action == "put" else store.upsert
            wait_until(lambda: store.put("probe", b"v") == 0)
            assert put("short", b"value", pin(300)) == 0
            assert put("long", b"value", pin(LONG_MS)) == 0
            assert put("none", b"value", pin(0)) == 0

            def is_over():
                assert store.get("short") == store.get("long") == b"value"
                return expired(master) == 1
            wait_until(is_over, 10 * SLOW)
            assert pinned(master) == 1
            assert put("longer", b"value", pin(2 * 3_600_000)) == 0
            assert put("too long", b"value", pin(2 * 3_600_000 + 1)) == INVALID
            assert store.is_exist("too long") == 0
            assert pinned(master) == 2
        finally:
            node.stop()


def test_upserts_and_pins():
    with Master() as master, opened(master) as store:
        node = StoreProcess(master.address).start()
        try:
            wait_until(lambda: store.put("k", b"first", pin(LONG_MS)) == 0)
            assert store.upsert("k", b"second") == 0
            assert pinned(master) == 1
            assert store.upsert("k", b"third", pin(action=SoftPinAction.PRESERVE)) == 0
            assert pinned(master) == 1
            assert store.upsert("k", b"fourth", pin(action=SoftPinAction.DISABLE)) == 0
            assert pinned(master) == 0
            assert store.upsert("k", b"fifth", pin(LONG_MS)) == 0
            assert pinned(master) == 1
            assert store.upsert("k", b"sixth", pin(0)) == 0
            assert pinned(master) == 0
            assert store.get("k") == b"sixth"
        finally:
            node.stop()


def test_masters_that_follow_know_deadlines():
    """Neither forgotten, nor begun anew: the default would last for hours."""
    with Master("--default_kv_soft_pin_ttl=5h") as master, opened(master) as store:
        node = StoreProcess(master.address).start()
        try:
            wait_until(lambda: store.put("probe", b"v") == 0)
            since = time.monotonic()
            assert store.put("long", b"value", pin(LONG_MS)) == 0
            assert store.put("short", b"value", pin(30_000 * SLOW)) == 0
            assert store.put("first", b"first", pin(30_000 * SLOW)) == 0
            assert store.upsert("first", b"value") == 0
            assert pinned(master) == 3
            master.kill()
            master.start()
            wait_until(lambda: master.metrics()["mooncake_recovered_objects_total"] == 4, 20 * SLOW)
            if time.monotonic() - since < 25 * SLOW:  # else the machine is too slow to say
                assert pinned(master) == 3
            wait_until(lambda: pinned(master) == 1, 60 * SLOW)
            assert store.get("short") == store.get("long") == store.get("first") == b"value"
        finally:
            node.stop()


def test_disks_keep_deadlines(folder, monkeypatch):
    """The values lie nowhere else when master and node are started again."""
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(512 << 20))

    def node():
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 1 << 20, "tcp", "", master.address, enable_ssd_offload=True, ssd_offload_path=str(folder)) == 0
        return store

    with Master("--enable_offload", "--default_kv_soft_pin_ttl=5h") as master:
        store = node()
        wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
        since = time.monotonic()
        wait_until(lambda: store.put("short", b"value", pin(30_000 * SLOW)) == 0)
        assert store.put("long", b"value", pin(LONG_MS)) == 0
        wait_until(lambda: master.metrics()["file_cache_nums_"] == 2, 20 * SLOW)
        assert store.close() == 0
        master.kill()
        master.start()
        store = node()
        wait_until(lambda: store.get("short") == store.get("long") == b"value", 30 * SLOW)
        if time.monotonic() - since < 25 * SLOW:
            assert pinned(master) == 2
        wait_until(lambda: pinned(master) == 1, 60 * SLOW)
        assert store.close() == 0


# ---- firm pins ----

REFUSED, EXISTS, MISSING = -1908, -705, -704
MIB = 1 << 20


def firm(ms=LONG_MS, or_not=True):
    config = ReplicateConfig()
    config.firm_pin_ms, config.firm_pin_or_not = ms, or_not
    return config


def firm_bytes(master):
    return master.metrics()["mooncake_firm_pin_bytes"]


def fill(store, prefix):
    """More than the pool has."""
    for number in range(48):
        assert store.put(f"{prefix}-{number}", bytes(MIB)) == 0


def test_what_is_pinned_firmly_stays():
    with Master("--max_kv_soft_pin_ttl=2h") as master, opened(master) as store:
        node = StoreProcess(master.address).start()
        try:
            wait_until(lambda: store.put("probe", b"v") == 0)
            wait_until(lambda: master.metrics()["mooncake_firm_pin_budget_bytes"] == 8 * MIB)
            assert store.put("kept", b"k" * MIB, firm()) == 0
            assert LONG_MS - 60_000 < store.firm_pin_left("kept") <= LONG_MS + 100  # deadlines are in tenths
            assert store.put("kept", b"again", firm()) == EXISTS
            assert store.put("short", b"s" * MIB, firm(4000 * SLOW)) == 0
            assert store.put("soft", bytes(MIB), pin(LONG_MS)) == 0
            assert store.put("too long", bytes(MIB), firm(2 * 3_600_000 + 1)) == INVALID
            fill(store, "a")
            assert store.get("kept") == b"k" * MIB and store.firm_pin_left("probe") in (0, MISSING)
            status, body, _ = ask(master.metrics_port, "GET", "/api/v1/key?key=kept")
            assert status == 200 and 0 < json.loads(body)["data"]["firm_pin_ms"] <= LONG_MS + 100
            wait_until(lambda: master.metrics()["mooncake_firm_pins_expired_total"] == 1, 20 * SLOW)
            assert MIB < firm_bytes(master) < 2 * MIB
            fill(store, "b")
            fill(store, "c")
            assert store.get("kept") == b"k" * MIB and store.is_exist("short") == 0
            assert store.remove("kept", True) == 0
            assert firm_bytes(master) == 0 and store.firm_pin_left("kept") == MISSING
        finally:
            node.stop()


def test_no_more_than_the_budget_is_pinned_firmly():
    with Master() as master, opened(master) as store:
        node = StoreProcess(master.address).start()
        try:
            wait_until(lambda: store.put("probe", b"v") == 0)
            wait_until(lambda: master.metrics()["mooncake_firm_pin_budget_bytes"] == 8 * MIB)
            for number in range(7):  # of a little more than a MiB each
                assert store.put(f"k-{number}", bytes(MIB), firm()) == 0
            assert store.put("more", bytes(MIB), firm()) == REFUSED and store.is_exist("more") == 0
            assert store.put("more", bytes(MIB), firm(or_not=False)) == 0
            assert store.firm_pin_left("more") == 0 and pinned(master) == 1
            assert store.upsert("k-0", b"1" * MIB, firm()) == 0 and store.get("k-0") == b"1" * MIB
            assert store.upsert("k-1", b"2" * MIB) == 0 and store.firm_pin_left("k-1") > 0
            assert master.metrics()["mooncake_firm_pins_refused_total"] >= 2  # a client may ask again
            assert store.remove("k-2", True) == 0
            assert store.put("another", bytes(MIB), firm()) == 0
        finally:
            node.stop()
    with Master("--max_firm_pin_ratio=0") as master, opened(master) as store:
        node = StoreProcess(master.address).start()
        try:
            wait_until(lambda: store.put("probe", b"v") == 0)
            assert store.put("k", b"value", firm()) == REFUSED
        finally:
            node.stop()


def test_hard_pins_have_the_bound_that_is_set():
    hard = ReplicateConfig()
    hard.with_hard_pin = True
    with Master("--max_hard_pin_ratio=0.25") as master, opened(master) as store:
        node = StoreProcess(master.address).start()
        try:
            wait_until(lambda: store.put("probe", b"v") == 0)
            for number in range(7):  # of a little more than a MiB each
                assert store.put(f"k-{number}", bytes(MIB), hard) == 0
            assert 7 * MIB < master.metrics()["mooncake_hard_pin_bytes"] < 8 * MIB
            assert store.put("more", bytes(MIB), hard) == -200 and store.is_exist("more") == 0
            fill(store, "a")  # there is room for others
            assert store.remove("k-0", True) == 0 and store.put("more", bytes(MIB), hard) == 0
        finally:
            node.stop()


def test_what_is_there_is_pinned_otherwise():
    with Master("--default_kv_soft_pin_ttl=1h") as master, opened(master) as store:
        node = StoreProcess(master.address).start()
        try:
            wait_until(lambda: store.put("probe", b"v") == 0)
            wait_until(lambda: master.metrics()["mooncake_firm_pin_budget_bytes"] == 8 * MIB)
            for key in ("a", "b"):
                assert store.put(key, key.encode() * MIB) == 0
            assert store.batch_pin(["a", "none", "b"], firm()) == [0, MISSING, 0]
            assert store.firm_pin_left("a") > 0 and firm_bytes(master) > 2 * MIB
            assert store.batch_pin(["a"], pin()) == [0] and store.firm_pin_left("a") == 0 and pinned(master) == 1
            fill(store, "x")
            fill(store, "y")
            assert store.get("b") == b"b" * MIB
            assert store.batch_pin(["b"]) == [0] and firm_bytes(master) == 0  # whose conversation is over
            fill(store, "z")
            fill(store, "w")
            assert store.is_exist("b") == 0
            for number in range(7):
                assert store.put(f"k-{number}", bytes(MIB), firm()) == 0
            assert store.put("more", b"m" * MIB) == 0
            assert store.batch_pin(["more"], firm()) == [REFUSED] and store.get("more") == b"m" * MIB
        finally:
            node.stop()


def test_firm_pins_outlive_master_and_node(folder):
    with Master() as master, opened(master) as store:
        node = StoreProcess(master.address, data_dir=folder).start()
        try:
            wait_until(lambda: store.put("probe", b"v") == 0)
            wait_until(lambda: store.put("kept", b"k" * MIB, firm()) == 0)
            for restart in ("master", "node", "both"):
                ended = [one for one, other in ((master, "node"), (node, "master")) if restart != other]
                for one in ended:
                    one.kill()
                for one in ended:
                    one.start()
                wait_until(lambda: store.get("kept") == b"k" * MIB, 30 * SLOW)
                assert LONG_MS - 600_000 < store.firm_pin_left("kept") <= LONG_MS + 2100
                wait_until(lambda: MIB < firm_bytes(master) < 2 * MIB)
                fill(store, restart)
                assert store.get("kept") == b"k" * MIB
        finally:
            node.stop()
